"""The console scripts. They import the rest in their functions, which answer Ctrl-C and SIGTERM during the imports, too."""

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
    """Raise KeyboardInterrupt at SIGTERM, unless this process ignores it, or was started with a blocked Ctrl-C: its parent
    (`interrupting.keeping_interrupts`) answers both for it."""
    parent_answers = signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and not parent_answers:
        signal.signal(signal.SIGTERM, signal.default_int_handler)


def _interrupted() -> None:
    """End as `exits.report_interrupted` says, without an import: there may have been no time for one."""
    sys.stderr.write("headgate: interrupted\n")
    sys.exit(130)


if __name__ == "__main__":
    main()
