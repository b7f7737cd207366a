"""What the user types. One module a command; heavy imports happen inside the commands, so that `--help` is fast."""
