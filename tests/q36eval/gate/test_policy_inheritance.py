"""Policies made of others: what is inherited, changed, dropped and narrowed, and the sentence for each mistake."""

import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter, ValidationError

from q36eval.errors import UsageError
from q36eval.gate import CriterionVerdict, GateReport, Policy, decide
from q36eval.gate.margins import QUANTIZED_TENSORS, margins_for, schemes_found, with_thresholds
from q36eval.gate.policy_file import PolicyFile, policy_problems, read_policy
from q36eval.gate.sequential import failed_lanes
from q36eval.records import Lane, Measurement, ProbeName, Verdict
from q36eval.schemes import parts_of, scheme_name
from tests.q36eval.gate.evidence import FINITE, census, criterion, divergence, measurement, only
from tests.q36eval.stats.evidence import items
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


# -- margins by scheme


CEILING = 0.1
FIGURES = {"W4A16": 0.014, "FP8_BLOCK": 0.004, "NVFP4 + FP8_BLOCK": 0.05}


def policy(figures: dict[str, float] = FIGURES, ceiling: float = CEILING) -> Policy:
    schemes = [{"scheme": name, "value": value, "source": f"the {name} card"} for name, value in figures.items()]
    return only("max_value", ceiling, margin={"source": "ours", "schemes": schemes}, id="kl")


def found(**counts: int) -> list[Measurement]:
    """The census of the weights probe: `NVFP4=3` for three tensors."""
    told = {"all": sum(counts.values()), **counts}
    return [census(ProbeName.WEIGHTS, QUANTIZED_TENSORS, count, name) for name, count in told.items()]


def kl(mean: float) -> Measurement:
    return divergence([mean * (1 + 0.05 * (i % 5 - 2)) for i in range(120)])


def judged(mean: float, weights: Iterable[Measurement], rules: Policy | None = None) -> GateReport:
    return decide(rules or policy(), [FINITE, kl(mean), *weights])


@pytest.mark.parametrize(
    ("weights", "holds"),
    [
        (found(W4A16=5), 0.014),
        (found(NVFP4=5, FP8_BLOCK=1), 0.05),  # the figure of exactly this mixture
        (found(NVFP4=5, FP8_BLOCK=1, W8A16=2), 0.004),  # of another mixture its strictest part's
        (found(NVFP4=5, W4A16=1), 0.014),
        (found(NVFP4=5), CEILING),
        (found(NVFP4=5, W4A16=0), CEILING),  # counted, and none of it
        (found(), 0.004),  # nothing is quantized, so nothing may be lost
    ],
)
def test_the_margin_is_that_of_the_schemes_found(weights: list[Measurement], holds: float) -> None:
    inside, outside = (judged(factor * holds, weights).criteria[0] for factor in (0.9, 1.1))
    assert (inside.verdict, outside.verdict) == (CriterionVerdict.PASS, CriterionVerdict.FAIL)
    assert inside.margin.value == inside.limit == holds
    assert (inside.held.ceiling, inside.held.ceiling_source) == (CEILING, "ours")
    assert (inside.held.accepted is None) == (holds == CEILING)


def test_weights_that_were_not_inspected_pass_the_strictest_and_fail_the_ceiling() -> None:
    verdicts = [judged(mean, []).verdict for mean in (0.003, 0.03, 0.11)]
    assert verdicts == [Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.FAIL]
    assert "not inspected" in judged(0.03, []).criteria[0].reason


def test_what_counts_in_the_margins_of_another_fails_by_its_ceiling_too_where_the_scheme_is_not_known() -> None:
    """A threshold of ten W4A16 margins failed every NVFP4 branch whose weights were not inspected."""
    share = {"beyond_margins": 10, "of": "kl"}
    worst = criterion("max_share", 0.01, margin=share, id="worst", metric="kl_document_max")
    rules = Policy(name="p", criteria=(*policy().criteria, worst))
    documents = items([0.03] * 460 + [0.3] * 40, units=[300] * 500, bounds=(0.0, math.inf))
    mean, tail = [FINITE, kl(0.03)], measurement(ProbeName.KL, "kl_document_max", documents, "maximum")
    unknown = decide(rules, [*mean, tail])
    assert {c.id for c in unknown.criteria if c.verdict is CriterionVerdict.INCONCLUSIVE} == {"kl", "worst"}
    assert failed_lanes(rules, [*mean, tail], {ProbeName.KL}) == {}
    assert decide(rules, [*mean, tail, *found(NVFP4=5)]).verdict is Verdict.PASS
    assert decide(rules, [*mean, tail, *found(W4A16=5)]).verdict is Verdict.FAIL


def test_more_bits_may_lose_no_more_and_a_census_that_lost_a_part_is_no_inspection() -> None:
    for scheme, holds in (("W8A16", 0.014), ("W2A16", CEILING), ("W4A8", CEILING)):
        held = margins_for(policy({"W4A16": 0.014}), frozenset({scheme})).policy.criteria[0].margin.value
        assert held == holds
    whole = found(NVFP4=3, W4A16=2)
    assert schemes_found(whole) == {"NVFP4", "W4A16"}
    for lost in range(len(whole)):
        assert schemes_found(whole[:lost] + whole[lost + 1 :]) is None


SETS = st.none() | st.frozensets(st.sampled_from(["NVFP4", "NVFP4_A16", "FP8_BLOCK", "W4A16", "W8A16"]))
SOME_FIGURES = st.dictionaries(
    st.frozensets(st.sampled_from(["NVFP4", "FP8_BLOCK", "W4A16"]), min_size=1).map(" + ".join),
    st.floats(0.001, CEILING),
    max_size=4,
).filter(lambda figures: len({parts_of(name) for name in figures}) == len(figures))


@given(schemes=SETS, more=st.sampled_from(["NVFP4", "FP8_BLOCK", "W4A16"]), figures=SOME_FIGURES)
def test_no_figure_allows_more_than_the_ceiling_and_no_unknown_part_eases_one(
    schemes: frozenset[str] | None, more: str, figures: dict[str, float]
) -> None:
    def limit(parts: frozenset[str] | None) -> float:
        return margins_for(policy(figures), parts).policy.criteria[0].margin.value

    assert limit(schemes) <= CEILING
    assert limit(None) == min([*figures.values(), CEILING])
    if schemes and not any(parts_of(name) == schemes | {more} for name in figures):
        exact = [value for name, value in figures.items() if parts_of(name) == schemes]
        # one part more makes no mixture laxer, unless it loses the figure that was set for exactly the old one
        assert limit(schemes | {more}) <= limit(schemes) or exact


@given(mean=st.sampled_from([0.003, 0.012, 0.03, 0.12]), told=st.booleans())
def test_what_failed_before_the_weights_were_known_fails_after(mean: float, told: bool) -> None:
    early = [kl(mean), *(found(W4A16=1) if told else [])]
    failed = failed_lanes(policy(), early, set(ProbeName))
    for rest in ([], found(NVFP4=1), found(W4A16=1), found()):
        report = decide(policy(), early if told else [*early, *rest])
        assert not failed or report.verdict is Verdict.FAIL
    assert (Lane.FREEFORM in failed) == (mean > (0.014 if told else CEILING))


def test_consequences_have_one_margin_for_all() -> None:
    figure = {"scheme": "NVFP4", "value": 0.05, "source": "a card"}
    for probe, metric in (("evals", "accuracy"), ("canaries", "decisive_margin_ratio"), ("weights", "x")):
        with pytest.raises(ValidationError, match="margin") as refused:
            criterion("max_increase", 0.1, margin={"schemes": [figure]}, probe=probe, metric=metric)
        assert len(refused.value.errors()) == 1


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"NVPF4": 0.05}, "'NVPF4'"),
        ({"NVFP4": 0.11}, "0.11 of NVFP4"),
        ({"NVFP4 + W4A16": 0.05, "W4A16+NVFP4": 0.06}, "more than one figure"),
        ({"NVFP4 + NVFP4": 0.05}, "names a part twice"),
        ({"NVFP4": -0.1}, "is not negative"),
    ],
)
def test_a_figure_that_could_never_hold_is_refused(figures: dict[str, float], words: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(words)):
        policy(figures)


def test_every_name_that_inspection_gives_may_stand_in_a_policy() -> None:
    names = {
        ("NVFP4", "nvfp4"): "NVFP4",
        ("NVFP4", None): "NVFP4_A16",
        ("NVFP4", "fp8"): "NVFP4_AFP8",
        ("FP8_BLOCK", "fp8"): "FP8_BLOCK",
        ("FP8_BLOCK", None): "FP8_BLOCK_A16",
        ("INT4", None): "W4A16",
        ("INT8", "int8-asymmetric"): "W8A8",
        ("INT4", "fp8"): "W4AFP8",
    }
    assert {pair: scheme_name(*pair) for pair in names} == names
    assert all(parts_of(name) == {name} for name in names.values())
