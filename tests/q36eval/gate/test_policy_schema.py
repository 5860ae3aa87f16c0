"""The JSON Schema of policy files: it is the code's, and editors hold the shipped files against it."""

import json
from pathlib import Path

import yaml
from jsonschema import Draft202012Validator

from q36eval.gate.policy_schema import policy_schema

REPOSITORY = Path(__file__).parents[3]
COMMITTED = REPOSITORY / "docs" / "schemas" / "policy.schema.json"
FILES = sorted((REPOSITORY / "data" / "policies").glob("*.yaml"))


def test_the_committed_schema_is_that_of_the_code() -> None:
    assert json.loads(COMMITTED.read_text(encoding="utf-8")) == policy_schema()
    Draft202012Validator.check_schema(policy_schema())


def test_shipped_files_name_the_schema_for_editors_and_keep_it_and_a_mistake_shows() -> None:
    validator = Draft202012Validator(policy_schema())
    for file in FILES:
        text = file.read_text(encoding="utf-8")
        named = text.partition("\n")[0].removeprefix("# yaml-language-server: $schema=")
        assert (file.parent / named).resolve() == COMMITTED
        document = yaml.safe_load(text)
        assert not list(validator.iter_errors(document))
        document["mertic"] = "x"
        assert list(validator.iter_errors(document))
