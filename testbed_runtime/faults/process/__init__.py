"""The process backend: signals sent by the supervisor."""
