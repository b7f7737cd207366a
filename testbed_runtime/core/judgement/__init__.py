"""Metrics, expectations and the verdict."""
