"""The report as a section of a model card, with its evaluation results as the Hub's own types.

Nothing is on it that was not measured in this run. A published figure of the family, a margin's source or a capture's
estimate is no measurement, and items in a benchmark's form are not that benchmark.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from q36eval.chat.declared_template import recorded_template
from q36eval.gate.fault_layer import LayerAtFault
from q36eval.gate.report import GateReport, LaneResult
from q36eval.inert_text import SENTENCE, plain
from q36eval.inert_text import markdown as md
from q36eval.measurement_facts import recorded_subject, recorded_unverified
from q36eval.records import DeploymentIdentity, Lane, Verdict
from q36eval.reports._card_data import BEGIN, END, card_data, published_name, update_card
from q36eval.reports._card_figures import CardFigure, called, card_checks, card_figures
from q36eval.reports.document import LAYER_TITLE, Document
from q36eval.reports.story import TITLE, answer_lines, shared_engine
from q36eval.reports.text import waiver_text, why_text

if TYPE_CHECKING:
    from q36eval.history.records import RunRecord

__all__ = ["to_card", "update_card"]

USES = {
    Lane.STRUCTURED: "structured output (JSON, tool calls, enums, agents)",
    Lane.FREEFORM: "free-form text (chat, prose)",
}


def to_card(document: Document) -> str:
    """A model card: evaluation results as YAML metadata, then the section on quality between `BEGIN` and `END`.

    The same input gives the same bytes.

    Raises:
        ValueError: the document is of no run.
    """
    run = document.run
    if run is None:
        raise ValueError("a model card is of a run")
    figures = card_figures(document.report, run, document.measurements)
    body = "\n".join(_section(document, run, figures))
    return f"---\n{card_data(run, figures).to_yaml(line_break=None)}\n---\n\n{BEGIN}\n{body}\n{END}\n"


def _section(document: Document, run: "RunRecord", figures: Sequence[CardFigure]) -> Iterator[str]:
    report = document.report
    yield from ("## Measured quality", "")
    yield from _fitness(report, run)
    if document.superseded is not None:
        yield f"- **This verdict stands no longer**: {md(document.superseded, SENTENCE)}"
    yield from _figure_table(figures)
    yield from _check_table(report, run)
    yield from _answers(report, run)
    yield from _layer(document.layer)
    yield from _missing(document, run)
    yield from ("", "### How it was measured", "")
    yield from _how(report, run, figures)


def _fitness(report: GateReport, run: "RunRecord") -> Iterator[str]:
    subject = recorded_subject(run.provenance)
    scheme = "" if subject is None or subject.scheme is None else f" ({md(subject.scheme)})"
    against = (
        "the reference" if subject is None or subject.reference is None else f"the reference, {md(subject.reference)}"
    )
    revision = "" if subject is None or subject.revision is None else f" at revision `{_code(subject.revision)}`"
    how = "asked as it is served, against itself" if report.of_server_alone else f"compared with {against}"
    yield f"`{_code(published_name(run))}`{revision}{scheme}, {how}."
    yield f"One run on {run.started:%Y-%m-%d} found:"
    yield ""
    names = {result.id: called(result, run) for result in report.criteria}
    for lane in report.lanes:
        yield f"- {_lane_sentence(lane, names, of_server=report.of_server_alone)}"
    if report.awaiting_sign_off:
        yield "- **Not released**: a reviewer's sign-off is required and missing."
    for result in report.criteria:
        if result.waived:
            yield f"- Exception for {md(names[result.id])}: {md(waiver_text(result) or '')}."


def _lane_sentence(lane: LaneResult, names: Mapping[str, str], *, of_server: bool) -> str:
    def told(ids: Sequence[str]) -> str:
        return "; ".join(md(names.get(name, name)) for name in ids)

    use = USES[lane.lane]
    if lane.verdict is Verdict.PASS and of_server:
        return f"**No fault of its server found** for {use}; how good its answers are was not judged."
    if lane.verdict is Verdict.PASS:
        return f"**Fit for {use}**" + (f", with exceptions: {told(lane.waived)}." if lane.waived else ".")
    refused = "Not fit" if lane.verdict is Verdict.FAIL else "Not shown to be fit"
    return f"**{refused} for {use}**" + (f", because of: {told(lane.decisive)}." if lane.decisive else ".")


def _figure_table(figures: Sequence[CardFigure]) -> Iterator[str]:
    if not figures:
        return
    header = ("measured", "on", "this model", "reference", "compared", "interval", "items", "required", "result")
    yield from ("", "### Figures", "")
    yield from _table(header, map(_cells, figures))
    floors = [
        f"{figure.floor} ({figure.words}; {figure.where})"
        for figure in figures
        if figure.floor not in (None, "not measured")
    ]
    if floors:
        listed = "; ".join(map(md, floors))
        yield from ("", f"Noise floor, what the reference differs from itself in other batches: {listed}.")


def _cells(figure: CardFigure) -> tuple[str, ...]:
    compared = f"{figure.comparison} {figure.compared}".strip() if figure.comparison else ""
    cells = (figure.words, figure.where, figure.shown(figure.value), figure.shown(figure.reference), compared)
    return (*cells, figure.interval, figure.items, figure.margin, figure.result)


def _check_table(report: GateReport, run: "RunRecord") -> Iterator[str]:
    checks = card_checks(report, run)
    if checks:
        yield from ("", "### Counted", "")
        rows = ((check.name, check.count, check.items, check.margin, check.result) for check in checks)
        yield from _table(("what", "count", "of", "required", "result"), rows)


def _answers(report: GateReport, run: "RunRecord") -> Iterator[str]:
    names = {result.id: called(result, run) for result in report.criteria}
    lines = answer_lines(report)
    if lines:
        yield from ("", f"### {TITLE}", "")
        yield from (f"- {md(names[name])}: {md(words)}." for name, words in lines)


def _layer(layer: LayerAtFault | None) -> Iterator[str]:
    """What of it was measured; which command would measure it is no matter of a card."""
    if layer is not None and layer.at_fault is not None:
        yield from ("", f"### {LAYER_TITLE}", "")
        yield from (f"- {md(words, SENTENCE)}" for words in layer.lines)


def _missing(document: Document, run: "RunRecord") -> Iterator[str]:
    gaps, order = document.gaps, [result.id for result in document.report.criteria]
    yield from ("", "### Not measured", "")
    for result in sorted(
        (result for gap in gaps for result in gap.criteria), key=lambda result: order.index(result.id)
    ):
        # the reason may name the measurement by its key, which is no name for a reader of cards
        reason = why_text(result).replace(f"{result.probe}.{result.metric}[{result.slice}]", "of it")
        yield f"- {md(called(result, run))}: {md(reason)}"
    for gap in gaps:
        if gap.stage is not None:
            yield f"- stage {md(gap.stage.name)}: {md(gap.reason)}"
        if gap.failure is not None:
            yield f"- {md(gap.reason)}"
    unknown = document.layer is not None and document.layer.at_fault is None
    if unknown:
        yield "- Whether the checkpoint or the engine that serves it is at fault: not told apart."
    if not gaps and not unknown:
        yield "- Nothing that the policy asks for."
    yield "- Speed, memory and safety are no subject of this gate."


def _how(report: GateReport, run: "RunRecord", figures: Sequence[CardFigure]) -> Iterator[str]:
    levels = {figure.bounds.level for figure in figures if figure.bounds is not None}
    if levels:
        level_text = " and ".join(f"{50 * (1 + level):g} %" for level in sorted(levels))
        bounds = f"each bound of an interval holds one-sided at {level_text}"
        how = "Asked again with one thing changed" if report.of_server_alone else "Same items for both"
        yield f"- {how}, compared item by item; {bounds}."
    if run.identity is not None:
        yield f"- {_deployment('Branch', run.identity)}"
    if run.reference_identity is not None:
        yield f"- {_deployment('Reference', run.reference_identity)}"
    shared = shared_engine(run)
    if shared is not None:
        yield f"- {md(shared[0].upper() + shared[1:], SENTENCE)}."
    suites = ", ".join(f"{md(name)} `{_code(sha256[:16])}`" for name, sha256 in sorted(run.suites.items()))
    yield f"- Evaluated suites: {suites or 'none'}; policy {md(report.policy)}; {_extent(run)}."
    template = recorded_template(run.provenance)
    if template is not None:
        for words in template.sentences():
            yield f"- {md(words[0].upper() + words[1:], SENTENCE)}."
    unverified = recorded_unverified(run.provenance)
    if unverified is not None:
        yield f"- {md(unverified[0].upper() + unverified[1:])}."
    yield f"- Measured and judged by {_code_version(run)}; run `{_code(run.id)}`, {md(report.headline)}."
    if report.signed_by:
        yield f"- Signed off by {', '.join(md(signature.owner) for signature in report.signed_by)}."


def _extent(run: "RunRecord") -> str:
    limit = run.provenance.get("max_items", "all")
    some = "" if limit == "all" else f", limited to {md(str(limit))} items of a group in whole blocks"
    if "exhaustive" not in run.provenance:
        return f"how much was evaluated is shown by the counts{some}"
    everything = run.provenance["exhaustive"] is True
    return ("every item evaluated" if everything else "evaluated until the verdict was resolved") + some


def _deployment(what: str, identity: DeploymentIdentity) -> str:
    names = ("checkpoint", "tokenizer", "chat_template")
    hashes = ", ".join(
        f"{name.replace('_', ' ')} `{_code(getattr(identity, f'{name}_sha256')[:16])}`" for name in names
    )
    settings = ", ".join(f"{md(k)} {md(v)}" for k, v in sorted(identity.settings.items()))
    engine = f"{md(identity.engine)} ({md(identity.engine_version)}; {settings})"
    return f"{what}: {hashes}; engine {engine}, KV cache {md(identity.kv_cache_dtype)}."


def _code_version(run: "RunRecord") -> str:
    packages = run.provenance.get("packages")
    version = packages.get("q36eval") if isinstance(packages, dict) else None
    commit = run.provenance.get("git_commit")
    version_text = f"q36eval {md(str(version))}" if version else "q36eval"
    if commit:
        version_text += f" at commit `{_code(str(commit)[:12])}`"
    return version_text + (", with uncommitted changes" if run.provenance.get("git_dirty") else "")


def _code(text: str) -> str:
    """Text for between backticks, which Markdown reads as it is: nothing in it may close them or be markup."""
    return re.sub(r"[^\w.:+ /-]", "\N{REPLACEMENT CHARACTER}", plain(text))


def _table(header: Sequence[str], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    """A table of text cells, all escaped."""
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    for row in rows:
        yield f"| {' | '.join(md(cell) or '–' for cell in row)} |"
