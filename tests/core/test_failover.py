"""Failover regions."""

import pytest

from testbed_runtime.core.job.failover import Link, Regions

SIX = V1, V2, V3, V4, V5, V6 = tuple(("v", i) for i in range(1, 7))


def regions(links, tasks=(V1, V2, V3, V4, V5)):
    return Regions(list(tasks), [Link(a, b, pipelined) for a, b, pipelined in links])


def restart(built, failed, *, lost=None, gone=()):
    roots = [failed] if lost is None else [failed, lost]
    return set(built.to_restart(roots, available=lambda p, c: (p, c) not in gone))


def test_a_pipelined_job_is_one_region():
    """All to all, everything restarts."""
    built = regions([(V1, V3, True), (V2, V3, True), (V3, V4, True), (V3, V5, True)])
    assert restart(built, V4) == {V1, V2, V3, V4, V5}


def test_parallel_pipelines_are_regions_of_their_own():
    """Forward edges only."""
    built = regions([(V1, V3, True), (V2, V4, True)])
    assert restart(built, V1) == {V1, V3}
    assert restart(built, V5) == {V5}


def test_a_failed_region_takes_all_regions_downstream_along():
    """Transitively, over blocking results."""
    built = regions([(V1, V2, False), (V2, V3, False), (V3, V4, False)])
    assert restart(built, V2) == {V2, V3, V4}


def test_J_13_a_result_that_cannot_be_read_restarts_its_producer_too():
    """v1→v4, v1→v5, v2→v4, v3→v5 blocking; v4 cannot read v1's: {v1, v4, v5}."""
    built = regions([(V1, V4, False), (V1, V5, False), (V2, V4, False), (V3, V5, False)])
    assert restart(built, V4, lost=V1) == {V1, V4, V5}


def test_J_14_upstream_regions_restart_only_if_their_result_is_gone():
    """v1→v3, v2→v3."""
    built = regions([(V1, V3, False), (V2, V3, False)], (V1, V2, V3))
    assert restart(built, V3) == {V3}
    assert restart(built, V3, gone={(V1, V3)}) == {V1, V3}
    assert restart(built, V3, gone={(V1, V3), (V2, V3)}) == {V1, V2, V3}


def test_J_53_a_failure_inside_a_region_restarts_it_and_what_reads_it():
    """testRegionFailoverForRegionInternalErrors: {v1, v2} ⇒ {v4, v5} and v3 ⇒ v6, all blocking and available."""
    built = regions(
        [(V1, V4, False), (V1, V5, False), (V2, V4, False), (V2, V5, False), (V3, V6, False)], SIX
    )
    restarts = {V1: {V1, V4, V5}, V2: {V2, V4, V5}, V3: {V3, V6}, V4: {V4}, V5: {V5}, V6: {V6}}
    assert {failed: restart(built, failed) for failed in SIX} == restarts


def test_J_54_regions_of_several_tasks_restart_as_a_whole():
    """testRegionFailoverForMultipleVerticesRegions: v1 → v2 ⇒ v3 → v4 ⇒ v5 → v6."""
    built = regions([(V1, V2, True), (V2, V3, False), (V3, V4, True), (V4, V5, False), (V5, V6, True)], SIX)
    assert restart(built, V3) == {V3, V4, V5, V6}
    assert restart(built, V3, lost=V2) == set(SIX)


ALL_TO_ALL = "a1-b1 a1-b2 a2-b1 a2-b2 "
JOINS = "1-5 2-5 3-6 4-6 "


@pytest.mark.parametrize(
    ("links", "expected"),
    [
        pytest.param("1 2 3", "1 2 3", id="J-117"),
        pytest.param("a1-b1 a2-b2 a3-b3", "a1b1 a2b2 a3b3", id="J-118"),
        pytest.param(ALL_TO_ALL + "b1-c1 b1-c2 b2-c1 b2-c2", "a1a2b1b2c1c2", id="J-119"),
        pytest.param(JOINS + "5-7 6-7", "1234567", id="J-120"),
        pytest.param("1-2 1-3 2-4 2-5 3-6 3-7", "1234567", id="J-121"),
        pytest.param(ALL_TO_ALL + "b1=c1 b2=c2", "a1a2b1b2 c1 c2", id="J-122"),
        pytest.param(ALL_TO_ALL + "b1=c1 b1=c2 b2=c1 b2=c2", "a1a2b1b2 c1 c2", id="J-123"),
        pytest.param(JOINS + "5=7 6=7", "125 346 7", id="J-124"),
        pytest.param("1=2 1-3 2-4 3-4", "1234", id="J-125"),
    ],
)
def test_J_117_to_J_125_pipelined_results_join_their_tasks_to_regions(links, expected):
    """SchedulingPipelinedRegionComputeUtilTest: `-` is a pipelined result and `=` a blocking one. Each word is a region."""
    pairs = [link.replace("=", "-").split("-") for link in links.split()]
    names = sorted({name for pair in pairs for name in pair})
    joined = [
        Link((one[0], 0), (one[1], 0), "-" in link)
        for one, link in zip(pairs, links.split(), strict=True)
        if len(one) > 1
    ]
    built = Regions([(name, 0) for name in names], joined)
    found = {"".join(sorted(name for name, _ in built.region((name, 0)))) for name in names}
    assert found == set(expected.split())
