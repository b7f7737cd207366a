"""The supervisor: parent of each process, holder of its faults."""
