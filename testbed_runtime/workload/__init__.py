"""What flows through a testbed: seeded records, sources, operators, sinks, key groups. Pure: numpy arrays in, arrays out."""
