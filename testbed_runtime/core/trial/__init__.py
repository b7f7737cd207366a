"""One trial as data: its schedule."""
