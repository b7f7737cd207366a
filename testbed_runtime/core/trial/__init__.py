"""One trial as data: its plan and its schedule."""
