"""Reading YAML: lines for messages, no duplicate keys, bounds."""

from __future__ import annotations

import pytest

from testbed_runtime.api.document import read_document
from testbed_runtime.api.validate import validate
from testbed_runtime.core.errors import UserError

TEXT = """spec:
  testbed:
    flinkConfiguration:
      heartbeat.timeout: 1 s
    job:
      edges:
        - {from: a, to: b}
        - from: b
          to: c
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("spec.testbed.job.edges[1].to", 9),
        ("spec.testbed.job.edges[0].to", 7),
        ("spec.testbed.flinkConfiguration[heartbeat.timeout]", 4),
        ("spec.testbed.job.nothing", 6),
        ("spec.testbed.job.edges[7]", 7),
    ],
)
def test_a_path_has_its_line_or_that_of_its_nearest_parent(path, line):
    """Lines count from 1."""
    assert read_document(TEXT).line(path) == line


@pytest.mark.parametrize(
    "text", ["a: 1\n---\n", "---\n# Source: chart\n---\na: 1\n", "---\na: 1\n...\n---\n---\n"]
)
def test_empty_documents_beside_the_one_are_ignored(text):
    """As `kubectl apply` does: templates leave separators behind."""
    assert read_document(text).data == {"a": 1}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [1", "is not YAML in line"),
        (
            "a: 1\nb: {c: 1\nd: {e: 2}\n",
            "(put commas between the entries, and close the { that opens in line 2)",
        ),
        ("a: 1\nb: [c: 1\nd: 2\n", "(put commas between the entries, and close the [ that opens in line 2)"),
        ("a: 1\nb: 'c\nd: 2\n", "(close the quote that opens in line 2)"),
        (
            "a:\n\tb: 1\n",
            "in line 2, column 1: found character '\\t' that cannot start any token (indent with spaces",
        ),
        (
            "a: 1\n b: 2\n",
            "in line 2, column 3: mapping values are not allowed here (put a text with a colon in",
        ),
        ("x:\n  a:\n    b: 1\n   c: 2\n", "(lines of one list or mapping begin in the same column)"),
        ("a: 1\nb: 2\na: 3\n", "line 3: the key 'a' is a duplicate"),
        ("- 1\n", "is not a mapping"),
        ("a: 1\n---\n- 1\n", "document 2 is not a mapping"),
        ("", "is empty"),
        ("# nothing\n---\n", "is empty"),
        (
            "a: 1\n---\nb: 2\n",
            "holds more than one document: the second one begins in line 3 (write each into",
        ),
        ("a: !!python/object/apply:os.getcwd []\n", "is not YAML"),
        ("a: &x [*x]\n", "an alias contains itself"),
        ("? {a: 1}\n: 2\n", "a key must be a word"),
        ("a: " + "x" * 300_000, "more than 262144 bytes"),
        ("a: " + "[" * 5000, "nested too deeply"),
    ],
)
def test_text_that_is_no_document_is_reported(text, words):
    """A UserError that names the file, never a trace."""
    with pytest.raises(UserError) as caught:
        read_document(text, name="scenario.yaml")
    assert words in str(caught.value)
    assert str(caught.value).startswith("scenario.yaml")


def test_a_bomb_of_aliases_is_refused_before_it_is_expanded():
    """Nine levels of nine would be 387 million values."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    with pytest.raises(UserError, match="more than 20000 values"):
        read_document("\n".join(lines))


def test_aliases_are_allowed():
    """They are part of YAML."""
    assert read_document("a: &x {b: 1}\nc: *x\n").data == {"a": {"b": 1}, "c": {"b": 1}}


@pytest.mark.parametrize("value", ["999999999999 d", "9999999999999999d"])
def test_a_duration_that_java_cannot_hold_is_reported_like_any_other_mistake(value: str):
    """The syntax is right, so only reading the value shows it."""
    found = validate({"spec": {"timeline": {"observation": value}}})
    assert any(f"spec.timeline.observation: '{value}' is not a duration" in str(e) for e in found.errors)
