"""What the probe says it will yield is what it yields, and what it says of the reference: whole runs, scripted."""

from pathlib import Path
from typing import Any

import pytest

from q36eval.canaries.cases import Case
from q36eval.canaries.probe import CanaryProbe
from q36eval.canaries.specification import load_specs
from q36eval.config.family import Family
from q36eval.files import read_yaml
from q36eval.records import FailureCauses, FamilyCompetence
from tests.canaries.runs import gated, right
from tests.declared import assert_declared

pytestmark = pytest.mark.long

FAMILIES = Path(__file__).parents[2] / "data" / "families"


@pytest.mark.parametrize("family", ["sandbox", "qwen3.6-35b-a3b"])
def test_exactly_what_is_declared_is_measured(family: str, tokenizer: Any, tmp_path: Path) -> None:
    skills = read_yaml(FAMILIES / f"{family}.yaml", Family, "family").skills
    specs = load_specs(n=1, skills=skills)
    declared = {figure.key.removeprefix("canaries."): figure for figure in CanaryProbe(specs).declared()}
    measurements = gated(specs, tokenizer, tmp_path).measurements
    del measurements["engine_drift[all]"]  # the run's, of every probe's engine
    assert_declared(declared, measurements)
    assert "must_pass_flips[discount-compare-must-pass]" in measurements
    for key, measured in measurements.items():
        figure = declared[key]
        if measured.metric != "schema_accuracy":  # of calls that are made, which only answers tell
            clusters = measured.clusters
            assert (figure.items, figure.clusters) == (measured.counts.total, len(clusters.units)), key
            assert measured.counts.scored == measured.counts.total, key
        assert (measured.competence is None) == (measured.estimator in ("census", "mean")), key


def test_each_rate_says_what_the_reference_solves_and_why_answers_are_not_right(tokenizer: Any, tmp_path: Path) -> None:
    specs = load_specs(only=["json-flat", "tool-call", "enum-select-must-pass", "stability"], n=6, skills=None)
    faults = {
        "json-flat/1": ("{", "length"),
        "json-flat/2": ("nevím", "stop"),
        "json-flat/3": ("", "error"),
        "stability/1": ("dokola a dokola " * 200, "length"),
    }

    def reference(case: Case) -> tuple[str, str]:
        return faults.get(case.name) or right(case)

    def branch(case: Case) -> tuple[str, str]:
        return ("nevím", "stop") if case.name == "json-flat/6" else reference(case)

    sink = gated(specs, tokenizer, tmp_path, reference, branch)
    rate = sink.measurements["failure_rate[all]"]
    causes = {"cut_off": 1, "errored": 1, "wrong": 1}
    assert rate.competence == (
        FamilyCompetence(name="json-flat", items=6, informative=3, causes=causes),
        FamilyCompetence(name="stability", items=6, informative=5, causes={"loop": 1}),
        FamilyCompetence(name="tool-call", items=6, informative=6),
    )
    assert rate.causes == FailureCauses(
        branch={"cut_off": 1, "errored": 1, "loop": 1, "wrong": 2}, reference=causes | {"loop": 1}
    )
    assert rate.clusters.families is not None
    assert {name.partition("/")[0] for name in rate.clusters.names or ()} == set(rate.clusters.families)
    assert sink.measurements["decisive_margin_ratio[json-flat]"].competence == rate.competence[:1]

    half = [outcome for number, outcome in enumerate(sink.items.values()) if number % 2]
    resumed = gated(specs, tokenizer, tmp_path, reference, branch, items=half)
    theirs = {key: m.model_copy(update={"clusters": None}) for key, m in resumed.measurements.items()}
    assert theirs == {key: m.model_copy(update={"clusters": None}) for key, m in sink.measurements.items()}
