"""The command line. One module per command; heavy imports happen inside the commands, so that `--help` is fast."""
