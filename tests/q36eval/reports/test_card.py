"""The card tells what was measured and nothing else, loads as a model card, and goes into one that is there."""

import json
import math
import re
from datetime import date
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard

from q36eval.errors import UsageError
from q36eval.gate import GateReport, Policy, Waiver, decide
from q36eval.history.records import RunRecord
from q36eval.records import Interval, Lane, Measurement, ProbeFailure, ProbeName
from q36eval.reports import Document
from q36eval.reports.card_report import to_card, update_card
from tests.app.judged_runs import IDENTITY
from tests.q36eval.gate.evidence import FINITE, HIGHER, criterion, measurement
from tests.q36eval.reports.report_samples import run_of
from tests.q36eval.stats.evidence import items
from tests.raising import raises

HOSTILE = "\x1b[31ma|b</b><script>\x00\u202e`x` ![i](http://evil) @all #1\n---\n# big ::error::"
DAY = date(2026, 5, 1)
BOTH = (Lane.STRUCTURED, Lane.FREEFORM)
LOOK_ALIKE = {"title": "four-choice questions of the sandbox"}
REAL = {"title": "MMLU, 57 subjects", "dataset": "cais/mmlu", "revision": "c" * 40, "num_fewshot": 5}


def accuracy(slice_name: str, wrong: int, of: int = 400, errored: int = 0) -> Measurement:
    lost = [errored, *[0] * (of - 1)]
    clusters = items([i >= wrong for i in range(of)], [1] * of, [1] * of, lost)
    return measurement(ProbeName.EVALS, "accuracy", clusters, "paired_mean", HIGHER, slice_name, "fraction")


def divergence(value: float) -> Measurement:
    clusters = items([10 * value * (1 + i % 3) for i in range(40)], units=[10] * 40, bounds=None)
    return measurement(ProbeName.KL, "kl_divergence", clusters, "mean", unit="nats/token")


PROMISED = {"source": "card promises 99 % and 0.5555 elsewhere"}
MMLU = {"id": "mmlu", "probe": "evals", "metric": "accuracy", "slice": "mmlu", "lanes": BOTH}
POLICY = Policy(
    name="p",
    criteria=(
        criterion("min_recovery", 0.9, margin=PROMISED, **MMLU),
        criterion("max_value", 0.1, id="kl", lanes=BOTH, min_clusters=8),
    ),
)


def run(measured_on: dict[str, Any] | None = None, **changes: Any) -> RunRecord:
    kept = {} if measured_on is None else {"measured_on": {"evals": measured_on, "kl": {"all": {"title": "texts"}}}}
    fields: dict[str, Any] = {
        "identity": IDENTITY,
        "reference_identity": IDENTITY,
        "provenance": {"packages": {"q36eval": "0.1.0"}, "exhaustive": True, **kept},
        "suites": {"evals": "e" * 64, "kl": "f" * 64},
    }
    return run_of(**{"branch": "fp8-head"} | fields | changes)


def judged(*measurements: Measurement, waivers: tuple[Waiver, ...] = (), failed: bool = False) -> GateReport:
    """Without waivers the divergence alone blocks, so that a run may pass whose evals were not measured."""
    failures = [ProbeFailure(probe=ProbeName.EVALS, reason=HOSTILE, kind="crashed")] if failed else []
    advisory = POLICY.criteria[0].model_copy(update={"tier": "blocking" if waivers else "advisory"})
    policy = POLICY.model_copy(update={"criteria": (advisory, *POLICY.criteria[1:])})
    return decide(policy, [FINITE, *measurements], list(waivers), failures, on=DAY)


def card_of(*found: Measurement, on: dict[str, Any] | None = None, **how: Any) -> str:
    """The card of a run that found that; `on` is what it says its items are."""
    return to_card(Document(judged(*found, **how), run({"mmlu": REAL} if on is None else on), list(found)))


def test_it_loads_as_a_model_card_and_its_results_are_the_measurements() -> None:
    found = [accuracy("mmlu", 4), divergence(0.01)]
    card = ModelCard(card_of(*found))
    results = {result.metric_type: result for result in card.data.eval_results}
    assert card.data.model_name == "fp8-head"
    mmlu, kl = results["accuracy"], results["kl_divergence"]
    assert (mmlu.dataset_type, mmlu.dataset_revision, mmlu.metric_value) == ("cais/mmlu", "c" * 40, found[0].value)
    assert mmlu.dataset_args == {"suite_sha256": "e" * 64, "num_few_shot": 5}
    assert mmlu.metric_args["reference_value"] == 1.0
    recovery = mmlu.metric_args["comparison"]
    assert (recovery["of"], recovery["value"]) == ("recovery", 0.99)
    assert recovery["lower"] < 0.99 < recovery["upper"]
    assert (kl.dataset_type, kl.metric_value) == ("q36eval", found[1].value)
    assert kl.metric_args["interval"]["lower"] < kl.metric_value < kl.metric_args["interval"]["upper"]
    assert ModelCard(str(card)).data.eval_results == card.data.eval_results
    assert "5-shot" in card.text


def test_the_hub_keeps_datasets_apart_that_are_on_no_hub() -> None:
    """It groups results by the dataset's type, config and revision, and then knows one name for all of them."""
    on = {"mmlu": LOOK_ALIKE, "other": {"title": "short answers"}}
    card = card_of(accuracy("mmlu", 4), accuracy("other", 4), divergence(0.01), on=on)
    loaded = ModelCard(card).data.eval_results
    assert {result.dataset_name for result in loaded} == {LOOK_ALIKE["title"], "short answers", "texts"}


def test_fit_lanes_first_and_the_same_bytes_every_time() -> None:
    found = [accuracy("mmlu", 4), divergence(0.01)]
    text = card_of(*found)
    assert text == card_of(*reversed(found))
    assert text.index("**Fit for structured output") < text.index("### Figures")
    ruined = [accuracy("mmlu", 300), divergence(0.01)]
    for found in ([], [divergence(0.5)], ruined):
        report = decide(POLICY, [FINITE, *found], on=DAY)
        with raises(UsageError, "card-without-pass"):
            to_card(Document(report, run(), found))
    waiver = Waiver(owner="eva", reason="known", criterion="mmlu", expires=DAY)
    text = card_of(*ruined, waivers=(waiver,))
    assert "with exceptions: accuracy (MMLU" in text
    assert "waived by eva until 2026-05-01: known" in text


@pytest.mark.parametrize("measured_on", [{"mmlu": LOOK_ALIKE}, None])
@pytest.mark.parametrize("wrong", [4, 300])
def test_items_in_a_benchmarks_form_never_bear_its_name(measured_on: dict[str, Any] | None, wrong: int) -> None:
    found = [accuracy("mmlu", wrong), divergence(0.01)]
    texts = [to_card(Document(judged(*found), run(measured_on), found))]
    texts.append(to_card(Document(judged(found[1]), run(measured_on))))
    waiver = Waiver(owner="eva", reason="known", criterion="mmlu", expires=DAY)
    texts.append(to_card(Document(judged(*found, waivers=(waiver,)), run(measured_on), found)))
    for text in texts:
        assert "mmlu" not in text.lower()


def numbers(text: str) -> set[str]:
    return set(re.findall(r"\d+(?:\.\d+)+", text))


def test_no_number_that_was_not_measured() -> None:
    """Neither of a criterion that was not measured, nor a margin's source, nor what a crashed probe left behind."""
    found = [accuracy("mmlu", 37, errored=40), accuracy("other", 23), divergence(0.01)]
    told = numbers(card_of(*found))
    assert not {"90.8", "90.75", "0.5555", "0.9075"} & told
    assert "94.2" in told  # of the group that no criterion judges
    bounds = Interval(lower=0.9, upper=0.97, level=0.95, method="betting")
    recovered = found[1].model_copy(update={"metric": "recovery", "value": 0.94, "effect_interval": bounds})
    shown = [one.metric_args.get("comparison") for one in ModelCard(card_of(*found, recovered)).data.eval_results]
    assert all(one["lower"] <= one["value"] <= one["upper"] for one in shown if one)
    crashed = card_of(*found, failed=True)
    assert not {"90.8", "94.2", "0.9425"} & numbers(crashed)
    assert [result.metric_type for result in ModelCard(crashed).data.eval_results] == ["kl_divergence"]
    assert "its probe broke off" in crashed


@pytest.mark.parametrize(("value", "told"), [(math.inf, ["Infinity"]), (math.nan, [])])
def test_figures_that_are_no_finite_numbers(value: float, told: list[str]) -> None:
    """Infinite is what was measured, and told as text; NaN is no figure."""
    interval = Interval(lower=0.0, upper=math.inf, level=0.95, method="none: infinite")
    other = accuracy("g", 4).model_copy(update={"value": value, "effect": value, "effect_interval": interval})
    card = ModelCard(to_card(Document(judged(divergence(0.01)), run({"g": LOOK_ALIKE}), [other])))
    assert [result.metric_value for result in card.data.eval_results if result.metric_type == "accuracy"] == told
    json.dumps(card.data.to_dict(), allow_nan=False)


def test_hostile_text_is_inert_and_no_path_of_the_machine_is_told() -> None:
    found = [accuracy("mmlu", 300), accuracy(HOSTILE, 2), divergence(0.01)]
    on = {"mmlu": {"title": HOSTILE}, HOSTILE: {"title": HOSTILE}}
    hostile = run(on, branch=f"/home/someone/{HOSTILE}", suites={"evals": HOSTILE, HOSTILE: HOSTILE})
    waiver = Waiver(owner=HOSTILE, reason=HOSTILE, criterion="mmlu", expires=DAY)
    for report in (judged(*found, waivers=(waiver,)), judged(*found, failed=True)):
        text = to_card(Document(report, hostile, found))
        assert not {c for c in text if c != "\n" and (ord(c) < 32 or c in "\x7f\u202e\x00")}
        body = ModelCard(text).text
        assert "<script>" not in body
        assert "http://" not in body
        assert "/home" not in text
        assert not re.search(r"(?m)^(# big|---|::error)", body)
        rows = [line for line in body.splitlines() if line.startswith("| ")]
        assert {row.replace("\\|", "").count("|") for row in rows} <= {6, 10}


OTHERS = """---
license: apache-2.0
base_model: Qwen/Qwen3.6-35B-A3B
model-index:
- name: mine
  results:
  - task: {type: text-generation}
    dataset: {name: Other, type: other/set}
    metrics:
    - {type: accuracy, value: 0.5}
---
# My model

Words of mine.
"""


def test_it_goes_into_any_card_but_a_broken_one_and_replaces_only_its_own() -> None:
    second = accuracy("mmlu", 8)
    once = update_card(OTHERS, card_of(accuracy("mmlu", 4), divergence(0.01)))
    card = ModelCard(once)
    assert [result.metric_type for result in card.data.eval_results] == ["accuracy", "kl_divergence", "accuracy"]
    assert (card.data.model_name, card.data.license) == ("mine", "apache-2.0")
    assert card.text.startswith("# My model\n\nWords of mine.\n")
    newer = card_of(second, divergence(0.01))
    twice = update_card(once, newer)
    assert update_card(twice, newer) == twice
    values = [result.metric_value for result in ModelCard(twice).data.eval_results]
    assert sorted(values) == [divergence(0.01).value, 0.5, second.value]
    assert twice.count("## Measured quality") == 1
    assert "Words of mine." in twice
    card = card_of(accuracy("mmlu", 4), divergence(0.01))
    assert ModelCard(update_card("", card)).data.eval_results == ModelCard(card).data.eval_results
    assert "# Title" in update_card("# Title\n", card)
    marked = update_card("\ufeff---\nlicense: mit\n---\n# Title\n", card)
    assert ModelCard(marked).data.license == "mit"
    with raises(UsageError, "card-malformed"):
        update_card("---\na: [\n---\ntext\n", card)


def test_a_published_branch_is_called_by_its_repository() -> None:
    found = [divergence(0.01)]
    subject = {"base_model": "Qwen/Qwen3.6-35B-A3B", "repository": "me/Q-NVFP4", "revision": "fp8-head"}
    subject["commit"] = "0123456789abcdef0123456789abcdef01234567"
    record = run({})
    record = record.model_copy(update={"provenance": record.provenance | {"subject": subject}})
    text = to_card(Document(judged(*found), record, found))
    metadata = yaml.safe_load(text.split("---\n")[1])
    assert (metadata["base_model"], metadata["base_model_relation"]) == ("Qwen/Qwen3.6-35B-A3B", "quantized")
    assert metadata["model-index"][0]["name"] == "Q-NVFP4"
    assert "at revision `fp8-head`" in text
    made_here = {**subject, "base_model": "the sandbox (trained here)"}
    record = record.model_copy(update={"provenance": record.provenance | {"subject": made_here}})
    assert "base_model" not in yaml.safe_load(to_card(Document(judged(*found), record, found)).split("---\n")[1])
