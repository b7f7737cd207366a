"""Classes of `core.lazyclass` behave like those of the standard decorator, whatever their fields are."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest

from testbed_runtime.core import lazyclass
from testbed_runtime.core.job.messages import Heartbeat, PartitionState


def made(decorator: Any) -> Any:
    """One class of each decorator, with every kind of field."""

    @decorator(frozen=True, slots=True)
    class Sample:
        name: str
        number: int = 7
        places: list[int] = dataclasses.field(default_factory=list, hash=False)
        quiet: str = dataclasses.field(default="", repr=False, compare=False)
        fixed: int = dataclasses.field(default=3, init=False)
        key: str = dataclasses.field(default="k", kw_only=True)

        @property
        def twice(self) -> int:
            return 2 * self.number

    return Sample


LAZY, STANDARD = made(lazyclass.dataclass), made(dataclasses.dataclass)
ARGUMENTS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    (("a",), {}),
    (("a", 8, [1]), {"quiet": "q", "key": "x"}),
    ((), {"name": "b", "places": [2]}),
]


@pytest.mark.parametrize(("given", "named"), ARGUMENTS)
def test_an_object_has_the_same_fields_text_and_hash(given, named):
    """Defaults, factories and keywords are those of the standard class, from the first object on."""
    lazy, standard = LAZY(*given, **named), STANDARD(*given, **named)
    assert dataclasses.asdict(lazy) == dataclasses.asdict(standard)
    assert repr(lazy) == repr(standard)
    assert hash(lazy) == hash(standard)
    assert lazy.twice == standard.twice
    assert lazy == LAZY(*given, **named)
    assert lazy == dataclasses.replace(lazy, quiet="other")
    assert lazy != dataclasses.replace(lazy, number=-1)
    assert lazy != standard


def test_each_object_has_its_own_list():
    """A factory is called for each object."""
    assert LAZY("a").places is not LAZY("a").places


@pytest.mark.parametrize(("given", "named"), [((), {}), (("a", 1, [], "", 3), {}), (("a",), {"other": 1})])
def test_wrong_arguments_are_a_type_error(given, named):
    """As many and as named as the standard class takes."""
    for kind in (LAZY, STANDARD):
        with pytest.raises(TypeError):
            kind(*given, **named)


def test_objects_are_frozen():
    """A field cannot be set or deleted, and nothing can be added."""
    item = LAZY("a")
    for change in (lambda: setattr(item, "name", "b"), lambda: setattr(item, "new", 1)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            change()
    with pytest.raises(dataclasses.FrozenInstanceError):
        del item.name
    assert item.name == "a"
    assert not hasattr(item, "__dict__")


def test_objects_are_copied_and_pickled():
    """Frozen objects with slots need a state of their own for that."""
    item = Heartbeat("tm-0-1", "leader", {"lag_s": 1.0})
    assert pickle.loads(pickle.dumps(item)) == item
    assert copy.copy(item) == copy.deepcopy(item) == item


def test_classes_match_by_position():
    """`match` knows the order of the fields."""
    match LAZY("a", 8):
        case LAZY(name, number):
            assert (name, number) == ("a", 8)


def test_methods_that_a_class_defines_stay():
    """A class may have its own text, equality, and a check of its arguments."""

    @lazyclass.dataclass(frozen=True, slots=True)
    class Even:
        number: int

        def __post_init__(self) -> None:
            if self.number % 2:
                raise ValueError(self.number)

        def __str__(self) -> str:
            return "even"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Even)

        def __hash__(self) -> int:
            return 1

    assert Even(2) == Even(4)
    assert str(Even(2)) == "even"
    assert hash(Even(2)) == 1
    with pytest.raises(ValueError, match="3"):
        Even(3)


def test_objects_that_are_not_frozen_change_and_have_no_hash():
    """As with the standard decorator: equal by their fields, and no keys."""

    @lazyclass.dataclass(slots=True)
    class Open:
        number: int
        places: list[int] = dataclasses.field(default_factory=list)

    item = Open(1)
    item.number = 2
    item.places.append(3)
    assert item == Open(2, [3]) == copy.copy(item)
    assert repr(item).endswith("Open(number=2, places=[3])")
    assert "number" in Open.__init__.__code__.co_varnames
    with pytest.raises(TypeError, match="unhashable"):
        hash(item)


def test_other_classes_are_those_of_the_standard_decorator():
    """Subclasses of a dataclass, classes without slots and ordered ones."""

    @lazyclass.dataclass(frozen=True, slots=True)
    class Child(LAZY):
        more: int = 0

    @lazyclass.dataclass(frozen=True)
    class Open:
        number: int

    @lazyclass.dataclass(frozen=True, slots=True, order=True)
    class Ordered:
        number: int

    assert Child("a", more=2) == Child("a", more=2)
    assert repr(Child("a", more=2)).endswith("fixed=3, key='k', more=2)")
    assert vars(Open(2)) == {"number": 2}
    assert Ordered(1) < Ordered(2)


def test_the_methods_are_made_when_the_first_object_is():
    """Defining a class compiles nothing: that is what makes a command start sooner."""

    @lazyclass.dataclass(frozen=True, slots=True)
    class Late:
        number: int

    assert "number" not in Late.__init__.__code__.co_varnames
    assert Late(1).number == 1
    assert "number" in Late.__init__.__code__.co_varnames
    assert dataclasses.is_dataclass(PartitionState)
