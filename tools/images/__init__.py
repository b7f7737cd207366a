"""Images of Headgate from the one Dockerfile: with a container engine, or without any."""
