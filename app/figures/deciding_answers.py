"""Which items of a run show best why it did not pass, and what people did about it. Reads history; draws nothing."""

from collections.abc import Iterable

from q36eval.app.figures.canary_items import parting_words, reasons
from q36eval.app.figures.canary_lanes import CanaryLanes
from q36eval.canaries.must_pass import Standing, standing
from q36eval.gate import CriterionResult
from q36eval.history import History, RunRecord
from q36eval.metrics import ALL
from q36eval.records import ItemOutcome, ProbeName, Verdict
from q36eval.reports.deciding_answers import ANSWER_CHARACTERS, MOST, PROMPT_CHARACTERS, DecidingAnswer, cut
from q36eval.reports.next_step import Since

READ = 500
"""Of the evals' flips, which may be thousands, only the first so many are looked through."""


def deciding_items(history: History, run: RunRecord) -> list[ItemOutcome]:
    """What the reference answers right and the branch wrong, of the probes that decided; whole, `MOST` at most.

    Required prompts that the gate counts as flipped come first, then others that flipped in every batch, then other
    required ones; one of each kind of question before a second of any. Nothing of a run that passed, or that answers
    did not decide.
    """
    if run.report is None or run.report.verdict is Verdict.PASS:
        return []
    decisive = {result.id: result for result in run.report.criteria if result.id in run.report.decisive}
    probes = {result.probe for result in decisive.values()}
    lost: list[ItemOutcome] = []
    counted: list[ItemOutcome] = []
    if ProbeName.CANARIES in probes:
        lost = _lost(history.items(run.id, ProbeName.CANARIES, flips_only=True))
        if _required_decide(decisive.values()):
            lanes = CanaryLanes.of(history.measurements(run.id))
            # what the gate counts, before prompts that flipped too and are judged as a rate
            counted = [item for item in lost if lanes.counts(ALL, item)]
            lost.sort(
                key=lambda item: (not (item.must_pass and standing(item) is Standing.FLIPPED), not item.must_pass)
            )
    if ProbeName.EVALS in probes and len(lost) < MOST:
        for group in _deciding_groups(decisive.values()):
            lost += _lost(history.items(run.id, ProbeName.EVALS, group, flips_only=True, limit=READ))
    first = _varied(counted)
    return [*first, *(item for item in _varied(lost) if item not in first)][:MOST]


def _lost(items: Iterable[ItemOutcome]) -> list[ItemOutcome]:
    return [item for item in items if item.flip == "regression"]


def _required_decide(decisive: Iterable[CriterionResult]) -> bool:
    return any(result.metric.startswith("must_pass") for result in decisive)


def _deciding_groups(decisive: Iterable[CriterionResult]) -> list[str | None]:
    """Of evals the groups of tasks that decided; all of them where one criterion is over all."""
    groups: list[str | None] = [one.slice.split("/")[0] for one in decisive if _judges_answers(one)]
    return [None] if "all" in groups else list(dict.fromkeys(groups))


def _judges_answers(result: CriterionResult) -> bool:
    return result.probe is ProbeName.EVALS and result.metric != "perplexity"


def _varied(items: list[ItemOutcome]) -> list[ItemOutcome]:
    """The same in rounds: the first of each group, or subject, then the second of each."""
    seen: dict[str, int] = {}
    rounds = []
    for place, item in enumerate(items):
        kind = item.cluster.partition("|")[0] if "|" in item.cluster else item.group
        round_ = seen.get(kind, 0)
        seen[kind] = round_ + 1
        rounds.append((not item.must_pass, round_, place, item))
    return [item for *_, item in sorted(rounds, key=lambda entry: entry[:3])]


def since_decided(history: History, run: RunRecord) -> Since:
    """What people did about a run since: so that nobody is told to bless what is blessed, or to sign what is signed."""
    blessings = history.blessings(run.branch, run.family)
    counted = () if run.report is None else run.report.signed_by
    signed = [one.owner for one in history.sign_offs(run.id) if one not in counted]
    return Since(bool(blessings) and blessings[0].run_id == run.id, tuple(signed))


def deciding_answer(item: ItemOutcome) -> DecidingAnswer:
    """The item for a report."""
    return DecidingAnswer(
        name=_name(item),
        prompt=cut(item.prompt or "", PROMPT_CHARACTERS, end=True),
        reference=cut(item.reference.text or "", ANSWER_CHARACTERS),
        branch=cut(item.branch.text or "", ANSWER_CHARACTERS),
        why="; ".join(reasons(item.branch)),
        parting=parting_words(item) or "",
        required=item.must_pass,
    )


def _name(item: ItemOutcome) -> str:
    """Its group and what it is called; a question made from a template (`subject|template|filling`) as it was asked."""
    _, _, asked = item.cluster.partition("|")
    template, _, filling = asked.partition("|")
    if "{0}" in template and filling:
        return f"{item.group}: {template.replace('{0}', filling)}"
    return item.cluster if item.cluster.startswith(item.group) else f"{item.group}: {item.cluster}"
