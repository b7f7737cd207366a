"""The operator. Nothing is here yet but the package: DESIGN §8 comes with its own issue."""
