"""A run's figures as the Hub's own records, and their insertion into an existing card."""

import math
import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import yaml

from q36eval.errors import UsageError
from q36eval.inert_text import plain
from q36eval.measurement_facts import MeasuredOn, recorded_subject
from q36eval.reports._card_figures import CardFigure

if TYPE_CHECKING:
    from huggingface_hub import EvalResult, ModelCardData

    from q36eval.history.records import RunRecord

BEGIN, END = "<!-- q36eval: begin -->", "<!-- q36eval: end -->"
"""Marks around the section, so that a later run can replace it. Neither is rendered."""

OWN_ITEMS = "q36eval"
"""Type of datasets that are not on the Hub. A name with a slash would claim a repository."""

TASK_TYPE = "text-generation"
OURS = "suite_sha256"
"""A dataset argument that identifies results written here."""

_HAS_METADATA = re.compile(r"\s*---(?:\r\n|\r|\n)")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def eval_results(run: "RunRecord", figures: Sequence[CardFigure]) -> "list[EvalResult]":
    """The figures whose items are known, as the Hub's own records.

    The value is the branch's own; reference, comparison, interval and counts are its arguments. A non-finite figure is
    text ("Infinity").
    """
    return [_eval_result(run, figure, figure.on) for figure in figures if figure.on is not None]


def _eval_result(run: "RunRecord", figure: CardFigure, on: MeasuredOn) -> "EvalResult":
    from huggingface_hub import EvalResult

    suite = run.suites.get(figure.key.partition(".")[0], "unknown")
    arguments = {OURS: plain(suite), "items_in_suite": figure.planned, "num_few_shot": on.num_fewshot}
    return EvalResult(
        task_type=TASK_TYPE,
        dataset_type=plain(on.dataset or OWN_ITEMS),
        # the Hub takes results of one type, config and revision for one dataset, whatever their names
        dataset_config=plain(figure.part or "") or None if on.dataset else plain(figure.where),
        dataset_name=plain(figure.where),
        dataset_revision=None if on.revision is None else plain(on.revision),
        dataset_args=_without_none(arguments),
        metric_type=plain(figure.metric),
        metric_name=plain(figure.words),
        metric_value=_value(figure.value),
        metric_args=_metric_args(figure),
    )


def _metric_args(figure: CardFigure) -> dict[str, Any]:
    bounds = figure.bounds
    interval = None
    if bounds is not None:
        method = {"level": bounds.level, "method": plain(bounds.method)}
        interval = {"lower": bounds.lower, "upper": bounds.upper} | method
    # for a figure compared with the reference's, the interval is of the comparison, not of the value
    compared = {"of": figure.comparison, "value": _value(figure.compared_value)} | (interval or {})
    arguments = {
        "unit": plain(figure.unit),
        "reference_value": None if figure.reference is None else _value(figure.reference),
        **({"comparison": compared} if figure.comparison else {"interval": interval}),
        "items_scored": figure.counts.scored,
        "items_errored": figure.counts.errored,
        "items_unreadable": figure.counts.unreadable or None,
    }
    return _without_none(arguments)


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _value(value: float) -> float | str:
    return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")


def card_data(run: "RunRecord", figures: Sequence[CardFigure]) -> "ModelCardData":
    from huggingface_hub import ModelCardData

    subject = recorded_subject(run.provenance)
    base = None if subject is None or not _HUB_ID.fullmatch(subject.base_model) else subject.base_model
    results = eval_results(run, figures)
    data = ModelCardData(base_model=base)
    if base is not None:
        data["base_model_relation"] = "quantized"
    if results:
        data.model_name, data.eval_results = published_name(run), results
    return data


def published_name(run: "RunRecord") -> str:
    """The repository's own name if it has one, else the branch's; never a path of the measuring machine."""
    subject = recorded_subject(run.provenance)
    if subject is not None and subject.repository is not None:
        return plain(subject.repository.rpartition("/")[2])
    return plain(PurePath(run.branch).name or run.branch)


def update_card(existing: str, card: str) -> str:
    """An existing card with section and results of another run inserted: its own text stays unchanged.

    Results of earlier runs of this program are replaced, those of others stay. The card's statement of its base model
    stays.

    Raises:
        UsageError: the card's metadata cannot be read.
    """
    from huggingface_hub import ModelCard, ModelCardData

    new = ModelCard(card).data
    existing = existing.removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}")  # an editor's mark, which would hide the metadata
    if not _HAS_METADATA.match(existing):
        existing = f"---\n{{}}\n---\n{existing}"
    try:
        merged = ModelCard(existing)
    except (ValueError, TypeError, yaml.YAMLError) as error:
        raise UsageError(
            "card-malformed", f"The card's metadata cannot be read: {plain(str(error))}; correct it first."
        ) from error
    data = merged.data
    assert isinstance(data, ModelCardData), "a model card's data is that of a model"
    assert isinstance(new, ModelCardData), "a model card's data is that of a model"
    others = [result for result in data.eval_results or [] if OURS not in (result.dataset_args or {})]
    results = others + (new.eval_results or [])
    data.eval_results = results or None
    data.model_name = (data.model_name or new.model_name) if results else None
    if data.base_model is None and new.base_model is not None:
        data.base_model, data["base_model_relation"] = new.base_model, new["base_model_relation"]
    merged.text = _with_section(merged.text, card[card.index(BEGIN) :].strip())
    return str(merged)


def _with_section(text: str, section: str) -> str:
    begin, end = text.find(BEGIN), text.find(END)
    if 0 <= begin < end:
        return text[:begin] + section + text[end + len(END) :]
    return f"{text.rstrip()}\n\n{section}\n" if text.strip() else f"\n{section}\n"
