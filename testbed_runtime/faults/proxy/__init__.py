"""The proxy backend: a userspace proxy on the path of every connection."""
