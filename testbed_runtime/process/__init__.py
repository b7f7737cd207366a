"""Shared by all Headgate processes: configuration, background tasks, and the adapters of time, randomness and ids."""
