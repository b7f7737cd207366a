"""Packet-level faults, the pure part: what is asked of packets, what becomes of each, the rules that bring them to us, and what was measured."""
