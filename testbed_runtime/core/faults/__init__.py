"""Faults: the kinds and their checks, links, leases and frame classes. Every layer uses these declarations."""
