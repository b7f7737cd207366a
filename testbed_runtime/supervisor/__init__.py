"""The supervisor: starts the processes of a testbed and carries out their faults."""
