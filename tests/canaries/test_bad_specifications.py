"""Specifications written wrong: refused with the file and the key, never with a traceback."""

import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from q36eval.canaries.cases import cases_of, draws
from q36eval.canaries.generators import GENERATORS
from q36eval.canaries.specification import Family, load_specs, read_spec
from q36eval.errors import UsageError
from q36eval.examples import ChatExample
from tests.canaries.runs import GREETING
from tests.raising import raises

FAMILY = GREETING[: GREETING.index("must_pass")]
ROWS = yaml.safe_load(Path(__file__).with_name("bad_specifications.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["names"][0])
def test_a_bad_file_is_refused_in_one_sentence(
    tmp_path: Path, row: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Patterns that would take all time too."""
    monkeypatch.setattr("q36eval.canaries.checks.patterns.PATTERN_SECONDS", 0.05)
    text = f"{FAMILY}family: {row['family']}\n" if "family" in row else GREETING
    for old, new in row.get("replace", {}).items():
        assert old in text
        text = text.replace(old, new)
    file = tmp_path / "greeting.yaml"
    file.write_text(text, encoding="utf-8")
    with raises(UsageError, "file-invalid", file, *row["names"]) as error:
        read_spec(file)
    assert "\n" not in str(error.value)


def test_an_empty_folder_and_a_repeated_id_are_refused(tmp_path: Path) -> None:
    with raises(UsageError, "canaries-missing"):
        load_specs(own=tmp_path)
    (tmp_path / "one.txt").write_text(GREETING, encoding="utf-8")
    with raises(UsageError, "path-is-file", "one.txt"):
        load_specs(own=tmp_path / "one.txt")
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(GREETING, encoding="utf-8")
    with raises(UsageError, "canary-duplicate"):
        load_specs(own=tmp_path)


def test_a_generator_that_repeats_or_raises_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    left = [1, 1, 0]

    def few(rng: random.Random) -> ChatExample:
        return ChatExample(key=f"few:{rng.randrange(50)}", messages=(), answer="")

    def broken(rng: random.Random) -> ChatExample:
        return ChatExample(key=f"test:{1 // left.pop(0)}:b:{len(left)}", messages=(), answer="")

    monkeypatch.setitem(GENERATORS, "few", few)
    monkeypatch.setitem(GENERATORS, "broken", broken)
    with raises(UsageError, "canary-draws-exhausted", "x: few", "40"):
        draws(Family(generator="few", seed=1, n=40), "x")
    monkeypatch.setattr("q36eval.examples.split_of", lambda key: "test")
    with raises(UsageError, "canary-generator-failed", "x: broken", "draw 3", "ZeroDivisionError"):
        draws(Family(generator="broken", seed=1, n=9), "x")


@pytest.mark.parametrize(
    ("checks", "value"), [("[tool_call]", "expected.name"), ("[no_tool_call, exact_lines]", "expected.lines")]
)
def test_a_family_whose_checks_do_not_fit_its_generator_is_refused(tmp_path: Path, checks: str, value: str) -> None:
    text = FAMILY.replace("[exact_text]", checks)
    (tmp_path / "greeting.yaml").write_text(f"{text}family: {{generator: json_flat, seed: 1}}\n", encoding="utf-8")
    (spec,) = load_specs(own=tmp_path, only=["greeting"])
    with raises(UsageError, "canary-checks-unusable", "greeting", value):
        cases_of(spec)
