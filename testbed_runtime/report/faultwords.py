"""A fault in words: what was requested, what was measured while it lasted, and after it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from testbed_runtime.core.faults.kinds import KINDS
from testbed_runtime.core.faults.vocabulary import Kind, Parameter, Type
from testbed_runtime.core.judgement import quantities
from testbed_runtime.core.judgement.series import FaultSeen
from testbed_runtime.report import words

SHOWN_PATHS = 2
"""Maximum probed paths that are shown one by one. The others are only counted."""
_STATES = {
    "T": "stopped",
    "gone": "gone",
    "Z": "gone",
    "R": "running",
    "S": "running",
    "D": "running",
    "X": "ending",
}
_DIRECTIONS = {"to": " towards it", "from": " away from it", "both": ""}
_IN_ONE_DIRECTION = {"in each direction": "one way"}
"""Words of a choice for a fault that names both directions, and the words for a fault that names one."""
_OPTIONAL = re.compile(r"\[([^]]*)\]")
_PLACEHOLDER = re.compile(r"\{(\w+)\}")

COUNTED = {"swallowed": "dropped", "failed": "failed", "given_up": "given up", "cut_short": "cut short"}
"""Counters of the calls that a fault affected, and how a report names them."""


def asked(fault: FaultSeen) -> str:
    """Return the request in a sentence: `8 s pause of tm-2`. See Kind.asked."""
    params = fault.asked.get("params") or {}
    targets = targets_in_words(fault.targets)
    kind = KINDS.get(fault.kind)
    if kind is None:
        more = words.mapping(params)
        return f"{fault.kind} of {targets}" + (f" ({more})" if more != quantities.DASH else "")
    duration = fault.asked.get("duration_s") if fault.duration_s is None else fault.duration_s
    lasting = "" if duration is None else words.seconds_short(float(duration))
    direction = str(fault.asked.get("direction") or "both")
    values = {
        "targets": targets,
        "duration": lasting,
        "for": f" for {lasting}" if lasting else "",
        "direction": _DIRECTIONS.get(direction, ""),
    }
    values |= {p.name: _value(p, params.get(p.key)) for p in kind.parameters}
    if direction != "both":
        values = {name: _IN_ONE_DIRECTION.get(text, text) for name, text in values.items()}
    given = {p.name for p in kind.parameters if p.is_given(params)}
    return _sentence(kind, given).format_map(values).strip()


def _sentence(kind: Kind, given: Collection[str]) -> str:
    """Return the first of the kind's sentences whose parameters are given, without the optional parts that are not."""
    sentences = (kind.asked,) if isinstance(kind.asked, str) else kind.asked
    names = {p.name for p in kind.parameters}
    needs = [names & set(_PLACEHOLDER.findall(_OPTIONAL.sub("", s))) for s in sentences]
    chosen = next((s for s, need in zip(sentences, needs, strict=True) if need <= set(given)), sentences[-1])
    return _OPTIONAL.sub(
        lambda part: part[1] if set(_PLACEHOLDER.findall(part[1])) <= set(given) else "", chosen
    )


def _value(parameter: Parameter, value: Any) -> str:
    if value is None:
        value = 0 if parameter.type is Type.DURATION else "?"
    if parameter.type is Type.DURATION:
        return words.seconds_short(float(value))
    if parameter.key == "bytes_per_s" and value != "?":
        return words.binary(float(value))
    return parameter.choices.get(str(value), str(value))


def targets_in_words(targets: Sequence[str]) -> str:
    """`tm-2`, `tm-0 and tm-1`, `tm-0, tm-1 and tm-2`; links with an arrow."""
    names = [str(t).replace("->", " → ") for t in targets]
    if not names:
        return "no process"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def measured(values: Mapping[str, Any]) -> str:
    """Return what probes, taps, counters or the process table showed while the fault lasted; a dash for nothing."""
    for key, describe in (("paths", _paths), ("counters", _counters), ("states", _states), ("sent", _frames)):
        if values.get(key):
            return describe(values)
    return words.mapping(values)


def after(values: Mapping[str, Any]) -> str:
    """Return what was measured after the fault; empty without measurements."""
    if values.get("paths"):
        added = [p.get("added_s") for p in values["paths"].values() if isinstance(p, Mapping)]
        known = [a for a in added if a is not None]
        return f"round trips {_signed(max(known))} compared with before" if known else ""
    running = {n: s for n, s in (values.get("states") or {}).items() if _STATES.get(s, s) != "gone"}
    return _states({"states": running}) if running else ""


def _states(values: Mapping[str, Any]) -> str:
    states = ", ".join(f"{name} {_STATES.get(state, state)}" for name, state in values["states"].items())
    when = values.get("after_s")
    return states if when is None else f"{states} {quantities.seconds(float(when))} after the fault began"


def _paths(values: Mapping[str, Any]) -> str:
    paths = {name: path for name, path in values["paths"].items() if isinstance(path, Mapping)}
    parts = [f"{name.replace('->', ' → ')}: {_path(path)}" for name, path in paths.items()]
    more = len(parts) - SHOWN_PATHS
    return "; ".join(parts[:SHOWN_PATHS]) + (f"; {more} more paths" if more > 0 else "")


def _path(path: Mapping[str, Any]) -> str:
    if "added_round_trip_s" in path:
        added, asked = _signed(path["added_round_trip_s"]), words.seconds_short(path["asked_round_trip_s"])
        return f"round trip {added} ({asked} requested, {path.get('probes', 0)} probes)"
    if "silent_for_s" in path:
        return f"no answer for {quantities.seconds(path['silent_for_s'])}, connection {path.get('connection', 'open')}"
    if "measured_bytes_per_s" in path:
        return f"{words.binary(path['measured_bytes_per_s'])}/s"
    return _packets(path) or words.mapping(path)


def _packets(path: Mapping[str, Any]) -> str:
    """Return what single-packet probes show for each direction; empty when they measured something else."""
    parts: list[str] = []
    for way, word in (("forward", "there"), ("backward", "back")):
        if f"{way}_added_s" in path:
            asked = words.seconds_short(path[f"{way}_asked_s"])
            added = f"{1000 * path[f'{way}_added_s']:+.2f} ms"
            probes = path.get("probes", 0)
            parts.append(f"{added} on the way {word} ({asked} requested, median of {probes} probes)")
        if path.get(f"{way}_lost_percent") is not None:
            low, high = path[f"{way}_interval_percent"]
            asked, lost = path[f"{way}_asked_percent"], path[f"{way}_lost_percent"]
            certain = (
                f"{low:.3g} … {high:.3g} % with 99.99 % confidence, {path.get(f'{way}_probes', 0)} probes"
            )
            parts.append(f"{lost:.3g} % lost on the way {word} ({asked:g} % requested, {certain})")
    return ", ".join(parts)


def _counters(values: Mapping[str, Any]) -> str:
    """Return what a channel fault delayed, dropped or refused, for each process where it did."""
    lines = []
    for name, counts in values["counters"].items():
        parts = []
        if counts.get("delayed"):
            parts.append(f"{counts['delayed']} delayed, {quantities.seconds(counts.get('delay_s'))} in all")
        parts += [f"{counts[key]} {text}" for key, text in COUNTED.items() if counts.get(key)]
        if counts.get("holding"):
            parts.append(f"{counts['holding']} still held")
        if parts:
            lines.append(f"{name}: {', '.join(parts)}")
    return "; ".join(lines) or "nothing arrived that it could affect"


def _frames(values: Mapping[str, Any]) -> str:
    """Return what the taps at both ends counted."""
    median = values.get("delay_median_s")
    late = "" if median is None else f", {quantities.seconds(median)} on their way (median)"
    return f"{quantities.count(values['sent'])} frames sent, {quantities.count(values.get('missing', 0))} missing{late}"


def _signed(seconds: float) -> str:
    return ("+" if seconds >= 0 else "−") + quantities.seconds(abs(seconds))
