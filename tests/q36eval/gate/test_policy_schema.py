"""The JSON Schema of policy files: it is the code's, and editors hold the shipped files against it."""

import copy
import json
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from q36eval.gate import Criterion, Margin
from q36eval.gate.policy_schema import KEYS, CriterionPart, MarginPart, policy_schema

REPOSITORY = Path(__file__).parents[3]
COMMITTED = REPOSITORY / "docs" / "schemas" / "policy.schema.json"
FILES = sorted((REPOSITORY / "data" / "policies").glob("*.yaml"))


def test_the_committed_schema_is_that_of_the_code() -> None:
    # q36eval policy schema > docs/schemas/policy.schema.json
    assert json.loads(COMMITTED.read_text(encoding="utf-8")) == policy_schema()
    Draft202012Validator.check_schema(policy_schema())


def test_a_file_may_say_what_a_policy_holds() -> None:
    assert set(KEYS[CriterionPart]) == set(Criterion.model_fields)
    assert set(KEYS[MarginPart]) == set(Margin.model_fields)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_shipped_files_name_the_schema_for_editors_and_keep_it(file: Path) -> None:
    first, _, _ = file.read_text(encoding="utf-8").partition("\n")
    named = first.removeprefix("# yaml-language-server: $schema=")
    assert (file.parent / named).resolve() == COMMITTED
    assert not list(Draft202012Validator(policy_schema()).iter_errors(yaml.safe_load(file.read_text(encoding="utf-8"))))


@pytest.mark.long
@pytest.mark.parametrize(
    "spoil",
    [
        lambda d: d.update(margins=1),
        lambda d: d["criteria"][0].update(mertic="x"),
        lambda d: d["criteria"][0]["margin"].update(vlaue=1),
        lambda d: d["criteria"][0].pop("metric"),
        lambda d: d["criteria"][0]["margin"].pop("source"),
        lambda d: d["criteria"][0].update(lanes=["chat"]),
        lambda d: d["criteria"][0]["margin"].update(kind="min_recovery", value=95),
        lambda d: d["criteria"][0]["margin"].update(kind="max_value", against="blessed"),
        lambda d: d["criteria"][0]["margin"].update(kind="max_share", value=0.1, beyond=1, beyond_margins=10, of="kl"),
        lambda d: d.pop("criteria"),
        lambda d: d.pop("name"),
    ],
)
def test_mistakes_show_in_an_editor(spoil) -> None:
    document = yaml.safe_load((REPOSITORY / "data" / "policies" / "sandbox.yaml").read_text(encoding="utf-8"))
    spoiled = copy.deepcopy(document)
    spoil(spoiled)
    validator = Draft202012Validator(policy_schema())
    assert not list(validator.iter_errors(document))
    assert list(validator.iter_errors(spoiled))


def test_what_extends_another_need_not_be_whole() -> None:
    part = {"name": "own", "extends": "release", "criteria": [{"id": "mmlu", "min_scored": 5}]}
    validator = Draft202012Validator(policy_schema())
    assert not list(validator.iter_errors(part))
    del part["extends"]
    assert list(validator.iter_errors(part))
