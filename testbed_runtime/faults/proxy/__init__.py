"""The proxy mechanism: a userspace proxy on the path of every connection."""
