"""The journal on disk, the seal over it, and readers that meet every kind of broken folder."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest

from testbed_runtime.core.errors import RemoteProtocolError, UserError
from testbed_runtime.history import sealing
from testbed_runtime.history.journal import Journal, RecordingError
from testbed_runtime.history.reader import read_trial
from testbed_runtime.history.schema import TABLES
from testbed_runtime.history.sealing import SealingError, read_sealed, seal, write_trial
from testbed_runtime.history.writer import MemoryHistory, SegmentWriter


def batch(count: int, *, process: str = "tm-0-1", first: int = 0) -> bytes:
    """Segments `first` … of one process, two rows each."""
    writer = SegmentWriter(run="run", trial="main-1", process=process, boot_id="b", now_ns=lambda: 1)
    for number in range(first + count):
        writer.append("events", {"text": str(number)})
        writer.append("tasks", {})
        writer.cut()
    return b"".join(s.to_bytes() for s in writer.pending(10**9) if s.number >= 2 * first)


def folder_of(tmp_path: Path) -> Path:
    return tmp_path / "run" / "history" / "main-1"


def recorded(tmp_path: Path, count: int = 3) -> Path:
    """A trial's folder with the segments of one process."""
    journal = Journal(folder_of(tmp_path))
    journal.append("tm-0-1", "s", batch(count))
    journal.close()
    return folder_of(tmp_path)


def segment_file(folder: Path) -> Path:
    return folder / "segments" / "tm-0-1~s.segments"


def test_what_is_acknowledged_can_be_read_after_the_seal(tmp_path: Path):
    """All processes, all tables, in order."""
    journal = Journal(folder_of(tmp_path))
    assert journal.append("tm-0-1", "s", batch(2)) == 4
    assert journal.append("tm-1-1", "s", batch(1, process="tm-1-1")) == 2
    journal.close()
    report = seal(folder_of(tmp_path))
    assert report.problems == []
    assert (report.rows["events"], report.rows["tasks"], report.rows["frames"]) == (3, 3, 0)
    trial = read_trial(folder_of(tmp_path))
    assert (trial.run, trial.trial) == ("run", "main-1")
    assert [r["text"] for r in trial.rows("events")] == ["0", "1", "0"]
    assert not (folder_of(tmp_path) / "segments").exists()


def test_duplicates_are_refused_by_number(tmp_path: Path):
    """A batch that is sent again after a lost acknowledgement."""
    journal = Journal(folder_of(tmp_path))
    assert journal.append("tm-0-1", "s", batch(2)) == 4
    assert journal.append("tm-0-1", "s", batch(3)) == 6
    journal.close()
    assert seal(folder_of(tmp_path)).rows["events"] == 3


def test_a_gap_is_refused(tmp_path: Path):
    """The missing segments were never acknowledged, so the process still has them."""
    journal = Journal(folder_of(tmp_path))
    with pytest.raises(RemoteProtocolError, match="expected history segment 0"):
        journal.append("tm-0-1", "s", batch(1, first=1))
    assert journal.expected("tm-0-1", "s") == 0
    journal.close()


@pytest.mark.parametrize("name", ["../x", "a/b", "", "a" * 200, "~"])
def test_a_name_that_is_no_file_name_is_refused(tmp_path: Path, name: str):
    """No name leads outside the folder."""
    journal = Journal(folder_of(tmp_path))
    with pytest.raises(RemoteProtocolError, match="invalid process or stream name"):
        journal.append(name, "s", b"")
    journal.close()


def test_a_new_recorder_goes_on_where_the_killed_one_was(tmp_path: Path):
    """A torn tail was never acknowledged: it is cut, and the process sends it again."""
    folder = recorded(tmp_path, 2)
    whole = segment_file(folder).read_bytes()
    segment_file(folder).write_bytes(whole + batch(3)[len(whole) : len(whole) + 50])
    journal = Journal(folder)
    assert "truncated" in journal.problems[0]
    assert journal.expected("tm-0-1", "s") == 4
    assert journal.append("tm-0-1", "s", batch(3)) == 6
    journal.close()
    assert seal(folder).rows["events"] == 3


def test_a_torn_tail_is_sealed_without_it_and_reported(tmp_path: Path):
    """The recorder was killed and never came back."""
    folder = recorded(tmp_path)
    data = segment_file(folder).read_bytes()
    segment_file(folder).write_bytes(data[:-10])
    report = seal(folder)
    assert (report.rows["events"], report.rows["tasks"]) == (3, 2)
    assert "truncated in a body" in report.problems[0]
    assert read_trial(folder).problems == tuple(report.problems)


def test_rows_lost_in_the_middle_are_reported(tmp_path: Path):
    """The numbers of the rows show the gap."""
    folder = folder_of(tmp_path)
    journal = Journal(folder)
    journal.append("tm-0-1", "s", batch(3))
    journal.close()
    raw = segment_file(folder).read_bytes()
    first = len(batch(1))
    segment_file(folder).write_bytes(raw[first:])
    report = seal(folder)
    assert report.streams["tm-0-1~s.segments"]["missing"] == 2
    assert "2 rows are missing" in report.problems[0]


def test_sealing_twice_gives_the_same_answer(tmp_path: Path):
    """An answer may get lost."""
    folder = recorded(tmp_path)
    assert seal(folder) == seal(folder)


def test_sealing_other_content_is_refused(tmp_path: Path):
    """A seal that changes is none."""
    folder = recorded(tmp_path)
    first = seal(folder)
    journal = Journal(folder)
    journal.append("tm-9-1", "s", batch(1, process="tm-9-1"))
    journal.close()
    with pytest.raises(SealingError, match="tm-9-1"):
        seal(folder)
    assert read_sealed(folder) == first


def test_a_seal_that_was_cut_off_is_made_again(tmp_path: Path):
    """`sealed.json` is written last, and the segments go after it."""
    folder = recorded(tmp_path)
    (folder / "events.parquet").write_bytes(b"half")
    (folder / ".tasks.parquet.tmp").write_bytes(b"half")
    assert seal(folder).rows["events"] == 3
    assert len(read_trial(folder).rows("events")) == 3
    assert not list(folder.glob(".*.tmp"))


def test_many_rows_make_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Memory is bounded, however long the trial was."""
    monkeypatch.setattr(sealing, "ROW_GROUP_ROWS", 2)
    folder = recorded(tmp_path, 7)
    assert seal(folder).rows["events"] == 7
    assert len(read_trial(folder).rows("events")) == 7


def test_a_full_disk_while_recording_keeps_what_was_acknowledged(tmp_path: Path):
    """Clear words, no half segment, and the seal works on what is there."""
    journal = Journal(folder_of(tmp_path))
    journal.append("tm-0-1", "s", batch(2))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (segment_file(folder_of(tmp_path)).stat().st_size + 100, hard))
    try:
        with pytest.raises(RecordingError, match="What was recorded so far is kept") as caught:
            journal.append("tm-0-1", "s", batch(3))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "File too large" in str(caught.value)
    journal.close()
    report = seal(folder_of(tmp_path))
    assert (report.rows["events"], report.problems) == (2, [])


def test_a_full_disk_while_sealing_keeps_the_segments(tmp_path: Path):
    """So that it can be done again."""
    folder = recorded(tmp_path, 20)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (700, hard))
    try:
        with pytest.raises(RecordingError, match="The segments are kept"):
            seal(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(folder.glob("*.parquet"))
    assert not list(folder.glob(".*.tmp"))
    assert seal(folder).rows["events"] == 20


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path):
    """A file stands where it should be."""
    (tmp_path / "run").write_text("")
    with pytest.raises(RecordingError, match="cannot record"):
        Journal(folder_of(tmp_path))


def in_memory() -> MemoryHistory:
    memory = MemoryHistory(run="run", trial="main-1")
    memory.sink("sim", lambda: 5).append("events", text="x")
    return memory


def test_a_simulated_trial_is_written_in_the_same_form(tmp_path: Path):
    """One reader for all places."""
    folder = folder_of(tmp_path)
    write_trial(folder, in_memory().trial())
    trial = read_trial(folder)
    assert trial.rows("events")[0]["text"] == "x"
    assert sorted(p.name for p in folder.iterdir()) == sorted(
        [*(f"{t}.parquet" for t in TABLES), "sealed.json"]
    )


def broken(tmp_path: Path, how: str) -> Path:
    """A sealed folder with one thing wrong."""
    folder = folder_of(tmp_path)
    if how == "nothing":
        return folder
    if how == "empty":
        folder.mkdir(parents=True)
        return folder
    if how == "unsealed":
        return recorded(tmp_path)
    write_trial(folder, in_memory().trial())
    path = folder / "events.parquet"
    if how == "truncated":
        path.write_bytes(path.read_bytes()[:-20])
    elif how == "half":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif how == "zero":
        path.write_bytes(b"")
    elif how == "missing":
        path.unlink()
    elif how == "other":
        path.write_bytes((folder / "tasks.parquet").read_bytes())
    elif how == "rows":
        write_trial(tmp_path / "empty", MemoryHistory().trial())
        path.write_bytes((tmp_path / "empty" / "events.parquet").read_bytes())
    elif how == "damaged seal":
        (folder / "sealed.json").write_text("{")
    elif how == "version":
        document = json.loads((folder / "sealed.json").read_text()) | {"schema": 99}
        (folder / "sealed.json").write_text(json.dumps(document))
    return folder


BROKEN = [
    ("nothing", "does not exist"), ("empty", "is not sealed"), ("unsealed", "not sealed"), ("truncated", "truncated or damaged"),
    ("half", "truncated or damaged"), ("zero", "truncated or damaged"), ("missing", "missing"), ("other", "events.parquet, column kind: is missing"),
    ("rows", "has 0 rows, 1 were sealed"), ("damaged seal", "damaged"), ("version", "version 99"),
]  # fmt: skip


@pytest.mark.parametrize(("how", "words"), BROKEN, ids=[b[0] for b in BROKEN])
def test_a_broken_folder_is_a_clear_message_with_a_fix(tmp_path: Path, how: str, words: str):
    """Which file, what is wrong, what to do."""
    with pytest.raises(UserError, match=words) as caught:
        read_trial(broken(tmp_path, how))
    assert caught.value.hint
    assert "main-1" in caught.value.path
    assert "\n" not in str(caught.value)
