"""The channel backend: an interceptor inside each process."""
