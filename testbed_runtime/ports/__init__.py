"""The Protocols that the three environments (local machine, cluster, virtual time) implement."""
