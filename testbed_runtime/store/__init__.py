"""The checkpoint store: a folder, in memory, and over HTTP."""
