"""What the probe asks and reads must be what lm-eval's own model class asks and reads, to rounding."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from q36eval.engines import Engine, EngineSettings, open_engine
from q36eval.engines.base import ScoreRequest
from q36eval.engines.batches import scoring_batches
from q36eval.engines.shared_prefix import common_prefix
from q36eval.evals.probe import EvalsProbe
from q36eval.evals.suite import LoadedSuite
from q36eval.probes import WorkItem
from q36eval.run.capture import requested_sha256
from q36eval.run.items import Work, finished_items
from tests.evals.small_suite import write_small_suite
from tests.q36eval.openai.server import SANDBOX, Served, opened, serving

FILES = {
    "mmlu/chemical_symbols.jsonl": 15,  # enough that sharing their prefix pays
    "mmlu/czech_rivers.jsonl": 2,
    "mmlu_dev/chemical_symbols.jsonl": 1,
    "mmlu_dev/czech_rivers.jsonl": 1,
    "short_answers/chemical_symbols.jsonl": 2,
    "short_answers/czech_rivers.jsonl": 2,
    "short_answers_dev/chemical_symbols.jsonl": 2,
    "short_answers_dev/czech_rivers.jsonl": 2,
    "ruler/vt.jsonl": 2,
    "ruler/niah_single_2.jsonl": 2,
    "perplexity/czech.jsonl": 10,
}
MAX_LENGTH = 320
"""Longer than the prompts, which are never cut, and shorter than the last document, which is read in windows."""


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_suite(tmp_path_factory.mktemp("suite"), FILES, max_length=MAX_LENGTH)


def by_client(address: str, model: str) -> Any:
    """lm-eval's own client of an endpoint, `local-completions`, with the branch's tokenizer."""
    pytest.importorskip("tenacity", reason="lm-eval's client needs it: pip install lm-eval[api]")
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    # it keeps one token of this for an answer and, of windows, one more for a context that it counts again
    return LocalCompletionsAPI(
        base_url=f"{address}/completions",
        model=model,
        tokenizer=str(SANDBOX),
        tokenizer_backend="huggingface",
        max_length=MAX_LENGTH + 2,
    )


def asked_of_lm_eval(suite: Path, model: Any, cache: Path) -> dict[str, Any]:
    """lm-eval's logged samples by prompt, as that class of its own answers them."""
    from q36eval.evals.lm_tasks import task_configs

    loaded = LoadedSuite(suite)
    configs = [config for group in loaded.suite.groups for config in task_configs(loaded, group, cache)]
    import lm_eval

    results = lm_eval.simple_evaluate(model=model, tasks=configs, bootstrap_iters=0, log_samples=True)
    return {sample["arguments"][0][0]: sample for samples in results["samples"].values() for sample in samples}


def assert_equal(suite: Path, stock: dict[str, Any], engine: Engine) -> list[WorkItem]:
    """Ask everything as a gate does, in batches and with shared prefixes, and compare item by item; returns all."""
    kinds, largest_gap, items = set(), 0.0, list[WorkItem]()
    probe = EvalsProbe(suite)
    for _, item, results in finished_items(engine, [Work(probe, probe.plan(engine.tokenizer))]):
        assert results.error is None
        items.append(item)
        digest = probe.digest(engine, item, results)
        (outcome,) = probe.compare(engine, item, results, digest)
        ours, expected = list(digest.values["responses"]), stock[str(outcome.prompt)]
        theirs = [response[0] for response in expected["resps"]]
        kinds.add(outcome.group)
        if outcome.group == "mmlu":
            # float32 sums of one or two hundred terms in another order: 1e-4 nats is ample and far below a flip.
            assert [one[0] for one in ours] == pytest.approx([one[0] for one in theirs], abs=1e-4)
            assert [one[1] for one in ours] == [one[1] for one in theirs]
            assert outcome.branch.score == expected["acc"]
            largest_gap = max(largest_gap, *(abs(one[0] - other[0]) for one, other in zip(ours, theirs, strict=True)))
        elif outcome.group in ("ruler", "short_answers"):
            assert ours == theirs
            metric = "string_match_all" if outcome.group == "ruler" else "exact_match"
            assert outcome.branch.score == expected[metric]
        else:
            # lm-eval sums a window in float32, whose steps at -708 nats are 6e-5: a millionth is a dozen of them
            assert ours[0] == pytest.approx(theirs[0], rel=1e-6)
            assert outcome.branch.detail["words"] == expected["word_perplexity"][1]
    assert len(items) == len(stock) == sum(FILES[name] for name in FILES if "_dev/" not in name)
    assert kinds == {"mmlu", "short_answers", "ruler", "perplexity"}
    assert largest_gap > 0, "bit for bit alike: nothing was batched or shared, so this shows nothing"
    assert any(len(item.scores) > 1 for item in items), (
        "a document must need two windows for this test to mean anything"
    )
    return items


@pytest.mark.long
def test_log_likelihoods_texts_and_metrics_are_lm_evals(
    suite: Path, tiny_model: Any, engine: Engine, tokenizer: Any, tmp_path: Path
) -> None:
    """Of its own model class, which asks one at a time and without padding."""
    from lm_eval.models.huggingface import HFLM

    own = HFLM(pretrained=tiny_model, tokenizer=tokenizer, batch_size=1, max_length=MAX_LENGTH)
    items = assert_equal(suite, asked_of_lm_eval(suite, own, tmp_path), engine)
    batches = scoring_batches([request for item in items for request in item.scores])
    assert any(common_prefix(batch) for batch in batches), "no prefix was shared, so this shows nothing"


@pytest.mark.long
def test_what_an_endpoint_is_asked_is_what_lm_evals_client_asks(suite: Path, tmp_path: Path) -> None:
    """`local-completions` and `--engine openai` ask one server the same items: log-likelihoods, windows and texts."""
    engine = opened(SANDBOX)
    engine.model.float()  # type: ignore[attr-defined]
    with serving(Served(engine)) as address:
        stock = asked_of_lm_eval(suite, by_client(address, "sandbox"), tmp_path)
        assert_equal(suite, stock, open_engine(EngineSettings(SANDBOX, kind="openai", base_url=address)))


def test_documents_of_one_task_know_the_prefix_they_share(suite: Path, tokenizer: Any) -> None:
    items = EvalsProbe(suite).plan(tokenizer)
    shared: dict[int, list[ScoreRequest]] = {}
    for request in (request for item in items for request in item.scores if request.shared):
        shared.setdefault(request.shared, []).append(request)
    assert sum(map(len, shared.values())) >= 15
    for length, requests in shared.items():
        assert all(request.first > 1 for request in requests), "text without context has nothing to share"
        assert len({request.token_ids[:length] for request in requests}) == 1
        assert len({request.token_ids[: length + 1] for request in requests}) > 1, "as long as it can be"
    item = next(item for item in items if item.scores and item.scores[0].shared)
    apart = replace(item, scores=tuple(replace(request, shared=0) for request in item.scores))
    assert requested_sha256(item) == requested_sha256(apart), "the same question however it was computed"


def test_choices_of_one_question_share_one_request(suite: Path, tokenizer: Any) -> None:
    items = [item for item in EvalsProbe(suite).plan(tokenizer) if len(item.scores) == 1]
    assert len(items) >= 17, "each MMLU question has four one-token choices, read from one request"
