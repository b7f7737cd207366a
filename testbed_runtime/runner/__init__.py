"""The engine: a scenario from testbed to verdict, on ports. It never knows in which of the three places it runs."""
