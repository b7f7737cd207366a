"""The workload of a testbed: seeded records, sources, operators, sinks, key groups. Pure functions on numpy arrays."""
