"""The channel mechanism: an interceptor inside each process."""
