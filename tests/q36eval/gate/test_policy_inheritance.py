"""Policies made of others: what is inherited, changed, dropped and narrowed, and the sentence for each mistake."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter

from q36eval.errors import UsageError
from q36eval.gate import Policy
from q36eval.gate.margins import with_thresholds
from q36eval.gate.policy_file import PolicyFile, policy_problems, read_policy
from q36eval.records import Lane
from tests.raising import raises

SHIPPED = Path(__file__).parents[3] / "data" / "policies"

MISTAKES = yaml.safe_load((Path(__file__).parent / "policy_mistakes.yaml").read_text(encoding="utf-8"))
BASE, NEW = MISTAKES["base"], MISTAKES["new"]


def written(folder: Path, name: str, document: object) -> Path:
    path = folder / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def child(folder: Path, **says: object) -> Path:
    written(folder, "base", BASE)
    return written(folder, "own", {"name": "own", "extends": "base.yaml"} | says)


def test_a_file_changes_what_it_says_and_nothing_else(tmp_path: Path) -> None:
    changed = {"id": "mmlu", "margin": {"value": 0.97, "source": "measured"}, "min_scored": 200}
    policy = read_policy(child(tmp_path, criteria=[changed, NEW]))
    base = Policy.model_validate(BASE)
    mmlu, tools, kl = policy.criteria
    assert (policy.name, policy.lineage, policy.alpha) == ("own", ("base",), 0.01)
    assert tools == base.criteria[1]
    assert kl.model_dump(mode="json", exclude_defaults=True) == NEW
    assert (mmlu.margin.kind, mmlu.margin.value, mmlu.margin.source) == ("min_recovery", 0.97, "measured")
    unchanged = mmlu.model_copy(update={"margin": base.criteria[0].margin, "min_scored": 100})
    assert unchanged == base.criteria[0]


def test_inheritance_goes_on_over_several_files_and_a_circle_names_them_all(tmp_path: Path) -> None:
    written(tmp_path, "base", BASE)
    written(tmp_path / "team", "mid", {"name": "mid", "extends": "../base.yaml", "criteria": [NEW], "alpha": 0.02})
    own = written(tmp_path / "team", "own", {"name": "own", "extends": "mid.yaml", "drop": ["mmlu"]})
    policy = read_policy(own)
    assert policy.lineage == ("base", "mid")
    assert [criterion.id for criterion in policy.criteria] == ["tools", "kl"]
    assert policy.alpha == 0.02
    written(tmp_path, "a", {"name": "a", "extends": "b.yaml"})
    written(tmp_path, "b", {"name": "b", "extends": "c.yaml"})
    path = written(tmp_path, "c", {"name": "c", "extends": "b.yaml"})
    with raises(UsageError, "policy-invalid", "b.yaml -> c.yaml -> b.yaml"):
        read_policy(tmp_path / "a.yaml")
    assert policy_problems(path) != ()


def test_narrowing_to_a_lane_leaves_the_criteria_of_other_lanes_out(tmp_path: Path) -> None:
    policy = read_policy(child(tmp_path)).for_lanes([Lane.FREEFORM])
    assert policy.lanes == (Lane.FREEFORM,)
    assert [(criterion.id, criterion.lanes) for criterion in policy.criteria] == [("mmlu", (Lane.FREEFORM,))]
    with raises(UsageError, "lane-not-judged", "structured"):
        policy.for_lanes([Lane.STRUCTURED])


def test_a_shipped_policy_is_extended_by_its_name_from_anywhere_as_in_the_docs(tmp_path: Path) -> None:
    own = written(tmp_path, "own", {"name": "own", "extends": "pre-check", "drop": ["ruler"]})
    shipped = read_policy(SHIPPED / "pre-check.yaml")
    policy = read_policy(own)
    assert policy.lineage == ("release", "pre-check")
    assert policy.criteria == tuple(criterion for criterion in shipped.criteria if criterion.id != "ruler")
    # the example of the docs
    page = (SHIPPED.parents[1] / "docs" / "policy.md").read_text(encoding="utf-8")
    example = tmp_path / "example.yaml"
    example.write_text(page.partition("```yaml\n")[2].partition("```")[0], encoding="utf-8")
    policy = read_policy(example)
    assert policy.lineage == ("standard",)
    assert "required-structured" not in {criterion.id for criterion in policy.criteria}


@pytest.mark.parametrize(("says", "named"), MISTAKES["policies"])
def test_each_mistake_is_one_sentence(tmp_path: Path, says: dict, named: list[str]) -> None:
    path = child(tmp_path, **says)
    with raises(UsageError, "policy-invalid", *named) as caught:
        read_policy(path)
    assert "\n" not in str(caught.value)
    assert str(caught.value) in policy_problems(path)


def test_all_problems_of_a_file_are_named_at_once(tmp_path: Path) -> None:
    says = {"drop": ["x", "y"], "name": "base", "criteria": [{"id": "mmlu", "margin": {"value": 0.9}}]}
    found = policy_problems(child(tmp_path, **says))
    assert len(found) == 4
    assert all(str(tmp_path) in sentence and sentence.endswith(".") for sentence in found)


def test_a_share_has_one_threshold_and_the_last_that_is_named_holds(tmp_path: Path) -> None:
    of_margins = {"kind": "max_share", "value": 0.01, "beyond_margins": 10, "of": "kl", "source": "ours"}
    tail = {**NEW, "id": "tail", "metric": "kl_document_max", "margin": of_margins}
    written(tmp_path, "base", {**BASE, "criteria": [*BASE["criteria"], NEW, tail]})
    own = {"id": "tail", "margin": {"beyond": 2, "source": "measured"}}
    policy = read_policy(written(tmp_path, "own", {"name": "own", "extends": "base.yaml", "criteria": [own]}))
    margin = with_thresholds(policy).criteria[-1].margin
    assert (margin.beyond, margin.beyond_margins, margin.of) == (2.0, None, None)
    tail["margin"] = {**of_margins, "beyond": 2}
    (problem,) = policy_problems(
        written(tmp_path, "both", {**BASE, "criteria": [NEW | {"lanes": ["structured"]}, tail]})
    )
    assert "criteria[1].margin:" in problem
    assert "beyond_margins" in problem


def of_schemes(folder: Path, **margin: Any) -> Path:
    """A file that changes so much of the margin of a base whose figures depend on the scheme."""
    schemes = [
        {"scheme": "W4A16", "value": 0.014, "source": "a card"},
        {"scheme": "NVFP4 + FP8_BLOCK", "value": 0.06, "source": "ours"},
    ]
    ceiling = {"kind": "max_value", "value": 0.1, "source": "a ceiling", "schemes": schemes}
    written(folder, "base", {"name": "base", "criteria": [NEW | {"margin": ceiling}]})
    return written(folder, "own", {"name": "own", "extends": "base.yaml", "criteria": [{"id": "kl", "margin": margin}]})


def figures(file: Path) -> dict[str, float]:
    return {figure.scheme: figure.value for figure in read_policy(file).criteria[0].margin.schemes}


def test_a_figure_is_changed_by_its_scheme_and_by_a_lower_ceiling(tmp_path: Path) -> None:
    changed = {"scheme": "FP8_BLOCK+NVFP4", "value": 0.05, "source": "measured"}
    new = {"scheme": "NVFP4", "value": 0.07, "source": "measured"}
    file = of_schemes(tmp_path, schemes=[changed, new])
    assert figures(file) == {"W4A16": 0.014, "FP8_BLOCK + NVFP4": 0.05, "NVFP4": 0.07}
    assert read_policy(file).criteria[0].margin.value == 0.1
    assert figures(of_schemes(tmp_path, value=0.03, source="review")) == {"W4A16": 0.014}
    assert figures(of_schemes(tmp_path, value=0.01, source="review")) == {}
    assert len(figures(of_schemes(tmp_path, kind="max_value", value=0.09, source="review"))) == 2


@pytest.mark.parametrize(("figure", "named"), MISTAKES["figures"])
def test_each_mistake_in_a_figure_is_one_sentence(tmp_path: Path, figure: dict[str, Any], named: list[str]) -> None:
    file = of_schemes(tmp_path, schemes=[figure])
    with raises(UsageError, "policy-invalid", *named):
        read_policy(file)


def test_files_that_are_no_policy(tmp_path: Path) -> None:
    with raises(UsageError, "policy-invalid", "stricter.yaml"):
        read_policy(tmp_path / "stricter.yaml")
    for text, named in (
        ("name: a\nname: b\n", ("line 2", "'name'")),
        ("[1, 2", ("YAML", "line")),
        ("just words", ("name",)),
    ):
        (tmp_path / "strict.yaml").write_text(text, encoding="utf-8")
        with raises(UsageError, "policy-invalid", *named):
            read_policy(tmp_path / "strict.yaml")


# -- the JSON Schema of policy files: it is the code's, and editors hold the shipped files against it

COMMITTED = SHIPPED.parents[1] / "docs" / "schemas" / "policy.schema.json"


def policy_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a policy file, for editors: its keys and their values one by one.

    What a kind of margin demands, and what inheritance gives, is beyond it.
    """
    schema = _plain(TypeAdapter(PolicyFile).json_schema())
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "q36eval policy", **schema}


def _plain(schema: Any) -> Any:
    """Without titles that only repeat a key's name, and without the default of what need not be said."""
    if isinstance(schema, list):
        return [_plain(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    said = {key: value for key, value in schema.items() if key != "title" or not isinstance(value, str)}
    return {key: _plain(value) for key, value in said.items() if not (key == "default" and value is None)}


def test_the_committed_schema_is_the_codes_and_shipped_files_name_and_keep_it() -> None:
    assert json.loads(COMMITTED.read_text(encoding="utf-8")) == policy_schema()
    Draft202012Validator.check_schema(policy_schema())
    validator = Draft202012Validator(policy_schema())
    for file in sorted(SHIPPED.glob("*.yaml")):
        text = file.read_text(encoding="utf-8")
        named = text.partition("\n")[0].removeprefix("# yaml-language-server: $schema=")
        assert (file.parent / named).resolve() == COMMITTED
        document = yaml.safe_load(text)
        assert not list(validator.iter_errors(document))
        document["mertic"] = "x"
        assert list(validator.iter_errors(document))
