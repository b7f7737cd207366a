"""The process mechanism: signals sent by the supervisor."""
