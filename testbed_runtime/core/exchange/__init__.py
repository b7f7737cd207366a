"""The credit-based buffer exchange: frames, buffers, credit, partitions, gates, barrier alignment."""
