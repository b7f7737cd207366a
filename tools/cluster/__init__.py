"""A Kubernetes of one node on a bare machine, for tests: built from Go modules and Debian packages, without any registry."""
