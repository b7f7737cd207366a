"""The JobMaster's side of `requestNextInputSplit`."""

from __future__ import annotations

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.job.executiongraph import ExecutionGraph
from testbed_runtime.core.job.messages import InputSplit, RequestNextInputSplit
from testbed_runtime.core.job.splits import NO_SPLIT, SplitAssigner, split_records
from testbed_runtime.jobmanager.services import Services
from testbed_runtime.ports.rpc import Handler


class InputSplits:
    """One assigner for each source vertex with splits."""

    def __init__(self, services: Services, graph: ExecutionGraph) -> None:
        self._services = services
        self._graph = graph
        self._assigners = {
            vertex.name: SplitAssigner(vertex.source.splits)
            for vertex in graph.graph.vertices
            if vertex.source is not None and vertex.source.splits
        }

    def handlers(self) -> dict[type, Handler]:
        return {RequestNextInputSplit: self._next}

    async def _next(self, message: RequestNextInputSplit) -> InputSplit:
        """Return the next split. Raises FlinkError for an attempt that is not the current one, or whose source has no splits."""
        execution = self._graph.find(message.attempt)
        assigner = self._assigners.get(execution.task[0]) if execution is not None else None
        if execution is None or assigner is None:
            raise FlinkError("Exception", f"Can not find Execution for attempt {message.attempt}.")
        number = assigner.next_split(execution.task[1], message.index)
        source = self._graph.graph.vertex(execution.task[0]).source
        if number == NO_SPLIT or source is None:
            return InputSplit(NO_SPLIT)
        records = split_records(source.limit, source.splits)
        data = {"split": number, "records": records}
        subject = f"{execution.task[0]}-{execution.task[1]}"
        self._services.event("input-split", subject, attempt=execution.attempt.attempt, data=data)
        return InputSplit(number, records)
