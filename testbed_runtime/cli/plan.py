"""`headgate plan`: how many network buffers a job needs on each TaskManager, and which option to raise if some are missing."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import typer

from testbed_runtime.api.catalogue import SLOTS_KEY
from testbed_runtime.cli import exits, tables
from testbed_runtime.cli.options import (
    AsJson,
    FlinkConfFile,
    PlannedVersion,
    Settings,
    Variants,
    flink_conf,
    flink_options,
    known_version,
    show,
)
from testbed_runtime.core.errors import UserError
from testbed_runtime.core.grouping import grouped
from testbed_runtime.core.judgement.quantities import counted, format_value
from testbed_runtime.core.judgement.verdict import EXIT_CODES, Verdict
from testbed_runtime.core.values import MB

if TYPE_CHECKING:
    from testbed_runtime.api.document import Document
    from testbed_runtime.api.models import Part
    from testbed_runtime.core.job.bufferplan import BufferPlan, TaskManagerPlan
    from testbed_runtime.core.options import Options
    from testbed_runtime.core.trial.plan import TestbedPlan

P = TypeVar("P", bound="Part")
USED = "taskmanager."
"""The prefix of the options that the plan needs."""


def plan(  # noqa: PLR0917 - typer passes by name
    job: Annotated[Path, typer.Argument(help="A Scenario or a Testbed: a folder or a YAML file.")],
    variant: Variants = None,
    flink_version: PlannedVersion = None,
    conf: FlinkConfFile = None,
    settings: Settings = [],  # noqa: B006 - typer copies it
    as_json: AsJson = False,
) -> None:
    """Compute how many network buffers a job needs on each TaskManager: the minimum, the maximum, and what is missing.

    With --flink-conf, options and slots come from your configuration instead of the document. The job then gets as many TaskManagers
    as it needs, unless the file sets their number.

    Nothing is run. Exit code 0: the job can start; 1: buffers are missing, and the output names the options to change."""
    from testbed_runtime.core.processmemory import MemoryRefused

    described = []
    configured = _configured(conf, flink_version)
    for name, planned in _testbeds(job, variant or (), other_slots=conf is not None):
        testbed = configured(planned)
        options = flink_options(settings, testbed.flink_version)
        options = options.with_defaults(testbed.configuration)
        try:
            described.append({"variant": name, **describe(testbed, options)})
        except MemoryRefused as error:
            raise UserError(error.key, error.message, error.hint) from None
    shown = [{**one, "variant": name} for one, name in _same_together(described)]
    width = tables.terminal_width()
    show(
        {"variants": described}, ["\n\n".join("\n".join(lines(one, width)) for one in shown)], as_json=as_json
    )
    raise typer.Exit(EXIT_CODES[Verdict.FAIL] if any(one["missing"] for one in described) else exits.PASS)


def _same_together(described: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield each plan once, with the names of all variants that have it: those that differ only in their faults need the same
    buffers."""
    plans = grouped((json.dumps(one | {"variant": ""}), one) for one in described)
    for same in plans.values():
        yield same[0], ", ".join(one["variant"] for one in same)


def _configured(path: Path | None, flink_version: str | None) -> Callable[[TestbedPlan], TestbedPlan]:
    """Return a function that gives a testbed the version of `--flink-version` and the options and slots of `--flink-conf`. The file
    is read, and its findings are printed, once for each version."""
    replace = msgspec.structs.replace
    if path is None:
        version = None if flink_version is None else known_version(flink_version)
        return lambda testbed: replace(testbed, flink_version=version or testbed.flink_version)
    read = functools.cache(lambda version: flink_conf(path, flink_version, needed=USED, otherwise=version))

    def configured(testbed: TestbedPlan) -> TestbedPlan:
        from testbed_runtime.core.job.slots import needed_slots

        conf, version, found = read(testbed.flink_version)
        testbed = replace(testbed, flink_version=version, configuration=found.usable)
        if SLOTS_KEY not in conf.options:
            return testbed
        needed = len(needed_slots(testbed.job))
        replicas = conf.taskmanagers or math.ceil(needed / conf.slots)
        if replicas * conf.slots < needed:
            has = f"{replicas} with {counted(conf.slots, 'slot')} each are fewer than the {needed} slots of the job"
            raise UserError(
                f"{path}: spec.taskManager.replicas", has, f"write {math.ceil(needed / conf.slots)}"
            )
        return replace(testbed, slots=conf.slots, replicas=replicas)

    return configured


def _testbeds(path: Path, variants: Sequence[str], *, other_slots: bool) -> Iterator[tuple[str, TestbedPlan]]:
    """Yield the testbed of each variant. `other_slots`: the document may have too few slots, because a configuration replaces them."""
    from testbed_runtime.api.compile import compile_run, compile_testbed
    from testbed_runtime.api.kinds import Testbed
    from testbed_runtime.api.models import Scenario
    from testbed_runtime.cli import loading

    document = loading.read(loading.find(path))
    kind = document.data.get("kind")
    if kind not in ("Scenario", "Testbed"):
        raise UserError(f"{document.name}: kind", f"is {kind}", "name a Scenario or a Testbed")
    if kind == "Testbed":
        testbed = _valid(Testbed, document, other_slots=other_slots)
        yield document.data["metadata"]["name"], compile_testbed(testbed.spec, seed=1)
        return
    scenario = _valid(Scenario, document, other_slots=other_slots)
    plan = compile_run(scenario, scenario_folder=Path(document.name).parent, variants=variants, control=False)
    yield from {trial.variant: trial.testbed for trial in plan.trials}.items()


def _valid(model: type[P], document: Document, *, other_slots: bool) -> P:
    """Return the validated document. Print which of its options have no effect."""
    from testbed_runtime.api.job_rules import TooFewSlots
    from testbed_runtime.api.validate_kinds import validate_as
    from testbed_runtime.cli import loading

    findings = validate_as(model, document.data)
    if other_slots:
        errors = tuple(e for e in findings.errors if not isinstance(e, TooFewSlots))
        findings = msgspec.structs.replace(findings, errors=errors)
    resource = loading.valid(document, findings)
    for warning in loading.notes(findings):
        if warning.startswith(loading.WITHOUT_EFFECT):
            exits.warn(warning)
    return resource


def describe(testbed: TestbedPlan, options: Options) -> dict[str, Any]:
    """Return everything that the command prints about one testbed. Pure. Raises UserError and MemoryRefused."""
    from testbed_runtime.core.job.bufferplan import buffer_plan, enough_memory, groups_each
    from testbed_runtime.core.processmemory import memory_doubts

    graph = testbed.job
    found = buffer_plan(graph, testbed.replicas, testbed.slots, options)
    changes = enough_memory(options, found.worst.required) if found.missing else {}
    return {
        "flinkVersion": testbed.flink_version,
        "taskManagers": testbed.replicas,
        "slots": testbed.slots,
        "subtasks": sum(v.parallelism for v in graph.vertices),
        "channels": found.channels,
        "vertices": [
            {
                "name": v.name,
                "parallelism": v.parallelism,
                "maxParallelism": v.max_parallelism,
                "keyGroups": groups_each(v),
            }
            for v in graph.vertices
        ],
        "exchanges": _exchanges(found),
        "perTaskManager": [_taskmanager(t, found.available) for t in found.taskmanagers],
        "available": found.available,
        "segmentBytes": found.segment_bytes,
        "missing": found.missing,
        "raise": changes,
        "taskHeapMb": [_task_heap(options), _task_heap(options.with_values(changes))],
        "warnings": [
            *(f"{key}: {doubt}" for key, doubt in memory_doubts(options)),
            *_shortage(found, options),
        ],
    }


def _task_heap(options: Options) -> float:
    from testbed_runtime.core.processmemory import process_memory

    return round(process_memory(options).task_heap / MB, 3)


def _shortage(found: BufferPlan, options: Options) -> Iterator[str]:
    """Yield a warning and what to change, if the job can start but its pools cannot all grow to their maximum under load."""
    from testbed_runtime.core.job.bufferplan import enough_memory

    most = max(found.taskmanagers, key=lambda t: t.maximum)
    if not found.missing and most.maximum > found.available:
        changes = _written(enough_memory(options, most.maximum))
        yield (
            f"under load the pools of {most.name} could use {most.maximum} buffers; only {found.available} are "
            "available, which can reduce throughput" + (f" (enough is: {changes})" if changes else "")
        )


def _exchanges(found: BufferPlan) -> list[dict[str, Any]]:
    return [
        {
            "from": e.edge.source,
            "to": e.edge.target,
            "partitioning": e.edge.partitioning,
            "channels": e.channels,
            "gate": {
                "channels": e.gate_channels,
                "remoteChannels": [min(e.remote_channels), max(e.remote_channels)],
                "exclusivePerChannel": e.gate.exclusive_per_channel,
                "floating": [e.gate.min_floating, e.gate.max_floating],
                "most": max(e.remote_channels) * e.gate.exclusive_per_channel + e.gate.max_floating,
            },
            "partition": {"required": e.partition[0], "most": e.partition[1]},
        }
        for e in found.exchanges
    ]


def _taskmanager(plan: TaskManagerPlan, available: int) -> dict[str, Any]:
    return {
        "name": plan.name,
        "tasks": plan.tasks,
        "remoteChannels": plan.remote_channels,
        "localChannels": plan.local_channels,
        "exclusive": plan.exclusive,
        "required": plan.required,
        "most": plan.maximum,
        "share": round(plan.required / available, 4) if available else None,
    }


def lines(described: dict[str, Any], width: int) -> Iterator[str]:
    """Yield the description as text, with the TaskManagers that need the most and the fewest buffers. Pure."""
    size = (
        f"{described['variant']}: {described['subtasks']} subtasks, {described['channels']} channels on "
        f"{counted(described['taskManagers'], 'TaskManager')} with {counted(described['slots'], 'slot')} each "
        f"(Flink {described['flinkVersion']})"
    )
    yield from tables.wrapped(size, width)
    yield ""
    yield from _table(list(_vertex_rows(described["vertices"])), width)
    yield ""
    yield from _table(list(_exchange_rows(described["exchanges"])), width)
    ordered = sorted(described["perTaskManager"], key=lambda t: (-t["required"], t["name"]))
    yield ""
    yield from _table(list(_taskmanager_rows(ordered, described["available"])), width)
    for line in _verdict(described, ordered[0]):
        yield from tables.wrapped(line, width)


def _table(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    return tables.fitting(list(zip(*rows, strict=True)), width, numbers=True)


def _vertex_rows(vertices: Sequence[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    yield "vertex", "parallelism", "max parallelism", "key groups each"
    for v in vertices:
        yield v["name"], str(v["parallelism"]), str(v["maxParallelism"]), _span(v["keyGroups"])


def _exchange_rows(exchanges: Sequence[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    yield "exchange", "channels", "gate (remote × exclusive + floating)", "partition"
    for e in exchanges:
        gate, partition = e["gate"], e["partition"]
        buffers = (
            f"{_span(gate['remoteChannels'])} × {gate['exclusivePerChannel']} + {_span(gate['floating'])}"
        )
        name = f"{e['from']} → {e['to']} ({e['partitioning']})"
        yield name, str(e["channels"]), buffers, _span((partition["required"], partition["most"]))


def _taskmanager_rows(ordered: Sequence[dict[str, Any]], available: int) -> Iterator[tuple[str, ...]]:
    yield "TaskManager", "tasks", "remote", "local", "required", "at most", "available"
    for one, which in ((ordered[0], "most"), (ordered[-1], "fewest"))[: len(ordered)]:
        counts = (one[key] for key in ("tasks", "remoteChannels", "localChannels", "required", "most"))
        yield f"{one['name']} ({which})", *map(str, counts), str(available)


def _verdict(described: dict[str, Any], worst: dict[str, Any]) -> Iterator[str]:
    size = described["available"] * described["segmentBytes"] / MB
    yield ""
    buffers = f"{described['available']} buffers of {described['segmentBytes']} bytes ({size:.1f} MB)"
    if described["missing"]:
        yield (
            f"{worst['name']} needs {worst['required']} of {buffers}: {described['missing']} {'is' if described['missing'] == 1 else 'are'} missing, "
            "and the job fails "
            "with `Insufficient number of network buffers`."
        )
        changes = _written(described["raise"])
        if changes:
            now, then = described["taskHeapMb"]
            yield f"This is enough: {changes} (task heap: {then:g} MB instead of {now:g} MB)"
        else:
            yield "No larger fraction is enough: use more TaskManagers."
    else:
        shares = [t["share"] for t in described["perTaskManager"]]
        mean = sum(shares) / len(shares)
        yield (
            f"{worst['name']} needs {worst['required']} of {buffers}: {format_value(worst['share'], 'ratio')}. The average "
            f"of all TaskManagers is {format_value(mean, 'ratio')}."
        )
    for warning in described["warnings"]:
        yield f"warning: {warning}"


def _written(changes: Mapping[str, str]) -> str:
    """Return options as arguments of a command."""
    return " ".join(f"-D '{key}={value}'" for key, value in changes.items())


def _span(pair: tuple[int, int] | list[int]) -> str:
    low, high = pair
    return f"{low}" if low == high else f"{low} to {high}"
