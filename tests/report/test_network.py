"""The report's figures about the network itself, before any fault."""

from __future__ import annotations

from testbed_runtime.core.trial.manifest import RunManifest
from testbed_runtime.report.build import network_of
from tests.manifests import run_manifest


def reading(round_trip_s: float | None, **more: object) -> dict[str, object]:
    return {"probes": 50, "round_trip_s": round_trip_s, "lost_percent": 0.0, "bytes_per_s": None, **more}


def manifest(*readings: dict[str, object]) -> RunManifest:
    return run_manifest({"trial": f"t{n}", "paths": found} for n, found in enumerate(readings))


def test_a_path_is_reported_once_with_the_medians_of_all_trials():
    """Round trip, loss and rate; a trial that measured nothing, or could not, counts for nothing."""
    found = network_of(
        manifest(
            {"tm-0->tm-1": reading(0.0002, bytes_per_s=400e6)},
            {"tm-0->tm-1": reading(0.0004, bytes_per_s=200e6, lost_percent=2.0)},
            {"tm-0->tm-1": reading(0.0003, bytes_per_s=300e6)},
            {"tm-0->tm-1": reading(None, lost_percent=100.0, error="refused")},
            {},
        )
    )
    assert list(found) == [
        ("Network before the faults, tm-0->tm-1", "round trip 300 µs, 0 % lost, 300 MB/s round trip")
    ]


def test_a_rate_that_was_not_measured_is_not_reported():
    """Some probes did not come back, so nothing large was sent; each path has its line."""
    found = dict(network_of(manifest({"a->b": reading(0.05, lost_percent=4.0), "loopback": reading(0.0001)})))
    assert found == {
        "Network before the faults, a->b": "round trip 50.0 ms, 4 % lost",
        "Network before the faults, loopback": "round trip 100 µs, 0 % lost",
    }


def test_a_run_that_measured_no_path_tells_nothing():
    """There are no figures in virtual time or before the first trial."""
    assert list(network_of(run_manifest())) == []
    assert list(network_of(run_manifest([{"trial": "t"}]))) == []
