"""`headgate exchange` with Flink's own classes as the peer, 2.x and 1.20: both sides have the same counts and hashes."""

from __future__ import annotations

import random

import pytest

from tests.interop.flink import AGREED, OTHER_PARTITION

pytestmark = pytest.mark.processes

REUSE_OFF = {"taskmanager.network.tcp-connection.enable-reuse-across-jobs": "false"}
EVENTS = (
    "r2000:100,aligned:1,r10:0-200000,unaligned:2,r100:100,atleastonce:3,r1000:50,timeoutable:4:30000,r100:10,"
    "cancel:4,priority-cancel:5,superstep,segment,note:hi,descriptor:1:2,metadata:0,savepoint:6,native:7,"
    "suspend:8,r100:1,terminate:9,forced:10,full:11,r10:0"
)
WATERMARKS = "r100:100,watermark:true,r1000:100,watermark:false,r100:100,watermark:true,watermark:true,r5:5"
LONG = pytest.mark.soak
CASES_OF_SERVE = {
    "the-issues-example": ({"subpartitions": 2, "records": 10_000}, {}),
    "no-exclusive-buffers-no-reuse": (
        {"subpartitions": 4, "records": 5_000},
        {"exclusive": 0, "floating": 3, "flink": REUSE_OFF},
    ),
    "records-larger-than-segments": ({"records": 50, "record_bytes": 100_000}, {}),
    "one-byte-records": ({"records": 20_000, "record_bytes": 1}, {"exclusive": 0}),
    "empty-records": ({"records": 20_000, "record_bytes": 0}, {}),
    "no-records": ({"records": 0}, {}),
    "new-buffer-size": ({"records": 30_000}, {"announce": 1024}),
}


def serve_agrees(flink, ours, theirs, *words):
    ours = {"subpartitions": 1, "record_bytes": 100, "seed": 7} | ours
    with flink.headgate("serve", *words, port=0, **ours) as server:
        options = {k: ours[k] for k in ("subpartitions", "record_bytes")} | theirs
        with flink.fetch(server.port, **options) as client:
            read = client.result().subpartitions
        done = server.result()
    assert done.returncode == 0, done.stderr
    assert [r["error"] for r in read] == [""] * ours["subpartitions"]
    assert [r["records"] for r in read] == [ours["records"]] * ours["subpartitions"]
    assert [r["events"] for r in read] == [["EndOfData", "EndOfPartitionEvent"]] * ours["subpartitions"]
    assert [[s[k] for k in AGREED] for s in done.subpartitions] == [[r[k] for k in AGREED] for r in read]
    return read


def fetch_agrees(flink, script, ours, theirs, *words):
    theirs = {"subpartitions": 1} | theirs
    with flink.serve(script=script, **theirs) as server:
        clients = [
            flink.headgate("fetch", *words, port=server.port, subpartition=i, **ours)
            for i in range(theirs["subpartitions"])
        ]
        read = []
        for client in clients:
            with client:
                done = client.result()
                assert (done.returncode, done.stderr) == (0, "")
                read += done.subpartitions
        written = server.result().subpartitions
    for ours_, theirs_ in zip(read, written, strict=True):
        assert [ours_[k] for k in AGREED if k != "buffers"] == [theirs_[k] for k in AGREED if k != "buffers"]
        assert ours_["events"] == len(theirs_["events"])
    return read


@pytest.mark.parametrize(
    "case", [*list(CASES_OF_SERVE)[:3], *(pytest.param(c, marks=LONG) for c in list(CASES_OF_SERVE)[3:])]
)
def test_flink_reads_what_headgate_serves(flink, case):
    """Bytes, buffers, records and hashes agree; Flink's gate and `serve` end without an error."""
    serve_agrees(flink, *CASES_OF_SERVE[case])


@pytest.mark.parametrize(
    ("exclusive", "floating", "subpartitions"), [(2, 8, 1), pytest.param(0, 1, 1, marks=LONG), (0, 3, 3)]
)
def test_headgate_fetches_every_event_that_flink_can_write(flink, exclusive, floating, subpartitions):
    """Barriers of every kind, markers, events that are not interpreted, records cut at any position: nothing is lost."""
    fetch_agrees(
        flink, EVENTS, {"exclusive": exclusive, "floating": floating}, {"subpartitions": subpartitions}
    )


@pytest.mark.soak
def test_headgate_resumes_what_only_recovery_and_watermarks_block(flink):
    """The end of a recovered state and an aligned watermark block Flink's producer until the consumer resumes it."""
    fetch_agrees(flink, "recovered,r1000:100", {"exclusive": 0}, {})
    if flink.name == "2.x":
        fetch_agrees(flink, WATERMARKS, {}, {})


@pytest.mark.soak
def test_a_barrier_that_times_out_behind_data_arrives_as_an_unaligned_one(flink):
    """Flink turns the queued aligned barrier into a priority event; the stream stays whole."""
    script = "r3000:1000,timeoutable:3:30000,timeout:3,r1000:100,timeoutable:4:3000,r9000:100,timeout:4,r1:1"
    fetch_agrees(flink, script, {}, {})


@pytest.mark.soak
def test_other_segment_sizes_are_set_at_both_ends(flink):
    """With the same option on both sides, larger and smaller segments agree; without it, the message names the option."""
    large = {"taskmanager.memory.segment-size": "64kb"}
    word = "-Dtaskmanager.memory.segment-size=64kb"
    serve_agrees(flink, {"records": 3000}, {"flink": large}, word)
    fetch_agrees(flink, "r3000:100", {}, {"flink": large}, word)
    with (
        flink.serve(script="r3000:100", flink=large) as server,
        flink.headgate("fetch", port=server.port) as client,
    ):
        done = client.result()
    assert done.returncode == 2
    assert "taskmanager.memory.segment-size must be the same at both ends" in done.stderr


# ---- failures ----------------------------------------------------------------------------------------------


def test_flink_hears_of_a_partition_that_is_not_there(flink):
    """PartitionNotFound after the producer's timeout, one check of the state, PartitionNotFound again; then served."""
    words = ("-Dtaskmanager.network.partition-request-timeout=300 ms",)
    with flink.headgate("serve", *words, port=0, records=100) as server:
        with flink.fetch(
            server.port,
            partition=OTHER_PARTITION,
            flink={"taskmanager.network.request-backoff.max": "400"},
        ) as lost:
            done = lost.result()
        assert '"stateChecks": 1' in done.stdout
        assert "PartitionNotFoundException: Partition a1a0a0" in done.subpartitions[0]["error"]
        with flink.fetch(server.port, first=3) as beyond:
            error = beyond.result().subpartitions[0]["error"]
        assert "Fatal error at remote task manager" in error
        assert "java.lang.IndexOutOfBoundsException: Subpartition not found. Index: 3, Size: 1" in error
        with flink.fetch(server.port) as client:
            assert client.result().subpartitions[0]["records"] == 100
        assert server.result().returncode == 0


def test_headgate_hears_of_a_partition_that_is_not_there(flink):
    """Flink's ErrorResponse is read; the request is repeated while the backoff lasts, and a late partition is served."""
    short = {"taskmanager.network.partition-request-timeout": "300 ms"}
    with flink.serve(absent=1, flink=short) as server:
        words = ("-Dtaskmanager.network.request-backoff.max=400",)
        with flink.headgate("fetch", *words, port=server.port) as client:
            done = client.result()
    assert done.returncode == 2
    assert "PartitionNotFoundException: Partition a0a0" in done.stderr
    # the consumer's budget includes the producer's timeout, so both need the same value
    words = ("-Dtaskmanager.network.partition-request-timeout=300 ms",)
    fetch_agrees(flink, "r1000:100", {}, {"late": 1500, "flink": short}, *words)


@pytest.mark.soak
def test_headgate_reads_the_cause_in_flinks_error(flink):
    """The message contains the exception of Flink's fatal ErrorResponse, decoded from Java serialization."""
    with (
        flink.serve(script="r10:10") as server,
        flink.headgate("fetch", port=server.port, subpartition=5) as client,
    ):
        done = client.result()
    assert done.returncode == 2
    assert "IndexOutOfBoundsException: Subpartition not found. Index: 5, Size: 1" in done.stderr


def test_a_reader_of_flink_that_leaves_ends_serve_with_a_sentence(flink):
    """After CancelPartitionRequest or the exit of its process, no reader can read the rest: `serve` reports it and exits."""
    with flink.headgate("serve", port=0, records=10_000_000) as server:
        with flink.fetch(server.port, leave=10) as client:
            client.result()
        done = server.result(10)
    assert done.returncode == 2
    assert "the reader of subpartition 0 left before the end of the partition" in done.stderr


def test_a_producer_of_flink_that_ends_fails_the_fetch(flink):
    """A failed partition is silent on the wire; the close of its connection is not."""
    with (
        flink.serve(script="r1000:100,fail:boom,sleep:500") as server,
        flink.headgate("fetch", port=server.port) as client,
    ):
        server.result()
        done = client.result(10)
    assert done.returncode == 2
    # before the partition failed, or after it
    assert "RemoteTransportException" in done.stderr or "PartitionNotFoundException" in done.stderr


# ---- the long matrix -----------------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.parametrize("exclusive", [2, 0])
@pytest.mark.parametrize(
    ("subpartitions", "records", "record_bytes"), [(32, 2_000, 100), (1, 3_000_000, 100), (2, 100, 1_000_000)]
)
def test_many_records_and_subpartitions_to_flink(flink, exclusive, subpartitions, records, record_bytes):
    """Every subpartition has its own gate on a shared connection."""
    ours = {"subpartitions": subpartitions, "records": records, "record_bytes": record_bytes}
    serve_agrees(flink, ours, {"exclusive": exclusive})


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(12))
def test_random_scripts_of_flink_are_read_whole(flink, seed):
    """With any order of records and events and any credit, everything that Flink wrote arrives."""
    rng = random.Random(seed)
    steps = [f"r{rng.randrange(1, 3000)}:{rng.choice(['0', '1', '100', '0-5000', '1000-70000'])}"]
    steps = [step if "70000" not in step else "r20:1000-70000" for step in steps]
    kinds = [
        "aligned",
        "unaligned",
        "atleastonce",
        "forced",
        "full",
        "savepoint",
        "cancel",
        "note",
        "timeoutable",
    ]
    for number in range(1, 15):
        kind = rng.choice(kinds)
        steps.append(f"{kind}:{number}" + (":20" if kind == "timeoutable" else ""))
        steps.append(f"r{rng.randrange(0, 800)}:{rng.choice(['1', '100', '0-5000'])}")
    ours = {"exclusive": rng.choice([0, 1, 2]), "floating": rng.choice([1, 3, 8])}
    fetch_agrees(flink, ",".join(steps), ours, {"subpartitions": rng.choice([1, 2, 4])})
