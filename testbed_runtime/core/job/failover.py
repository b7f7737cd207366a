"""Which vertices restart after a failure: Flink's pipelined regions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

Task = tuple[str, int]
"""(vertex, subtask)."""


def name_of(task: Task) -> str:
    """Return `<vertex>-<subtask>`, the task's name in the history."""
    return f"{task[0]}-{task[1]}"


class Link(Struct, frozen=True):
    """The link from a producer subtask to a consumer subtask that reads its result. Only a pipelined result
    joins their regions."""

    producer: Task
    consumer: Task
    pipelined: bool = True


class Regions:
    """The pipelined regions of an execution graph: tasks that pipelined results connect."""

    def __init__(self, tasks: Sequence[Task], links: Iterable[Link]) -> None:
        self._links = tuple(links)
        self._region = {task: task for task in tasks}
        for link in self._links:
            if link.pipelined:
                self._region[self._root(link.producer)] = self._root(link.consumer)
        self._members: dict[Task, list[Task]] = {}
        for task in tasks:
            self._members.setdefault(self._root(task), []).append(task)

    def _root(self, task: Task) -> Task:
        while self._region[task] != task:
            self._region[task] = self._region[self._region[task]]
            task = self._region[task]
        return task

    def region(self, task: Task) -> list[Task]:
        """Return the tasks of a task's region, in their original order."""
        return self._members[self._root(task)]

    def to_restart(self, failed: Iterable[Task], *, available: Callable[[Task, Task], bool]) -> list[Task]:
        """Return the tasks to restart: the regions of these tasks, upstream regions whose blocking result is not
        `available(producer, consumer)`, and all downstream regions."""
        between: dict[Task, list[Link]] = {}
        for link in self._links:
            producer, consumer = self._root(link.producer), self._root(link.consumer)
            if producer != consumer:
                between.setdefault(producer, []).append(link)
                between.setdefault(consumer, []).append(link)
        roots: set[Task] = set()
        waiting = [self._root(task) for task in failed]
        while waiting:
            root = waiting.pop()
            if root in roots:
                continue
            roots.add(root)
            for link in between.get(root, ()):
                if self._root(link.producer) == root:
                    waiting.append(self._root(link.consumer))
                elif not available(link.producer, link.consumer):
                    waiting.append(self._root(link.producer))
        return [task for task in self._region if self._root(task) in roots]
