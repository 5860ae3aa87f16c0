"""The KL probe: exact KL(reference || branch) over the full vocabulary on held-out documents."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from q36eval.engines.base import Engine
from q36eval.engines.logits import OutputHead
from q36eval.files import json_sha256
from q36eval.kl.acceptance import acceptance_sums
from q36eval.kl.breakdown import Held, Tokens, declared_figures, position_ranges, token_measurements
from q36eval.kl.corpus import CorpusDocument, clusters_sha256, corpus_sha256
from q36eval.kl.divergence import TokenFigures
from q36eval.kl.measurements import document_measurements
from q36eval.kl.on_policy import OnPolicyAnswer
from q36eval.kl.planning import (
    CONTEXT,
    OVERLAP,
    Material,
    PlannedDocument,
    plan_material,
    refuse_reserved_slices,
    request_tensors,
    scored_states,
    scored_tokens,
    suite_fields,
)
from q36eval.kl.scoring import Scorer
from q36eval.kl.spans import KINDS, character_kinds
from q36eval.kl.tokens import COUNT, TokenStore, document_table, worst_tokens
from q36eval.metrics import DeclaredFigure
from q36eval.probes import Digest, ItemResults, Probe, WorkItem
from q36eval.records import Answer, ItemOutcome, Measurement, ProbeName
from q36eval.token_files import WORST, write_worst

LIKELIEST = "likeliest"
"""For an outcome's worst tokens, by index, the most likely token of each deployment (`Scorer.likeliest`)."""

LEFT_OUT = "left_out"
"""Marks the detail of an outcome that enters no figure."""


class KLProbe(Probe):
    """One work item per document or sampled answer, in clusters by their source.

    The reference's digest keeps final hidden states and not logits: 2 H bytes per token. Both deployments are judged
    through their own heads; the reference's head is kept once per capture.
    """

    name = ProbeName.KL
    kind = "hidden-states"

    def __init__(
        self,
        documents: Sequence[CorpusDocument],
        context: int = CONTEXT,
        overlap: int = OVERLAP,
        *,
        answers: Sequence[OnPolicyAnswer] = (),
        prefix: tuple[int, ...] = (),
        most_loss: float | None = None,
        notify: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        """`notify` receives, once, the notes on the plan for a person; the rest is `Material`'s.

        Raises:
            UsageError: a document's slice has a reserved name.
        """
        refuse_reserved_slices(documents)
        material = Material(tuple(documents), tuple(answers), context, overlap, prefix, most_loss)
        self._material, self._notify = material, notify
        sources: list[CorpusDocument | OnPolicyAnswer] = [*documents, *answers]
        self._documents = {source.key: source for source in sources}
        self._scorer: Scorer | None = None
        self._tokenizer: Any = None
        self._store: TokenStore | None = None
        self._temporary: TemporaryDirectory[str] | None = None
        self.planned: dict[str, PlannedDocument] = {}
        """The plan of every document, by the key of its work item."""
        settings: dict[str, Any] = {
            "corpus": corpus_sha256(documents),
            "answers": sorted(answer.key for answer in answers),
            "context": context,
            "overlap": overlap,
            "version": 2,
        }
        # only if there are some, so that captures of a corpus without clusters stay valid
        if clusters := clusters_sha256({key: source.cluster for key, source in self._documents.items()}):
            settings["clusters"] = clusters
        settings |= {"prefix": list(prefix)} if prefix else {}
        settings |= {} if most_loss is None else {"most_loss": most_loss}
        self.suite_fields = suite_fields(settings)
        self.suite_sha256 = json_sha256(settings)

    @classmethod
    def of(cls, material: Material, notify: Callable[[str], None]) -> "KLProbe":
        """The probe of that material."""
        return cls(**{field.name: getattr(material, field.name) for field in fields(material)}, notify=notify)

    def plan(self, tokenizer: Any) -> list[WorkItem]:
        """One item per document, which scores all its tokens but the first, and per answer, which scores all tokens.

        Raises:
            UsageError: no document has two tokens.
        """
        planned = plan_material(self._material, tokenizer)
        if planned.too_short and not self.planned:
            self._notify(
                f"Skipped {planned.too_short:,} documents of fewer than two tokens: nothing is predicted there."
            )
        self.planned, self._tokenizer = planned.documents, tokenizer
        return [WorkItem(key=key, scores=document.requests) for key, document in self.planned.items()]

    def slice_of(self, item_key: str) -> str:
        """The slice of the corpus that an item belongs to."""
        return self._documents[item_key].slice

    def cluster_of(self, item_key: str) -> str:
        """An item's independent unit: the cluster of its document, or the document itself."""
        document = self._documents[item_key]
        return document.cluster or document.id

    def declared(self) -> tuple[DeclaredFigure, ...]:
        """The figures to measure, slice by slice and group by group, with the tokens and clusters of each.

        Before `plan` only the first group by position is known, and the kinds are those of the texts.
        """
        slices = {source.slice: self._held(source.slice) for source in self._documents.values()}
        return tuple(declared_figures(slices, self._groups(), self._held(None)))

    def _held(self, slice_name: str | None) -> Held:
        """The size of a slice (without a name: of everything), minus documents known to be too short to score."""
        chosen = [key for key, source in self._documents.items() if slice_name in (None, source.slice)]
        scored = [key for key in chosen if key in self.planned] if self.planned else chosen
        tokens = sum(len(self.planned[key].labels) for key in scored) if self.planned else None
        return Held(tokens, len(scored), len({self.cluster_of(key) for key in scored}))

    def _groups(self) -> dict[str, Held]:
        if self.planned:
            kinds = {int(kind) for document in self.planned.values() for kind in np.unique(document.kinds)}
            greatest = max(int(document.positions.max()) for document in self.planned.values())
        else:
            texts = [source.text for source in self._documents.values()]
            kinds, greatest = {int(kind) for text in texts for kind in np.unique(character_kinds(text))}, 0
        names = [f"kind={name}" for name in sorted(KINDS[kind] for kind in kinds)]
        names += [name for name, *_ in position_ranges(greatest)]
        return dict.fromkeys(names, Held())

    def shared_tensors(self, engine: Engine) -> dict[str, torch.Tensor]:
        """The reference's output head, for rebuilding its logits."""
        return engine.output_head().tensors()

    def digest(self, engine: Engine, item: WorkItem, results: ItemResults) -> Digest:
        """The reference's final hidden states of all scored tokens, window after window, and the requests."""
        drafted = acceptance_sums(engine, item, results)
        return Digest(
            values={"tokens": scored_tokens(item)} | ({"accepted": drafted} if drafted else {}),
            tensors={"hidden_states": scored_states(item, results).cpu(), **request_tensors(item)},
        )

    def compare(self, engine: Engine, item: WorkItem, results: ItemResults, reference: Digest) -> list[ItemOutcome]:
        """One outcome per document, with the sums that the measurements use."""
        document = self._documents[item.key]
        tokens = scored_tokens(item)
        figures, reference_error = None, reference.error
        if results.error is None and reference_error is None:
            figures, reference_error = self._figures(engine, item, results, reference)
        if figures is None:
            branch = Answer(score=None, error=results.error or reference_error, detail={"tokens": tokens})
        else:
            sums = self._measured(item, figures) | _accepted(reference, acceptance_sums(engine, item, results))
            sums |= self._likeliest(item, results, reference, figures)
            mean = sums["forward_kl"] / sums["finite_tokens"] if sums["finite_tokens"] else None
            branch = Answer(score=mean, error=None, detail=sums)
        return [
            ItemOutcome(
                probe=self.name,
                group="corpus",
                item_key=item.key,
                cluster=self.cluster_of(item.key),
                stratum=document.slice,
                prompt=document.text,
                branch=branch,
                reference=Answer(score=None, error=reference_error, detail={"tokens": tokens}),
            )
        ]

    def _figures(
        self, engine: Engine, item: WorkItem, results: ItemResults, reference: Digest
    ) -> tuple[TokenFigures | None, str | None]:
        """A document's figures, or why there are none: if the reference is not a distribution, it is at fault.

        Such a document is left out as a whole, like one that an engine could not score.
        """
        labels = torch.tensor(self.planned[item.key].labels)
        scorer, states = self._scorer_of(engine, reference), reference.tensors["hidden_states"]
        figures = scorer.figures(states, scored_states(item, results), labels)
        faults = scorer.reference_faults(states, figures)
        if faults:
            words = f"the reference's own logits are not finite at {faults} of {len(labels)} tokens"
            return None, f"the reference could not be measured on this item: {words}"
        return figures, None

    def _measured(self, item: WorkItem, figures: TokenFigures) -> dict[str, Any]:
        """A document's sums. Its tokens are stored before the outcome: an outcome without tokens is an error."""
        document = self.planned[item.key]
        kinds = [KINDS[kind] for kind in document.kinds]
        columns = _token_columns(document, figures)
        self._tokens.add(item.key, document_table(item.key, document.id, document.slice, kinds, columns))
        sums, most = _document_sums(figures), self._material.most_loss
        of_corpus = isinstance(self._documents[item.key], CorpusDocument)
        # non-finite values are the branch's damage, and count
        if most is not None and of_corpus and sums["finite_tokens"] == sums["tokens"]:
            sums |= {LEFT_OUT: True} if sums["reference_nll"] > most * sums["tokens"] else {}
        return sums

    def _likeliest(
        self, item: WorkItem, results: ItemResults, reference: Digest, figures: TokenFigures
    ) -> dict[str, Any]:
        """The most likely token of each deployment at the document's worst tokens, which may be the worst of the run.

        Their number is fixed, so that a resumed run stores the same data as an uninterrupted one, bit for bit.
        """
        forward = figures.forward_kl.nan_to_num(nan=torch.inf, posinf=torch.inf)
        rows = forward.argsort(descending=True, stable=True)[:COUNT]
        rows = rows[~figures.branch_logprob[rows].isnan()]
        if self._scorer is None or not len(rows):
            return {}
        sides = (
            states[rows.to(states.device)]
            for states in (reference.tensors["hidden_states"], scored_states(item, results))
        )
        indices = (self.planned[item.key].first + rows).tolist()
        return {LIKELIEST: dict(zip(map(str, indices), self._scorer.likeliest(*sides), strict=True))}

    def _left_out(self, outcomes: Sequence[ItemOutcome]) -> str:
        """The documents left out of all figures, as a printed phrase; empty text for none."""
        keys = [outcome.item_key for outcome in outcomes if outcome.branch.detail.get(LEFT_OUT)]
        if not keys:
            return ""
        limit = f"mean loss above {self._material.most_loss:g} nats per token"
        words = f"without {len(keys)} documents that the reference cannot model ({limit})"
        self._notify(f"The KL is measured {words}.")
        return f"{words}: {', '.join(sorted(self._documents[key].id for key in keys))}"

    def _scorer_of(self, engine: Engine, reference: Digest) -> Scorer:
        """The scorer for this engine; a run has one reference head."""
        if self._scorer is None or self._scorer.engine is not engine:
            self._scorer = Scorer(engine, OutputHead.of(reference.tensors))
        return self._scorer

    def keep_in(self, folder: Path) -> None:
        """Store the tokens of the current run in this folder instead of a temporary one."""
        self._store = TokenStore(folder)

    @property
    def _tokens(self) -> TokenStore:
        if self._store is None:
            self._temporary = TemporaryDirectory(prefix="q36eval-kl-")
            self.keep_in(Path(self._temporary.name))
        assert self._store is not None
        return self._store

    def summarize(self, outcomes: Sequence[ItemOutcome]) -> Iterator[Measurement]:
        """All measurements; the run's tokens become one file, with its worst tokens in another."""
        without = self._left_out(outcomes)
        outcomes = [outcome for outcome in outcomes if not outcome.branch.detail.get(LEFT_OUT)]
        ordered = sorted(outcomes, key=lambda outcome: (outcome.stratum, outcome.cluster, outcome.item_key))
        yield from document_measurements(outcomes, without)
        measured = [outcome for outcome in ordered if "finite_tokens" in outcome.branch.detail]
        if not measured:
            return
        table = self._tokens.merge([outcome.item_key for outcome in measured])
        token_ids = {key: document.token_ids for key, document in self.planned.items()}
        likeliest = {outcome.item_key: outcome.branch.detail.get(LIKELIEST, {}) for outcome in measured}
        write_worst(self._tokens.folder / WORST, worst_tokens(table, token_ids, self._tokenizer, likeliest))
        yield from token_measurements(Tokens.of(table, ordered))


def _accepted(reference: Digest, branch: dict[str, list[float]]) -> dict[str, Any]:
    """Both sides' sums over the guesses of their draft heads; nothing if one side has no draft head."""
    theirs = reference.values.get("accepted", {})
    alike = {guess for guess in branch.keys() & theirs.keys() if branch[guess][1] == theirs[guess][1]}
    return {"accepted": {guess: [*branch[guess], theirs[guess][0]] for guess in sorted(alike)}} if alike else {}


def _document_sums(figures: TokenFigures) -> dict[str, Any]:
    # a token with probability zero in the branch has an infinite divergence: it is counted, never averaged nor clipped
    finite = figures.finite
    forward = figures.forward_kl[finite]
    return {
        "tokens": len(finite),
        "finite_tokens": int(finite.sum()),
        "forward_kl": float(forward.sum()),
        "reverse_kl": float(figures.reverse_kl[finite].sum()),
        "reference_nll": -float(figures.reference_logprob[finite].sum()),
        "branch_nll": -float(figures.branch_logprob[finite].sum()),
        "top1_agrees": float(figures.top1_agrees[finite].sum()),
        "max_forward_kl": float(forward.max()) if len(forward) else 0.0,
    }


def _token_columns(document: PlannedDocument, figures: TokenFigures) -> dict[str, Any]:
    """The columns of the tokens file as NumPy arrays [T]; `index` counts from the document's first token."""
    columns = {column.name: getattr(figures, column.name).numpy() for column in fields(figures)}
    return columns | {
        "index": np.arange(document.first, len(document.token_ids)),
        "position": document.positions,
        "label": np.array(document.labels),
    }
