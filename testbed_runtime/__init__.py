"""Headgate's testbed: a credit-based exchange, a cluster around it, faults, and the judgement of what they did."""
