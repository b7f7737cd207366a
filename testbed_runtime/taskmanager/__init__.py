"""The TaskManager process: TaskExecutor, network environment and tasks."""
