"""Operators: counts, windows, user functions, and state that survives and rescales."""

import dataclasses
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.job.jobgraph import OperatorConfig, SourceConfig
from testbed_runtime.core.job.keygroups import group_range
from testbed_runtime.workload.keyedstate import KeyedState, SubtaskContext
from testbed_runtime.workload.keys import key_groups
from testbed_runtime.workload.operators import (
    KeyedCount,
    PythonFunction,
    TumblingWindow,
    make_operator,
)
from testbed_runtime.workload.records import intact, text_of
from testbed_runtime.workload.snapshots import (
    KeyGroupState,
    SubtaskSnapshot,
    decode_snapshot,
    encode_snapshot,
)
from testbed_runtime.workload.sortedfile import Rows
from testbed_runtime.workload.sources import GeneratedSource, WordSource


def context(subtask=0, parallelism=1, max_parallelism=128):
    """Subtask of the vertex `count` in a job source → count → sink, t0 = 0."""
    return SubtaskContext(1, "count", subtask, parallelism, max_parallelism, 0, ("source", "count", "sink"))


def batch(first, count, keys=50):
    """Records of one source subtask at 1000 a second."""
    config = SourceConfig(records_per_second=1000.0, keys=keys)
    return GeneratedSource(config, vertex=0, subtask=0, parallelism=1, seed=3, t0_ns=0).records(first, count)


def snapshot(operator, checkpoint=1):
    """Through bytes and back."""
    c = operator.context
    base = SubtaskSnapshot(checkpoint, c.name, c.subtask, c.parallelism, c.max_parallelism)
    return decode_snapshot(encode_snapshot(operator.snapshot(base)))


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 2), (1, 3), (3, 2), (4, 1)])
def test_keyed_counts_survive_a_checkpoint_at_any_parallelism(before, after):
    """Every key's count is found once, at the subtask that its key group belongs to now."""
    records = batch(0, 2000)
    groups = key_groups(records["key"], 128)
    old = [KeyedCount(context(s, before)) for s in range(before)]
    for s, operator in enumerate(old):
        mine = group_range(s, before, 128)
        operator.process(records[[g in mine for g in groups.tolist()]])
    snapshots = [snapshot(operator) for operator in old]
    new = [KeyedCount(context(s, after)) for s in range(after)]
    for operator in new:
        operator.restore(snapshots)
    for key, count in zip(*np.unique(records["key"], return_counts=True), strict=True):
        assert [o.count(int(key)) for o in new if o.count(int(key))] == [count]
    assert sum(o.count(k) for o in new for k in range(50)) == 2000


def test_state_of_another_maximum_parallelism_is_refused():
    """The groups of the keys would not match: Flink's words."""
    text = "Cannot map operator count with max parallelism 64 to new program with max parallelism 128"
    with pytest.raises(FlinkError, match=text):
        KeyedCount(context()).restore([SubtaskSnapshot(1, "count", 0, 1, 64)])


def test_a_snapshot_of_an_unknown_version_or_kind_is_refused():
    """Bytes that are not ours are not state."""
    good = encode_snapshot(SubtaskSnapshot(1, "count", 0, 1, 128))
    assert decode_snapshot(good).persisted_bytes == 0
    for bad, text in (
        (b"", "requires a buffer"),
        (b"XXXX\0\1", "HGSS"),
        (b"HGSS\0\x09", "version 9"),
        (good[:-1], "Could not read"),
    ):
        with pytest.raises(FlinkError, match=text):
            decode_snapshot(bad)


def test_a_window_fires_at_its_end_with_the_counts_of_its_keys():
    """1000 records a second, windows of 1 s."""
    window = TumblingWindow(context(), 1.0)
    assert window.next_timer_ns() is None
    window.process(batch(0, 1500))
    assert window.next_timer_ns() == 10**9
    assert window.on_time(10**9 - 1) is None
    panes = window.on_time(10**9)
    assert panes["count"].sum() == 1000
    assert set(panes["due_ns"].tolist()) == {10**9}
    assert panes["sequence"].tolist() == list(range(len(panes)))
    assert (panes["vertex"] == 1).all()
    assert intact(panes).all()
    assert window.next_timer_ns() == 2 * 10**9
    rest = window.finish()
    assert rest["count"].sum() == 500
    assert rest["sequence"][0] == len(panes)
    assert window.finish() is None


def test_records_later_than_their_window_make_a_pane_of_their_own():
    """Nothing is dropped: the sum of all panes is the number of records."""
    window = TumblingWindow(context(), 1.0)
    window.process(batch(0, 900))
    fired = window.on_time(10**9)["count"].sum()
    window.process(batch(900, 100))
    late = window.on_time(10**9)["count"].sum()
    assert (fired, late) == (900, 100)


def test_a_window_goes_on_from_its_snapshot():
    """Open windows, the numbering of its output and the record size are state."""
    window = TumblingWindow(context(), 1.0)
    window.process(batch(0, 1300))
    fired = window.on_time(10**9)
    restored = TumblingWindow(context(), 1.0)
    restored.restore([snapshot(window)])
    ours, theirs = window.finish(), restored.finish()
    assert ours.tobytes() == theirs.tobytes()
    assert theirs["sequence"][0] == len(fired)


def test_windows_count_words():
    """The documents' example: words in, (word, count) out."""
    source = WordSource(SourceConfig(kind="socket"), vertex=0, subtask=0)
    source.feed(b"to be or not to be\n")
    window = TumblingWindow(context(), 5.0)
    window.process(source.take(123))
    panes = window.finish()
    assert {text_of(p): int(p["count"]) for p in panes} == {"to": 2, "be": 2, "or": 1, "not": 1}


def function(callable_):
    """An operator around a Python function."""
    return PythonFunction(context(), callable_, "/somewhere/user.py:f")


def test_a_function_may_pass_drop_or_change_records():
    """None drops, an int is a new key, a record passes; checksums stay valid."""
    records = batch(0, 10)
    assert function(lambda r: r).process(records) is records
    assert function(lambda r: None).process(records) is None
    odd = function(lambda r: r if r.sequence % 2 else None).process(batch(0, 10))
    assert odd["sequence"].tolist() == [1, 3, 5, 7, 9]
    moved = function(lambda r: r.sequence + 100).process(batch(0, 10))
    assert moved["key"].tolist() == list(range(100, 110))
    assert intact(moved).all()
    shouted = function(lambda r: dataclasses.replace(r, text="HI")).process(batch(0, 2))
    assert [text_of(r) for r in shouted] == ["HI", "HI"]
    assert intact(shouted).all()


def test_a_function_that_raises_or_answers_nonsense_names_the_record():
    """The cause says which function and which record."""

    def broken(record):
        if record.sequence == 3:
            raise ZeroDivisionError("division by zero")
        return record

    with pytest.raises(FlinkError) as caught:
        function(broken).process(batch(0, 10))
    assert caught.value.class_name == "ZeroDivisionError"
    assert caught.value.message == "division by zero (raised by user.py:f on record 3 of source-0)"
    with pytest.raises(FlinkError, match="returned str"):
        function(lambda r: "no").process(batch(0, 1))


def test_slices_of_user_code_follow_its_cost():
    """Half a millisecond of work a slice, growing by at most a factor of two."""
    operator = function(lambda r: r)
    operator.took(32, 0.0032)
    assert operator.slice_records == 5
    operator.took(5, 0.000005)
    assert operator.slice_records == 10
    operator.took(10, 10.0)
    assert operator.slice_records == 1
    operator.took(1, 0.0)
    assert operator.slice_records == 2


def test_functions_are_loaded_from_a_file_beside_the_scenario(tmp_path):
    """And each thing that can be wrong with them is said."""
    (tmp_path / "user.py").write_text("def keep(record):\n    return record\nvalue = 3\n")
    (tmp_path / "torn.py").write_text("def (:\n")
    operator = make_operator(OperatorConfig(kind="python", function=f"{tmp_path}/user.py:keep"), context())
    assert len(operator.process(batch(0, 5))) == 5
    for reference, text in {
        "user.py": "'user.py' is not a function",
        f"{tmp_path}/none.py:f": "file 'none.py' does not exist",
        f"{tmp_path}/user.py:value": "no function 'value'",
        f"{tmp_path}/torn.py:f": r"failed to load: SyntaxError: invalid syntax \(torn.py:1\)",
    }.items():
        with pytest.raises(FlinkError, match=text):
            make_operator(OperatorConfig(kind="python", function=reference), context())


def test_a_function_imports_modules_beside_it_and_never_in_place_of_installed_ones(tmp_path, monkeypatch):
    """Two folders may have a module of the same name. A file that is named like an installed module is not imported."""
    for folder, factor in ("a", 2), ("b", 3):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "factors.py").write_text(f"import colorsys\nFACTOR = {factor}\n")
        (tmp_path / folder / "colorsys.py").write_text("raise RuntimeError('imported')\n")
        (tmp_path / folder / "user.py").write_text(
            "from factors import FACTOR\ndef scaled(record):\n    return record.sequence * FACTOR\n"
        )
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    before = list(sys.path)
    for folder, factor in ("a", 2), ("b", 3):
        reference = f"{tmp_path / folder / 'user.py'}:scaled"
        operator = make_operator(OperatorConfig(kind="python", function=reference), context())
        assert operator.process(batch(0, 3))["key"].tolist() == [0, factor, 2 * factor]
    assert "factors" not in sys.modules
    assert sys.path == before


def test_with_object_reuse_a_function_gets_the_same_record_with_other_values():
    """The results are those without it; a record that the function keeps changes under its hands."""
    seen: dict[bool, list] = {False: [], True: []}
    made = {}
    for reuse, records in seen.items():

        def new_key(record, records=records):
            records.append((record, record.sequence, record.key))
            return record.key + 1 if record.sequence % 2 else record

        operator = PythonFunction(context(), new_key, "/somewhere/user.py:f", reuse=reuse)
        made[reuse] = operator.process(batch(0, 20))
        assert [sequence for _, sequence, _ in records] == list(range(20))
    assert (made[True] == made[False]).all()
    assert [s[1:] for s in seen[True]] == [s[1:] for s in seen[False]]
    assert len({id(record) for record, *_ in seen[False]}) == 20
    assert {id(record) for record, *_ in seen[True]} == {id(seen[True][0][0])}
    assert seen[True][0][0].sequence == 19


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.sampled_from([b"", b"word"])), min_size=1))
def test_rows_are_divided_by_key_group_without_losing_any(found):
    """Each group has its own rows in their order; stamps and texts are left out where all are empty."""
    rows = Rows.of([((0, key), (1, stamp, text)) for key, (_, stamp, text) in enumerate(found)])
    groups = np.array([group for group, _, _ in found])
    divided = KeyGroupState.divided(groups, rows)
    assert [state.key_group for state in divided] == sorted(set(groups.tolist()))
    for state in divided:
        expected = [
            pair
            for pair, group in zip(rows.pairs(), groups.tolist(), strict=True)
            if group == state.key_group
        ]
        assert list(state.rows().pairs()) == expected
        assert bool(state.stamps) == any(row[1] for _, row in expected)
        assert bool(state.texts) == any(row[2] for _, row in expected)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.integers(0, 3), st.lists(st.integers(0, 9), max_size=6)),
            st.integers(0, 3),
            st.none(),
        ),
        max_size=12,
    )
)
def test_a_state_that_keeps_its_order_has_the_snapshots_of_a_fresh_one(steps):
    """Whatever is added, taken and restored between two of them."""
    kept, base = KeyedState(context()), SubtaskSnapshot(1, "count", 0, 1, 128)
    counts: dict[tuple[int, int], int] = {}
    for step in steps:
        if isinstance(step, tuple):
            window, keys = step
            kept.add(window, keys, [1] * len(keys), {})
            for key in keys:
                counts[window, key] = counts.get((window, key), 0) + 1
        elif step is not None:
            kept.take([step])
            counts = {place: count for place, count in counts.items() if place[0] != step}
        fresh = KeyedState(context())
        for (window, key), count in counts.items():
            fresh.add(window, [key], [count], {})
        assert kept.snapshot(base) == fresh.snapshot(base)


def test_a_count_knows_what_it_saw_alone_and_together():
    """Counts that the state does not have yet are in the answer and in the snapshot."""
    operator, records = KeyedCount(context()), batch(0, 6, keys=2)
    operator.process(records[:1])
    operator.process(records[1:4])
    before = snapshot(operator)
    operator.process(records[4:])
    expected = dict(zip(*np.unique(records["key"], return_counts=True), strict=True))
    assert {key: operator.count(int(key)) for key in expected} == expected
    restored = KeyedCount(context())
    restored.restore([before])
    assert sum(restored.count(key) for key in range(2)) == 4
