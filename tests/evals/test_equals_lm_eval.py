"""What the probe asks and reads must be what lm-eval's own model class asks and reads, to rounding."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from evals.frozen import write_frozen
from evals.probe import EvalsProbe
from evals.suite import LoadedSuite
from q36eval.engines.in_process import InProcessEngine
from q36eval.probes import ItemResults

ROOT = Path(__file__).resolve().parents[2]
FROZEN = ROOT / "data/tasks/sandbox"
FILES = {
    "mmlu/chemical_symbols.jsonl": 3,
    "mmlu/czech_rivers.jsonl": 2,
    "mmlu_dev/chemical_symbols.jsonl": 1,
    "mmlu_dev/czech_rivers.jsonl": 1,
    "short_answers/chemical_symbols.jsonl": 2,
    "short_answers/czech_rivers.jsonl": 2,
    "short_answers_dev/chemical_symbols.jsonl": 2,
    "short_answers_dev/czech_rivers.jsonl": 2,
    "ruler/vt.jsonl": 2,
    "ruler/niah_multikey_2.jsonl": 2,
    "perplexity/czech.jsonl": 2,
}
MAX_LENGTH = 200
"""Shorter than the documents, so that rolling windows and the truncation of long prompts are covered too."""


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("suite")
    records = {
        name: [json.loads(line) for line in (FROZEN / name).read_text(encoding="utf-8").splitlines()[:count]]
        for name, count in FILES.items()
    }
    write_frozen(folder / "data", "a few", 0, records, {})
    suite = yaml.safe_load((ROOT / "evals/suites/sandbox.yaml").read_text(encoding="utf-8"))
    suite |= {"data": "data", "max_length": MAX_LENGTH}
    subjects = ("chemical_symbols", "czech_rivers")
    kept = {"mmlu": subjects, "short_answers": subjects, "ruler": ("vt", "niah_multikey_2"), "perplexity": ("czech",)}
    for group in suite["groups"]:
        group["task"] = str(ROOT / "evals/tasks" / Path(group["task"]).name)
        group["subsets"] = {name: group["subsets"][name] for name in kept[group["name"]]}
    path = folder / "suite.yaml"
    path.write_text(yaml.safe_dump(suite), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def stock(suite: Path, tiny_model: Any, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """lm-eval's logged samples by task and prompt."""
    from evals.lm_tasks import task_configs

    loaded, cache = LoadedSuite(suite), tmp_path_factory.mktemp("cache")
    configs = [config for group in loaded.suite.groups for config in task_configs(loaded, group, cache)]
    import lm_eval
    from lm_eval.models.huggingface import HFLM

    model = HFLM(pretrained=tiny_model, tokenizer=tokenizer, batch_size=1, max_length=MAX_LENGTH)
    results = lm_eval.simple_evaluate(model=model, tasks=configs, bootstrap_iters=0, log_samples=True)
    assert results is not None
    return {sample["arguments"][0][0]: sample for samples in results["samples"].values() for sample in samples}


def test_log_likelihoods_texts_and_metrics_are_lm_evals(
    suite: Path, stock: dict[str, Any], engine: InProcessEngine, tokenizer: Any
) -> None:
    probe = EvalsProbe(suite)
    items = probe.plan(tokenizer)
    assert len(items) == len(stock) == 15
    kinds = set()
    for item in items:
        results = ItemResults(
            {scored.request.key: scored for scored in engine.score(item.scores)},
            {generated.request.key: generated for generated in engine.generate(item.generations)},
        )
        digest = probe.digest(engine, item, results)
        (outcome,) = probe.compare(engine, item, results, digest)
        assert outcome.prompt is not None
        expected = stock[outcome.prompt]
        ours, theirs = digest.values["responses"], [response[0] for response in expected["resps"]]
        kinds.add(outcome.group)
        if outcome.group == "mmlu":
            # float32 sums of one or two hundred terms in another order: 1e-4 nats is ample and far below a flip.
            assert [one[0] for one in ours] == pytest.approx([one[0] for one in theirs], abs=1e-4)
            assert [one[1] for one in ours] == [one[1] for one in theirs]
            assert outcome.branch.score == expected["acc"]
        elif outcome.group in ("ruler", "short_answers"):
            assert ours == theirs
            metric = "string_match_all" if outcome.group == "ruler" else "exact_match"
            assert outcome.branch.score == expected[metric]
        else:
            assert ours[0] == pytest.approx(theirs[0], abs=1e-3)  # a sum over more than two hundred tokens
            assert outcome.branch.detail["words"] == expected["word_perplexity"][1]
    assert kinds == {"mmlu", "short_answers", "ruler", "perplexity"}
    assert any(len(item.scores) > 1 for item in items), (
        "a document must need two windows for this test to mean anything"
    )


def test_choices_of_one_question_share_one_request(suite: Path, tokenizer: Any) -> None:
    items = [item for item in EvalsProbe(suite).plan(tokenizer) if len(item.scores) == 1]
    assert len(items) >= 5, "five MMLU questions have four one-token choices each, read from one request"
