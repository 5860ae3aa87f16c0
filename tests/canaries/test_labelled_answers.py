"""Answers labelled by hand, before any checker saw them: what the checks must say of each, and where."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from canaries.checks import CHECKS, run_checks

FOLDER = Path(__file__).parent / "labelled"
ENOUGH = 150
KEYS = {"text", "codes", "why", "places", "repeat"}


def _labelled() -> list[Any]:
    found = []
    for file in sorted(FOLDER.glob("*.yaml")):
        for group in yaml.safe_load(file.read_text(encoding="utf-8")):
            for number, answer in enumerate(group["answers"], 1):
                assert set(answer) <= KEYS, answer
                text = answer["text"] + "".join(part * times for part, times in [answer.get("repeat", ("", 0))])
                name = f"{file.stem}-{group['checks'][0]}-{number}: {answer['why'][:60]}"
                found.append(pytest.param(group, text, answer, id=name))
    return found


LABELLED = _labelled()


@pytest.mark.parametrize(("group", "text", "label"), LABELLED)
def test_labelled_answers(group: dict[str, Any], text: str, label: dict[str, Any]) -> None:
    failures = run_checks(text, group["checks"], group["expected"], group.get("tools", ()))
    said = [(failure.code, failure.place, failure.message) for failure in failures]
    assert {failure.code for failure in failures} == set(label["codes"]), said
    if "places" in label:
        assert sorted({failure.place for failure in failures}) == sorted(label["places"]), said


def test_every_check_has_right_and_wrong_answers() -> None:
    judged = [
        (check, bool(label["codes"]))
        for group, _, label in (case.values for case in LABELLED)
        for check in group["checks"]
    ]
    assert {check for check, wrong in judged if wrong} == set(CHECKS) == {check for check, wrong in judged if not wrong}
    assert len(LABELLED) >= ENOUGH
