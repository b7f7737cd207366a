"""Packet faults: the effect on each packet, the kernel rules that queue packets, the engine that holds them, and
probes."""
