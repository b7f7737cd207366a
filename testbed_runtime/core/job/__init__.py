"""The job: graph, executions, slots, heartbeats, failover, restart strategies, checkpoints, and the messages between processes."""
