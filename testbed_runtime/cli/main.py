"""The console scripts. Their functions import the rest, so that they handle Ctrl-C and SIGTERM during the imports, too."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Run `headgate`."""
    try:
        _treat_sigterm_as_interrupt()
        from testbed_runtime.cli import commands
        from testbed_runtime.cli.commandline import run_command_line

        run_command_line(commands.build, "headgate")
    except KeyboardInterrupt:
        _interrupted()


def kubectl() -> None:
    """Run `kubectl headgate`."""
    try:
        _treat_sigterm_as_interrupt()
        from testbed_runtime.cli import kubectl as plugin
        from testbed_runtime.cli.commandline import run_command_line

        run_command_line(plugin.build, "kubectl headgate")
    except KeyboardInterrupt:
        _interrupted()


def _treat_sigterm_as_interrupt() -> None:
    """Raise KeyboardInterrupt at SIGTERM, unless this process ignores it."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)


def _interrupted() -> None:
    """Exit like `commandline.run_command_line` after Ctrl-C, but without an import, because the imports may not have finished."""
    sys.stderr.write("headgate: interrupted\n")
    sys.exit(130)


if __name__ == "__main__":
    main()
