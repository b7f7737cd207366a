"""The search of a TuningStudy: its grid of option values (`grid`), the scores of its rows (`score`), and how they are shown."""
