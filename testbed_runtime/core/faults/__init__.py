"""The fault vocabulary shared by every layer: kinds, leases, links, frame classes."""
