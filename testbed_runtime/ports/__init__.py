"""The Protocols behind which the three places (this machine, a cluster, virtual time) differ."""
