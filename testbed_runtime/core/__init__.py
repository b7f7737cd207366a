"""Sans-IO machines: events and `now` in, effects out. No clock, entropy, socket, logging or thread."""
