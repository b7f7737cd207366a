"""Faults as every layer knows them: the kinds and their checks, links, leases, frame classes."""
