"""A fault in words: what was asked, what was measured while it lasted, what was measured after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from testbed_runtime.report import words

Params = Mapping[str, Any]
SHOWN_PATHS = 2
"""Probed paths that are told one by one; of more, the worst."""
_STATES = {"T": "stopped", "gone": "gone", "Z": "gone", "R": "running", "S": "running", "D": "running"}
_BOTH = {"to": " towards it", "from": " away from it", "both": ""}


def asked(fault: Mapping[str, Any]) -> str:
    """`8 s pause of tm-2`; the kind and its parameters for one that has no sentence here. `fault`: of timeseries.json or
    the manifest."""
    said = fault.get("asked") or {}
    params = fault.get("params") or said.get("params") or {}
    who = targets_in_words(fault.get("targets") or ())
    duration = fault.get("duration_s", said.get("duration_s"))
    lasting = "" if duration is None else words.seconds_short(float(duration))
    tell = _ASKED.get(str(fault.get("kind", "")))
    if tell is None:
        more = words.mapping(params)
        return f"{fault.get('kind', '')} of {who}" + (f" ({more})" if more != words.DASH else "")
    direction = _BOTH.get(str(said.get("direction") or fault.get("direction") or "both"), "")
    return tell(params, who, lasting).replace("{direction}", direction).strip()


def targets_in_words(targets: Sequence[str]) -> str:
    """`tm-2`, `tm-0 and tm-1`, `tm-0, tm-1 and tm-2`; links as `tm-0 and tm-1`'s own arrow."""
    told = [str(t).replace("->", " → ") for t in targets]
    if not told:
        return "nobody yet"
    return told[0] if len(told) == 1 else f"{', '.join(told[:-1])} and {told[-1]}"


def _for(lasting: str) -> str:
    return f" for {lasting}" if lasting else ""


def _latency(params: Params, who: str, lasting: str) -> str:
    way = "round trip" if params.get("mode") == "round-trip" else "way"
    jitter = float(params.get("jitter_s") or 0.0)
    more = f" ± {words.seconds_short(jitter)}" if jitter else ""
    delay = words.seconds_short(float(params.get("latency_s") or 0.0))
    return f"{delay}{more} more on each {way} of {who}{{direction}}{_for(lasting)}"


def _bursts(params: Params) -> str:
    return f", {params['burst']} in a row on average" if (params.get("burst") or 1) > 1 else ""


def _registration(params: Params, who: str, lasting: str) -> str:
    del lasting
    of = f" of {params['vertex']}" if params.get("vertex") else ""
    if params.get("attempts"):
        return f"the first {params['attempts']} requests for partitions{of} on {who} find nothing"
    return f"partitions{of} on {who} are registered {words.seconds_short(float(params.get('delay_s') or 0))} late"


_ASKED: dict[str, Callable[[Params, str, str], str]] = {
    "process.pause": lambda _, who, lasting: f"{lasting} pause of {who}",
    "process.kill": lambda _, who, __: f"kill of {who}",
    "pod.delete": lambda _, who, __: f"the pod of {who} is deleted",
    "pod.evict": lambda _, who, __: f"the pod of {who} is evicted",
    "jobmanager.pause": lambda _, __, lasting: f"{lasting} pause of the JobManager",
    "jobmanager.kill": lambda _, __, lasting: f"kill of the JobManager, started again after {lasting}",
    "network.latency": _latency,
    "network.loss": lambda p, who, t: f"{p.get('percent')} % of the packets of {who} lost{_bursts(p)}{{direction}}{_for(t)}",
    "network.duplicate": lambda p, who, t: f"{p.get('percent')} % of the packets of {who} arrive twice{{direction}}{_for(t)}",
    "network.reorder": lambda p, who, t: f"{p.get('percent')} % of the packets of {who} are overtaken{{direction}}{_for(t)}",
    "network.corrupt": lambda p, who, t: f"one bit flips in {p.get('percent')} % of the packets of {who}{{direction}}{_for(t)}",
    "network.partition": lambda _, who, t: f"nothing passes between {who} and its peers{{direction}}{_for(t)}",
    "network.reset": lambda _, who, t: f"connections of {who} are reset{_for(t)}",
    "network.stall": lambda _, who, t: f"bytes of {who} are held{{direction}}{_for(t)}",
    "network.half-open": lambda _, who, t: f"the ends of {who} are gone, its peers hear nothing of it{_for(t)}",
    "network.bandwidth": lambda p, who, t: f"at most {words.binary(float(p.get('bytes_per_s') or 0))}/s for {who}{{direction}}{_for(t)}",
    "frames.delay": lambda p, who, t: f"{p.get('frame_class')} frames of {who} {words.seconds_short(float(p.get('delay_s') or 0))} later{{direction}}{_for(t)}",
    "frames.drop": lambda p, who, t: f"{p.get('percent')} % of the {p.get('frame_class')} frames of {who} dropped{{direction}}{_for(t)}",
    "frames.withhold-credit": lambda _, who, t: f"credit of {who} is withheld{{direction}}{_for(t)}",
    "registration.delay": _registration,
    "heartbeats.mute": lambda p, who, t: f"heartbeat {p.get('direction')}s of {who} are swallowed{_for(t)}",
    "rpc.delay": lambda p, who, t: f"each {p.get('method')} on {who} {words.seconds_short(float(p.get('delay_s') or 0))} later{_for(t)}",
    "store.slow": lambda p, who, t: f"each object of the checkpoint store {words.seconds_short(float(p.get('delay_s') or 0))} later for {who}{_for(t)}",
    "store.failing": lambda _, who, t: f"the checkpoint store refuses writes of {who}{_for(t)}",
}  # fmt: skip


def measured(values: Mapping[str, Any]) -> str:
    """What the probes, taps, counters or the process table saw while it lasted; a dash for nothing."""
    for key, tell in (("paths", _paths), ("counters", _counters), ("states", _states), ("sent", _frames)):
        if values.get(key):
            return tell(values)
    return words.mapping(values)


def after(values: Mapping[str, Any]) -> str:
    """What was measured when it was over; empty for nothing."""
    if values.get("paths"):
        added = [p.get("added_s") for p in values["paths"].values() if isinstance(p, Mapping)]
        known = [a for a in added if a is not None]
        return f"round trips {_signed(max(known))} against before" if known else ""
    running = {n: s for n, s in (values.get("states") or {}).items() if _STATES.get(s, s) != "gone"}
    return _states({"states": running}) if running else ""


def _states(values: Mapping[str, Any]) -> str:
    states = ", ".join(f"{name} {_STATES.get(state, state)}" for name, state in values["states"].items())
    when = values.get("after_s")
    return states if when is None else f"{states} {words.seconds(float(when))} after it began"


def _paths(values: Mapping[str, Any]) -> str:
    paths = {name: path for name, path in values["paths"].items() if isinstance(path, Mapping)}
    told = [f"{name.replace('->', ' → ')}: {_path(path)}" for name, path in paths.items()]
    more = len(told) - SHOWN_PATHS
    return "; ".join(told[:SHOWN_PATHS]) + (f"; {more} more paths" if more > 0 else "")


def _path(path: Mapping[str, Any]) -> str:
    if "added_round_trip_s" in path:
        return (
            f"round trip {_signed(path['added_round_trip_s'])} ({words.seconds_short(path['asked_round_trip_s'])} asked, "
            f"{path.get('probes', 0)} probes)"
        )
    if "silent_for_s" in path:
        return f"no answer for {words.seconds(path['silent_for_s'])}, connection {path.get('connection', 'open')}"
    if "measured_bytes_per_s" in path:
        return f"{words.binary(path['measured_bytes_per_s'])}/s"
    return _packets(path) or words.mapping(path)


def _packets(path: Mapping[str, Any]) -> str:
    """What probes of one packet each say of either way; empty when they say something else."""
    told: list[str] = []
    for way, word in (("forward", "there"), ("backward", "back")):
        if f"{way}_added_s" in path:
            asked = words.seconds_short(path[f"{way}_asked_s"])
            added = f"{1000 * path[f'{way}_added_s']:+.2f} ms"
            told.append(
                f"{added} on the way {word} ({asked} asked, median of {path.get('probes', 0)} probes)"
            )
        if path.get(f"{way}_lost_percent") is not None:
            low, high = path[f"{way}_interval_percent"]
            asked, lost = path[f"{way}_asked_percent"], path[f"{way}_lost_percent"]
            told.append(
                f"{lost:.3g} % lost on the way {word} ({asked:g} % asked, {low:.3g} … {high:.3g} % with 99.99 % confidence, "
                f"{path.get(f'{way}_probes', 0)} probes)"
            )
    return ", ".join(told)


def _counters(values: Mapping[str, Any]) -> str:
    """Of a channel fault: what it delayed, swallowed or refused, at each process where it did."""
    told = []
    for name, counts in values["counters"].items():
        parts = [
            f"{counts[k]} {k.replace('_', ' ')}" for k in ("swallowed", "failed", "given_up") if counts.get(k)
        ]
        if counts.get("delayed"):
            parts.insert(0, f"{counts['delayed']} delayed, {words.seconds(counts.get('delay_s'))} in all")
        if counts.get("holding"):
            parts.append(f"{counts['holding']} still held")
        if parts:
            told.append(f"{name}: {', '.join(parts)}")
    return "; ".join(told) or "nothing came that it could hit"


def _frames(values: Mapping[str, Any]) -> str:
    """By the taps at both ends."""
    median = values.get("delay_median_s")
    late = "" if median is None else f", {words.seconds(median)} on their way (median)"
    return f"{words.count(values['sent'])} frames sent, {words.count(values.get('missing', 0))} missing{late}"


def _signed(seconds: float) -> str:
    return ("+" if seconds >= 0 else "−") + words.seconds(abs(seconds))
