"""The evals probe: lm-eval's tasks and scoring, with our engine in the place of lm-eval's model."""

import math
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evals.encoding import Encoded, Encoder, responses
from evals.suite import LoadedSuite
from evals.summaries import measurements
from q36eval.engines.base import Engine
from q36eval.probes import Digest, ItemResults, WorkItem
from q36eval.records import Answer, ItemOutcome, Measurement, ProbeName

if TYPE_CHECKING:
    from evals.lm_tasks import Document


class EvalsProbe:
    """Implements `q36eval.probes.Probe`; one work item per lm-eval document.

    Choices of one document that share their context and differ in one token are read from a single score request.
    """

    name = ProbeName.EVALS

    def __init__(
        self,
        suite: Path,
        *,
        data: Path | None = None,
        cache_dir: Path | None = None,
        allow_code_execution: bool = False,
    ) -> None:
        """Read the suite file and verify its frozen data; `data` replaces the folder the suite names.

        Groups that run what the model wrote are left out unless `allow_code_execution`; `skipped` says so.

        lm-eval keeps converted data in `cache_dir`, by default in a folder that is removed after planning.

        Raises:
            UsageError: the suite is malformed or its data is not what its manifest says.
        """
        self._loaded = LoadedSuite(suite, data, allow_code_execution=allow_code_execution)
        self._cache_dir = cache_dir
        self._asked: dict[str, tuple[Document, Encoded]] = {}
        self.suite_sha256 = self._loaded.sha256
        self.skipped = self._loaded.skipped

    def plan(self, tokenizer: Any) -> list[WorkItem]:
        """Every document of every task, encoded as lm-eval's `HFLM` would encode it."""
        from evals.lm_tasks import load_documents

        encoder = Encoder(tokenizer, self._loaded.suite.max_length)
        with tempfile.TemporaryDirectory() as temporary:
            documents = load_documents(self._loaded, self._cache_dir or Path(temporary), tokenizer)
        self._asked = {
            document.key: (document, encoder.encode(f"evals/{document.key}", document.instances))
            for document in documents
        }
        return [
            WorkItem(key=key, scores=encoded.scores, generations=encoded.generations)
            for key, (_, encoded) in self._asked.items()
        ]

    def digest(self, engine: Engine, item: WorkItem, results: ItemResults) -> Digest:
        """The deployment's log-likelihoods or text for one document, and lm-eval's metrics of them."""
        document, encoded = self._asked[item.key]
        found = responses(encoded, engine, results)
        if _not_finite(found):
            return Digest(error="the log-likelihoods are not numbers")
        return Digest(values={"responses": found, "metrics": _plain(document.metrics(found))})

    def compare(self, engine: Engine, item: WorkItem, results: ItemResults, reference: Digest) -> list[ItemOutcome]:
        """The branch's answer to one document beside the reference's."""
        document, encoded = self._asked[item.key]
        own = Digest(error=results.error) if results.error else self.digest(engine, item, results)
        return [
            ItemOutcome(
                probe=self.name,
                group=document.group.name,
                item_key=item.key,
                cluster=document.cluster,
                stratum=document.stratum,
                prompt=str(document.instances[0].args[0]),
                expected=_expected(document),
                branch=_answer(document, encoded, own),
                reference=_answer(document, encoded, reference),
            )
        ]

    def summarize(self, outcomes: Sequence[ItemOutcome]) -> Iterator[Measurement]:
        """Accuracy of each group and its slices; perplexity over all documents and by slice."""
        for group in self._loaded.groups:
            yield from measurements(group, [outcome for outcome in outcomes if outcome.group == group.name])


def _answer(document: "Document", encoded: Encoded, digest: Digest) -> Answer:
    """One deployment's answer; the detail says how sure it was."""
    tokens = sum(len(request.token_ids) - request.first for request in encoded.scores)
    if digest.error is not None:
        return Answer(score=None, error=digest.error, detail={"tokens": tokens})
    found, metrics = digest.values["responses"], digest.values["metrics"]
    if document.group.measure == "perplexity":
        return _perplexity_answer(metrics, tokens)
    score = float(metrics[document.group.metric])
    if not document.choices:
        return Answer(score=score, text=str(found[0]))
    return _choice_answer(document, score, [float(log_likelihood) for log_likelihood, _ in found])


def _perplexity_answer(metrics: dict[str, Any], tokens: int) -> Answer:
    log_likelihood, words = metrics["word_perplexity"]
    _, text_bytes = metrics["byte_perplexity"]
    detail = {"nll_nats": -float(log_likelihood), "tokens": tokens, "words": int(words), "bytes": int(text_bytes)}
    return Answer(score=-float(log_likelihood) / tokens, detail=detail)


def _choice_answer(document: "Document", score: float, log_likelihoods: list[float]) -> Answer:
    choices, target = document.choices, document.target
    best = max(range(len(choices)), key=log_likelihoods.__getitem__)
    detail: dict[str, Any] = {"log_likelihoods": dict(zip(choices, log_likelihoods, strict=True))}
    if isinstance(target, int):
        others = [value for index, value in enumerate(log_likelihoods) if index != target]
        detail["margin_nats"] = log_likelihoods[target] - max(others)
    return Answer(score=score, text=choices[best], detail=detail)


def _expected(document: "Document") -> str | None:
    target = document.target
    if document.group.measure == "perplexity":
        return None
    if document.choices and isinstance(target, int):
        return document.choices[target]
    return ", ".join(map(str, target)) if isinstance(target, list) else str(target)


def _not_finite(found: Sequence[Any]) -> bool:
    """Whether a log-likelihood is NaN. Minus infinity is a value: the deployment holds the text impossible."""
    values = [entry[0] if isinstance(entry, tuple) else entry for entry in found]
    return any(isinstance(value, float) and math.isnan(value) for value in values)


def _plain(value: Any) -> Any:
    """numpy scalars and tuples as JSON values."""
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value.item() if hasattr(value, "item") else value
