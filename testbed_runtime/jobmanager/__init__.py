"""The JobManager process: Dispatcher, ResourceManager and JobMaster."""
