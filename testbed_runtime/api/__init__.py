"""The API: the kinds as pydantic models, their validation, and the Flink option catalogue."""
