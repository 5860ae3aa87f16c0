"""The probe's outcomes and measurements: flips, errors that are never wrong answers, perplexity by tokens."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from evals.probe import EvalsProbe
from evals.suite import LoadedSuite, TaskGroup
from evals.summaries import measurements
from q36eval.errors import UsageError
from q36eval.probes import Digest, ItemResults
from q36eval.records import Answer, ItemOutcome, ProbeName

ROOT = Path(__file__).resolve().parents[2]
SUITE = ROOT / "evals/suites/sandbox.yaml"


@pytest.fixture(scope="module")
def loaded() -> LoadedSuite:
    return LoadedSuite(SUITE)


def group_named(loaded: LoadedSuite, name: str) -> TaskGroup:
    return next(group for group in loaded.suite.groups if group.name == name)


def _outcome(number: int, branch: float | None, reference: float | None, **fields: Any) -> ItemOutcome:
    detail = fields.pop("detail", ({}, {}))
    return ItemOutcome(
        probe=ProbeName.EVALS,
        item_key=str(number),
        branch=Answer(score=branch, error=None if branch is not None else "gone", detail=detail[0]),
        reference=Answer(score=reference, error=None if reference is not None else "gone", detail=detail[1]),
        **({"group": "mmlu", "cluster": f"fact {number}", "stratum": "law"} | fields),
    )


def test_accuracy_is_paired_counts_errors_apart_and_groups_questions_about_one_fact(loaded: LoadedSuite) -> None:
    group = group_named(loaded, "mmlu")
    outcomes = [_outcome(i, 1.0, 1.0) for i in range(6)]
    outcomes += [_outcome(6, 0.0, 1.0), _outcome(7, 0.0, 1.0, cluster="fact 6"), _outcome(8, 1.0, 0.0)]
    outcomes += [_outcome(9, None, 1.0), _outcome(10, 1.0, None)]
    whole, subject = measurements(group, outcomes)
    assert (whole.slice, subject.slice) == ("mmlu", "mmlu/law")
    assert whole.counts.model_dump() == {"total": 11, "scored": 9, "errored": 2}
    assert whole.value == pytest.approx(7 / 9)
    assert whole.reference_value == pytest.approx(8 / 9)
    assert whole.effect == pytest.approx(-1 / 9)
    assert whole.clusters is not None
    assert len(whole.clusters.units) == 10, "two questions about fact 6 are one cluster"
    assert "2 items lost and 1 gained" in whole.note


def test_ruler_is_sliced_by_kind_and_by_length(loaded: LoadedSuite) -> None:
    outcomes = [
        _outcome(i, 1.0, 1.0, group="ruler", stratum=f"{kind}/{length}")
        for i, (kind, length) in enumerate((kind, length) for kind in ("vt", "qa") for length in (1024, 256))
    ]
    found = [measurement.slice for measurement in measurements(group_named(loaded, "ruler"), outcomes)]
    assert found == ["ruler", "ruler/qa", "ruler/vt", "ruler/256", "ruler/1024"]


def test_perplexity_weighs_documents_by_their_tokens_and_leaves_errored_ones_out(loaded: LoadedSuite) -> None:
    def document(number: int, tokens: int, branch_nll: float, reference_nll: float) -> ItemOutcome:
        details = tuple({"nll_nats": nll, "tokens": tokens, "words": 2} for nll in (branch_nll, reference_nll))
        return _outcome(number, 1.0, 1.0, group="perplexity", stratum="czech", detail=details)

    failed = _outcome(2, None, 1.0, group="perplexity", stratum="czech", detail=({"tokens": 5}, {"tokens": 5}))
    whole, czech = measurements(
        group_named(loaded, "perplexity"), [document(0, 10, 20.0, 10.0), document(1, 30, 20.0, 10.0), failed]
    )
    assert (whole.slice, czech.slice) == ("all", "czech")
    assert whole.value == pytest.approx(math.exp(40 / 40))
    assert whole.reference_value == pytest.approx(math.exp(20 / 40))
    assert whole.effect == pytest.approx(math.exp(0.5))
    assert whole.counts.model_dump() == {"total": 45, "scored": 40, "errored": 5}


def test_engine_errors_and_nan_become_errored_answers_never_wrong_ones(engine: Any, tokenizer: Any) -> None:
    import torch

    probe = EvalsProbe(SUITE)
    items = probe.plan(tokenizer)
    assert len({request.key for item in items for request in (*item.scores, *item.generations)}) == sum(
        len(item.scores) + len(item.generations) for item in items
    )
    item = next(item for item in items if item.scores)
    (scored,) = engine.score(item.scores)
    good = probe.digest(engine, item, ItemResults({scored.request.key: scored}))
    json.dumps(good.values, allow_nan=False)

    broken = type(scored)(scored.request, None, error="out of memory")
    (outcome,) = probe.compare(engine, item, ItemResults({scored.request.key: broken}), good)
    assert outcome.branch.score is None
    assert outcome.branch.error == "out of memory"
    assert outcome.reference.score is not None
    nan = type(scored)(scored.request, torch.full_like(scored.hidden_states, math.nan))
    (outcome,) = probe.compare(engine, item, ItemResults({scored.request.key: nan}), Digest(error="no reference"))
    assert outcome.branch.score is None
    assert outcome.reference.error == "no reference"
    assert outcome.flip is None


def test_the_suite_hash_follows_what_is_asked(tmp_path: Path, loaded: LoadedSuite) -> None:
    suite = yaml.safe_load(SUITE.read_text(encoding="utf-8"))
    for group in suite["groups"]:
        group["task"] = str(ROOT / "evals/tasks" / Path(group["task"]).name)
    path = tmp_path / "suite.yaml"
    suite["max_length"] -= 1
    path.write_text(yaml.safe_dump(suite), encoding="utf-8")
    assert LoadedSuite(path, ROOT / "data/tasks/sandbox").sha256 != loaded.sha256


def test_malformed_suites_are_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"suites there: .*sandbox"):
        LoadedSuite(SUITE.with_name("sandbx.yaml"))
    path = tmp_path / "suite.yaml"
    path.write_text("name: x\ndata: .\nmax_length: 100\ngroups: []\nlimit: 3\n", encoding="utf-8")
    with pytest.raises(UsageError, match="groups"):
        LoadedSuite(path)
    path.write_text("name: [", encoding="utf-8")
    with pytest.raises(UsageError, match="not YAML"):
        LoadedSuite(path)
