"""A TestbedHost whose testbeds end with the runner: on this machine and in virtual time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from testbed_runtime.core.trial.plan import TestbedPlan
from testbed_runtime.ports.hosts import CLOSE_LIMIT_S, CREATE_LIMIT_S, TrialContext


class _Openable(Protocol):
    async def open(self) -> None: ...

    async def close(self) -> None: ...


T = TypeVar("T", bound=_Openable)


class OwnedTestbedHost(ABC, Generic[T]):
    """A host that opens and closes the testbeds that `make` returns. They write their files to `run_folder`."""

    __test__ = False
    create_limit_s = CREATE_LIMIT_S
    close_limit_s = CLOSE_LIMIT_S

    def __init__(self, run_folder: Path) -> None:
        self.run_folder = run_folder
        self._open: dict[str, T] = {}

    @abstractmethod
    def make(self, testbed: TestbedPlan, context: TrialContext) -> T:
        """Return a testbed that is not open yet."""

    async def create(self, testbed: TestbedPlan, *, context: TrialContext) -> T:
        """Start a testbed. If it does not start, close it. If there are several errors, raise the first one."""
        made = self._open[context.trial] = self.make(testbed, context)
        try:
            await made.open()
        except BaseException as error:
            await self.dispose(context)
            if isinstance(error, ExceptionGroup):
                raise _first(error) from error
            raise
        return made

    async def dispose(self, context: TrialContext) -> None:
        """Close the trial's testbed. An earlier runner has left nothing behind."""
        testbed = self._open.get(context.trial)
        if testbed is not None:
            await testbed.close()
            self._open.pop(context.trial, None)


def _first(group: ExceptionGroup[Exception]) -> Exception:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, ExceptionGroup) else error
