"""Rules that find damaged histories: rows of several tables, or of a table and the manifest, that cannot all be true.

A rule is a generator of findings over a `CheckedTrial`. It must hold for every history that the processes can write.
"""
