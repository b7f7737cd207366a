"""The engine: it runs a compiled scenario from testbed to verdict, on ports, in every environment alike."""
