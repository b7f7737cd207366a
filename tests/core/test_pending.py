"""The channels of a gate or partition that are still awaited."""

from hypothesis import given
from hypothesis import strategies as st

from testbed_runtime.core.exchange.pending import Pending


@given(st.integers(0, 5), st.lists(st.one_of(st.none(), st.integers(0, 9)), max_size=20))
def test_it_agrees_with_a_set_of_indices(count, steps):
    """None adds an index, a number discards one, also twice."""
    pending, model, size = Pending(count), set(range(count)), count
    for step in steps:
        if step is None:
            pending.add()
            model.add(size)
            size += 1
        elif step < size:
            assert pending.discard(step) == (step in model)
            model.discard(step)
        assert bool(pending) == bool(model)
