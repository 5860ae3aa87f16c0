"""The evals probe: lm-eval's tasks and scoring, with our engine in place of lm-eval's model."""

import hashlib
import math
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

from q36eval.engines.base import Engine
from q36eval.errors import UsageError
from q36eval.evals.blocks import draws_by_margin, in_blocks
from q36eval.evals.competence import CUT_OFF, UNREADABLE, KnownAnswer, cause_of, family_of, merged, sampled
from q36eval.evals.encoding import Encoded, Encoder, NotAmongLikeliestError, is_cut_off, responses, with_shared_prefixes
from q36eval.evals.figures import UNITS, Plan
from q36eval.evals.frozen import LONGEST
from q36eval.evals.lm_tasks import Document, load_documents
from q36eval.evals.paired_clusters import DrawnItem, PlannedItem
from q36eval.evals.suite import LoadedSuite, TaskGroup
from q36eval.evals.summaries import accuracies, declared_figures, suite_measurements
from q36eval.hub import one_line
from q36eval.metrics import DeclaredFigure
from q36eval.probes import Digest, ItemResults, OwnPrompts, Probe, WorkItem, in_block, in_group
from q36eval.records import Answer, ItemOutcome, Measurement, ProbeName


class EvalsProbe(Probe):
    """One work item per lm-eval document.

    One-token choices of one document with a common context are read from a single score request.
    """

    name = ProbeName.EVALS

    def __init__(self, suite: Path, *, data: Path | None = None, max_items: int | None = None) -> None:
        """Read the suite file and verify its frozen data; `data` replaces the suite's folder.

        At most `max_items` of each group are evaluated, in whole blocks, but at least one block. Groups that run
        programs of the model are left out unless the environment allows that; `skipped` lists them.

        Raises:
            UsageError: the suite is malformed or its data does not match its manifest.
        """
        self._loaded = LoadedSuite(suite, data)
        self._max_items = max_items
        self._encoded: dict[str, tuple[Document, Encoded]] = {}
        self._of_branch: dict[str, tuple[Document, Encoded]] = {}
        """The branch's documents, if its chat template differs; else `_encoded`."""
        self._planned: list[PlannedItem] = []
        self._known: dict[str, KnownAnswer] | None = None
        self.suite_sha256 = self._loaded.sha256
        self.skipped = self._loaded.skipped
        self.measured_on = self._loaded.measured_on

    def check_tokenizer(self, tokenizer_sha256: str, context: int | None = None) -> None:
        """Refuse documents that were cut to length for another tokenizer, or for another context in tokens.

        Raises:
            UsageError: they were.
        """
        cut_for, suite, made_from = self._loaded.cut_for, self._loaded.suite, self._loaded.manifest.made_from
        longest = made_from.get(LONGEST, str(suite.longest()))
        if cut_for is not None and longest != str(suite.longest(context)):
            raise UsageError(
                "frozen-for-another-context",
                f"RULER's documents in {self._loaded.data} have up to {longest} tokens, not as many as this model's "
                f"context holds; freeze them for this one: {self._loaded.freeze_command}.",
            )
        if cut_for is not None and cut_for != tokenizer_sha256:
            raise UsageError(
                "frozen-for-another-tokenizer",
                f"RULER's documents in {self._loaded.data} were cut to length with another tokenizer "
                f"({cut_for[:12] or 'unknown'}) than this model's ({tokenizer_sha256[:12]}); freeze them for this one: "
                f"{self._loaded.freeze_command}.",
            )

    def plan(self, tokenizer: Any) -> list[WorkItem]:
        """Every document of every task, encoded as lm-eval's `HFLM` would encode it.

        Raises:
            ChangedError: the suite no longer matches its hash.
        """
        self._encoded = self._of_branch = self._documents(tokenizer)
        self._known = None
        self._planned = [
            _planned_item(*self._encoded[key], number)
            for group in self._loaded.groups
            for number, block in enumerate(self._blocks(group))
            for key in block
        ]
        return [self._work(item) for item in self._planned]

    def declared_of_texts(self, tokenizer: Any) -> list[DeclaredFigure]:
        """The perplexities, from the sizes of their documents: before `plan`, and without reading any other group.

        Raises:
            UsageError: a task cannot be loaded.
        """
        texts = self._encode(self._load(tokenizer, "perplexity"), tokenizer).values()
        groups = [group for group in self._loaded.groups if group.measure == "perplexity"]
        return list(declared_figures(groups, [_planned_item(document, encoded, 0) for document, encoded in texts]))

    def _documents(self, tokenizer: Any) -> dict[str, tuple[Document, Encoded]]:
        """Every document of every task, in order, by its key."""
        documents = self._load(tokenizer)
        self._loaded.check_unchanged()
        return self._encode(documents, tokenizer)

    def _load(self, tokenizer: Any, measure: str | None = None) -> list[Document]:
        """The documents of groups with that measure, or of all."""
        with tempfile.TemporaryDirectory() as temporary:
            return load_documents(self._loaded, Path(temporary), tokenizer, measure)

    def _encode(self, documents: Sequence[Document], tokenizer: Any) -> dict[str, tuple[Document, Encoded]]:
        encoder = Encoder(tokenizer, self._loaded.suite.max_length)
        by_key: dict[str, tuple[Document, Encoded]] = {}
        for _, of_task in groupby(documents, key=lambda document: id(document.task)):
            own, encoded = list(of_task), []
            for portion in _portions(own):
                encoder.read_together(each for d in portion if d.problem is None for each in d.instances)
                encoded += [encoder.encode(f"evals/{d.key}", d.instances, d.problem) for d in portion]
            by_key |= {d.key: (d, e) for d, e in zip(own, with_shared_prefixes(encoded), strict=True)}
        return by_key

    def in_own_template(self, items: Sequence[WorkItem], tokenizer: Any) -> OwnPrompts:
        """The same documents, those of groups with the chat template rendered by the branch's."""
        if not any(group.chat_template for group in self._loaded.groups):
            return OwnPrompts(items)
        # the same documents in the same order, under different keys, which contain the prompts
        pairs = zip(self._encoded.items(), self._documents(tokenizer).values(), strict=True)
        self._of_branch = {
            key: own if theirs[0].group.chat_template and theirs[1].problem is None else theirs
            for (key, theirs), own in pairs
        }
        written = [key for key, (document, _) in self._encoded.items() if document.group.chat_template]
        differing = [key for key in written if _ids(self._of_branch[key][1]) != _ids(self._encoded[key][1])]
        unwritten = [key for key in written if self._of_branch[key][0].problem is not None]
        first = None
        if both := [key for key in differing if key not in unwritten]:
            texts = [str(of[both[0]][0].instances[0].args[0]) for of in (self._encoded, self._of_branch)]
            first = (self._encoded[both[0]][0].group.name, texts[0], texts[1])
        asked = [self._asked_of_branch(item) for item in items]
        return OwnPrompts(asked, len(written), len({*differing} - {*unwritten}), len(unwritten), first)

    def _asked_of_branch(self, item: WorkItem) -> WorkItem:
        _, own = self._of_branch[item.key]
        if own is self._encoded[item.key][1]:
            return item
        return in_group(replace(item, scores=own.scores, generations=own.generations), self.name)

    def answered_first(self, items: Sequence[WorkItem]) -> Sequence[WorkItem]:
        """All items that are only scored, since the order depends on them; a sample of generated ones
        (`evals.competence`)."""
        own = {item.key: item for item in items}
        first = []
        for group in self._loaded.groups:
            planned = [item for item in self._planned if item.group == group.name and item.key in own]
            if any(own[item.key].generations for item in planned):
                keys = sampled({item: family_of(group, item.stratum) for item in planned})
            else:
                keys = [item.key for item in planned]
            first += [own[key] for key in keys]
        return first

    def know_reference(self, items: Sequence[WorkItem], digests: Mapping[str, Digest]) -> Sequence[WorkItem]:
        """Count the right answers among the reference's first ones; see `evals.competence`."""
        self._known = {}
        for group in self._loaded.groups:
            if group.measure == "accuracy":
                planned = [item for item in self._planned if item.group == group.name]
                known = {item.key: self._known_answer(group, item, digests.get(item.key)) for item in planned}
                self._known |= merged(planned, known)
        self._draw_by_margin(digests)
        block_of = {item.key: item.block for item in self._planned}
        order = {item.key: place for place, item in enumerate(self._planned)}
        laid_out = [in_block(item, block_of[item.key], self.name) for item in items]
        return sorted(laid_out, key=lambda item: order[item.key])

    def _known_answer(self, group: TaskGroup, item: PlannedItem, digest: Digest | None) -> KnownAnswer:
        document, encoded = self._encoded[item.key]
        cause = None if digest is None else cause_of(_answer(document, encoded, digest))
        return KnownAnswer(family_of(group, item.stratum), cause, document.chance, asked=digest is not None)

    def _draw_by_margin(self, digests: Mapping[str, Digest]) -> None:
        """Rearrange the groups that are drawn by the reference's margin.

        A part of a group is evaluated as planned: so few items are for a preview of the suite, not for a verdict.
        """
        for group in self._loaded.groups:
            own = [item for item in self._planned if item.group == group.name]
            if group.blocks != "by_reference_margin" or self._max_items is not None:
                continue
            draws = draws_by_margin(
                {item.key: self._reference_margin(item.key, digests.get(item.key)) for item in own},
                {item.key: item.stratum for item in own},
                {item.key: item.cluster for item in own},
                self._loaded.suite.block_items,
                f"{self._loaded.suite.name}/{group.name}",
            )
            if draws is None:
                continue
            by_key = {item.key: item for item in own}
            laid_out = [
                replace(
                    by_key[key],
                    block=number,
                    drawn=DrawnItem(draws.weights[key], draws.expected_changes[key], draws.last_bet),
                )
                for number, block in enumerate(draws.blocks)
                for key in block
            ]
            place = next(n for n, item in enumerate(self._planned) if item.group == group.name)
            others = [item for item in self._planned if item.group != group.name]
            self._planned = [*others[:place], *laid_out, *others[place:]]

    def _reference_margin(self, key: str, digest: Digest | None) -> float | None:
        """The reference's margin in nats of the right choice over the best wrong one, or less; None if unknown."""
        document, encoded = self._encoded[key]
        if digest is None or digest.error is not None or not document.choices:
            return None
        margin: float | None = _answer(document, encoded, digest).detail.get("margin_nats")
        return margin

    def _work(self, item: PlannedItem) -> WorkItem:
        encoded = self._encoded[item.key][1]
        return WorkItem(item.key, encoded.scores, encoded.generations, task=item.group, block=item.block)

    def _blocks(self, group: TaskGroup) -> list[list[str]]:
        """The keys of a group's documents in the blocks of their evaluation.

        A perplexity is unbounded and has only one look, at the end: it is one block.
        """
        own = {key: document for key, (document, _) in self._encoded.items() if document.group.name == group.name}
        if group.measure == "perplexity":
            return [list(own)]
        blocks = in_blocks(
            {key: document.stratum for key, document in own.items()},
            {key: document.cluster for key, document in own.items()},
            self._loaded.suite.block_items,
            f"{self._loaded.suite.name}/{group.name}",
        )
        limit = len(own) if self._max_items is None else self._max_items
        sizes = list(accumulate(map(len, blocks)))
        return [block for block, size in zip(blocks, sizes, strict=True) if size <= limit] or blocks[:1]

    def digest(self, engine: Engine, item: WorkItem, results: ItemResults) -> Digest:
        """The reference's log-likelihoods or text for one document, and lm-eval's metrics of them."""
        return self._digest(engine, *self._encoded[item.key], results)

    def _digest(self, engine: Engine, document: Document, encoded: Encoded, results: ItemResults) -> Digest:
        if encoded.problem is not None:
            return Digest()  # stored, since another attempt would not help; `_answer` gives the reason
        try:
            answers = responses(encoded, engine, results)
        except NotAmongLikeliestError as error:
            return Digest(error=str(error))
        if _not_finite(answers):
            return Digest(error="the log-likelihoods are not numbers")
        try:
            metrics = document.metrics(answers)
        except Exception as error:  # a task's scoring is its own code, and may meet unexpected input
            return Digest(error=f"lm-eval's scoring of the answer failed: {one_line(error)}")
        values = {"responses": answers, "metrics": _plain(metrics)}
        if encoded.generations:
            values |= {CUT_OFF: is_cut_off(encoded, results), UNREADABLE: document.is_unreadable(answers)}
        return Digest(values=values)

    def lossless(self, item: WorkItem, reference: Digest) -> ItemOutcome:
        """The outcome of an item if the branch answers exactly like the reference."""
        return self._outcome(item, reference, reference)

    def compare(self, engine: Engine, item: WorkItem, results: ItemResults, reference: Digest) -> list[ItemOutcome]:
        """The branch's answer to one document, paired with the reference's."""
        own = Digest(error=results.error)
        if results.error is None:
            own = self._digest(engine, *self._of_branch[item.key], results)
        outcome = self._outcome(item, own, reference)
        timed = outcome.branch.detail | {"seconds": round(results.seconds, 6)}
        return [outcome.model_copy(update={"branch": outcome.branch.model_copy(update={"detail": timed})})]

    def _outcome(self, item: WorkItem, branch: Digest, reference: Digest) -> ItemOutcome:
        document, encoded = self._encoded[item.key]
        source = self._loaded.suite.sources.get(document.group.dataset or "")
        outcome = ItemOutcome(
            probe=self.name,
            group=document.group.name,
            item_key=item.key,
            cluster=document.cluster,
            stratum=document.stratum,
            prompt=_shortened(str(document.instances[0].args[0])),
            expected=_expected(document),
            branch=_answer(*self._of_branch[item.key], branch),
            reference=_answer(document, encoded, reference),
        )
        return _without_texts(outcome) if source is not None and source.gated else outcome

    def look(self, outcomes: Sequence[ItemOutcome], keys: Collection[str]) -> list[Measurement]:
        """The accuracies with those keys from the outcomes so far: other figures may not be looked at early."""
        slices = {key.partition("[")[2].removesuffix("]") for key in keys}
        figures = []
        for group in self._loaded.groups:
            if group.measure == "accuracy":
                own = [outcome for outcome in outcomes if outcome.group == group.name]
                plan = Plan([item for item in self._planned if item.group == group.name], self._known)
                figures += [each for each in accuracies(group, own, plan, slices) if each.key in keys]
        return figures

    def tasks_of(self, key: str) -> frozenset[str]:
        """The groups whose items that measurement uses: the one of its slice, else all of its kind."""
        metric, _, part = key.removeprefix(f"{self.name}.").removesuffix("]").partition("[")
        kind = "perplexity" if "perplexity" in metric else "accuracy"
        groups = [group for group in self._loaded.groups if group.measure == kind]
        named = {group.name for group in groups if part == group.slice or part.startswith(f"{group.slice}/")}
        return frozenset(named or {group.name for group in groups})

    def declared(self) -> list[DeclaredFigure]:
        """The figures of `summarize` once all is evaluated; before `plan`, those known from the suite's file."""
        return list(declared_figures(self._loaded.groups, self._planned or None))

    def summarize(self, outcomes: Sequence[ItemOutcome]) -> Iterator[Measurement]:
        """The measurements of `evals.summaries`: each group, its slices, and the suite as a whole."""
        yield from suite_measurements(self._loaded.groups, outcomes, self._planned, known=self._known)


def _ids(encoded: Encoded) -> list[tuple[int, ...]]:
    """The token ids of all its requests."""
    scores = [request.token_ids for request in encoded.scores]
    return scores + [request.token_ids for request in encoded.generations]


PORTION_CHARACTERS = 2**23
"""Documents whose texts are encoded together: about two million tokens of prose, a few hundred MB meanwhile."""


def _portions(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """In order, each with up to that many characters, or one document."""
    portion: list[Document] = []
    size = 0
    for document in documents:
        own = sum(len(each) for instance in document.instances for each in instance.args if isinstance(each, str))
        if portion and size + own > PORTION_CHARACTERS:
            yield portion
            portion, size = [], 0
        portion.append(document)
        size += own
    if portion:
        yield portion


PROMPT_CHARACTERS = 8_000
"""For a longer prompt the beginning and the end are stored: a history of 128k-token prompts would be gigabytes."""


def _shortened(prompt: str) -> str:
    """The prompt; for a long one both halves of `PROMPT_CHARACTERS`, the omitted size, and the hash of the whole."""
    left_out = len(prompt) - PROMPT_CHARACTERS
    if left_out <= 0:
        return prompt
    half = PROMPT_CHARACTERS // 2
    digest = hashlib.sha256(prompt.encode()).hexdigest()
    return f"{prompt[:half]}\n[… {left_out} characters left out, SHA-256 of the prompt {digest} …]\n{prompt[-half:]}"


def _without_texts(outcome: ItemOutcome) -> ItemOutcome:
    """The outcome of an item that must not be published: scores, without any texts."""
    sides = {name: getattr(outcome, name) for name in ("branch", "reference")}
    own = {name: {k: v for k, v in side.detail.items() if k != "log_likelihoods"} for name, side in sides.items()}
    kept = {name: side.model_copy(update={"text": None, "detail": own[name]}) for name, side in sides.items()}
    return outcome.model_copy(update={"prompt": None, "expected": None, **kept})


def _answer(document: Document, encoded: Encoded, digest: Digest) -> Answer:
    """One deployment's answer; the detail gives its certainty."""
    tokens = _tokens(encoded)
    if document.group.measure == "perplexity":
        return _perplexity_answer(document, digest, tokens)
    error = encoded.problem or digest.error
    if error is not None:
        return Answer(score=None, error=error, detail={"tokens": tokens})
    answers, metrics = digest.values["responses"], digest.values["metrics"]
    score = float(metrics[document.group.metric])
    if not math.isfinite(score):
        return Answer(score=None, error=f"{document.group.metric} is not a number", detail={"tokens": tokens})
    if not document.choices:
        ended = {cause: True for cause in (CUT_OFF, UNREADABLE) if digest.values.get(cause)}
        return Answer(score=score, text=str(answers[0]), detail=ended)
    return _choice_answer(document, score, [float(log_likelihood) for log_likelihood, _ in answers])


def _tokens(encoded: Encoded) -> int:
    """The number of its scored tokens."""
    return sum(len(request.token_ids) - request.first for request in encoded.scores)


def _planned_item(document: Document, encoded: Encoded, block: int) -> PlannedItem:
    """The known properties of a document before its evaluation."""
    item = PlannedItem(document.key, document.group.name, document.cluster, document.stratum, block)
    if document.group.measure != "perplexity":
        return item
    try:
        detail = _perplexity_answer(document, Digest(error="not asked yet"), _tokens(encoded)).detail
    except Exception:  # failures of a task's scoring are reported when an answer is scored
        return item
    return replace(item, units=tuple((metric.name, detail[unit]) for metric, unit in UNITS.items()))


def _perplexity_answer(document: Document, digest: Digest, tokens: int) -> Answer:
    """One document's negative log-likelihood in nats; its units are known, scored or not."""
    nothing = [0.0] * len(document.instances)
    metrics = document.metrics(nothing) if digest.error is not None else digest.values["metrics"]
    log_likelihood, words = metrics["word_perplexity"]
    detail = {"tokens": tokens, "words": int(words)}
    if digest.error is not None:
        return Answer(score=None, error=digest.error, detail=detail)
    return Answer(score=-float(log_likelihood) / tokens, detail={"nll_nats": -float(log_likelihood)} | detail)


def _choice_answer(document: Document, score: float, log_likelihoods: list[float]) -> Answer:
    """The most likely choice, every choice's log-likelihood, and the margin of the right one over the best wrong one.

    The margin is missing if both are impossible, or if lm-eval counts several choices as right.
    """
    choices, target = document.choices, _target_index(document)
    # lm-eval's acc_norm divides by the characters of a choice
    lengths = [float(len(choice)) if document.group.metric == "acc_norm" else 1.0 for choice in choices]
    best = max(range(len(choices)), key=lambda index: log_likelihoods[index] / lengths[index])
    detail: dict[str, Any] = {"log_likelihoods": dict(zip(_distinct(choices), log_likelihoods, strict=True))}
    others = [value for index, value in enumerate(log_likelihoods) if index != target]
    if target is not None and others and max(log_likelihoods[target], *others) > -math.inf:
        detail["margin_nats"] = log_likelihoods[target] - max(others)
    return Answer(score=score, text=choices[best], detail=detail)


def _target_index(document: Document) -> int | None:
    target = document.target
    if isinstance(target, str) and target in document.choices:
        return document.choices.index(target)
    return target if isinstance(target, int) and 0 <= target < len(document.choices) else None


def _distinct(choices: Sequence[str]) -> list[str]:
    """The choices as keys; identical ones with their positions."""
    if len(set(choices)) == len(choices):
        return list(choices)
    return [f"{place}: {choice}" for place, choice in enumerate(choices, 1)]


def _expected(document: Document) -> str | None:
    target = document.target
    if document.group.measure == "perplexity":
        return None
    index = _target_index(document)
    if index is not None:
        return document.choices[index]
    return ", ".join(map(str, target)) if isinstance(target, list) else str(target)


def _not_finite(answers: Sequence[Any]) -> bool:
    """Whether a log-likelihood is NaN or plus infinity.

    Minus infinity is valid: the deployment gives the text probability zero.
    """
    values = [entry[0] if isinstance(entry, tuple) else entry for entry in answers]
    return any(isinstance(value, float) and (math.isnan(value) or value == math.inf) for value in values)


def _plain(value: Any) -> Any:
    """numpy scalars and tuples as JSON values."""
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value.item() if hasattr(value, "item") else value
