"""The items of a run that best show why it did not pass, and people's actions on it. Reads history; draws nothing."""

from collections import Counter
from collections.abc import Iterable

from q36eval.app.figures.canary_items import details_of, parting_words, reasons
from q36eval.app.figures.canary_lanes import CanaryLanes
from q36eval.canaries.must_pass import Standing, standing
from q36eval.gate import CriterionResult
from q36eval.history import History, RunRecord
from q36eval.metrics import ALL
from q36eval.records import ItemOutcome, ProbeName, Verdict
from q36eval.reports.deciding_answers import ANSWER_CHARACTERS, MOST, PROMPT_CHARACTERS, DecidingAnswer, cut
from q36eval.reports.next_step import Since

READ = 500
"""The maximum of the evals' flips, which may be thousands, that are examined."""


def deciding_items(history: History, run: RunRecord) -> list[ItemOutcome]:
    """What the reference answers right and the branch wrong, whatever decided; whole, `MOST` at most.

    Canaries first, unless evals decided and canaries did not. Of canaries required prompts that the gate counts as
    flipped come first, then others that flipped in every batch, then other required ones; one of each kind of question
    before a second of any. Nothing of a run that passed.
    """
    if run.report is None or run.report.verdict is Verdict.PASS:
        return []
    decisive = [result for result in run.report.criteria if result.id in run.report.decisive]
    probes = {result.probe for result in decisive}
    lanes = CanaryLanes.of(history.measurements(run.id))
    canaries = _lost(history.items(run.id, ProbeName.CANARIES, flips_only=True))
    canaries.sort(key=lambda item: (not (item.must_pass and standing(item) is Standing.FLIPPED), not item.must_pass))
    # what the gate counts, before prompts that flipped too and are judged as a rate
    pools = [[item for item in canaries if lanes.counts(ALL, item)], canaries]
    evals_first = ProbeName.EVALS in probes and ProbeName.CANARIES not in probes
    if evals_first or len(canaries) < MOST:
        flipped = (history.items(run.id, ProbeName.EVALS, g, flips_only=True, limit=READ) for g in _groups(decisive))
        evals = [item for items in flipped for item in _lost(items)]
        pools = [evals, *pools] if evals_first else [*pools, evals]
    first: list[ItemOutcome] = []
    for pool in pools:
        first += [item for item in _varied(pool) if item not in first]
    return first[:MOST]


def largest_loss(history: History, run: RunRecord) -> str:
    """The canary of which the branch loses most answers net, in a sentence; empty where none loses any, or of a PASS.

    `23 of 60 tool-none prompts lost, most often: tool call`.
    """
    if run.report is None or run.report.verdict is Verdict.PASS:
        return ""
    flips = history.items(run.id, ProbeName.CANARIES, flips_only=True)
    net = Counter(item.group for item in flips if item.flip == "regression")
    net.subtract(item.group for item in flips if item.flip == "improvement")
    worst, count = max(net.items(), key=lambda entry: (entry[1], entry[0]), default=("", 0))
    if count <= 0:
        return ""
    families = [family for m in history.measurements(run.id) for family in m.competence or () if family.name == worst]
    of = max((family.items for family in families), default=0)
    lost = [item for item in _lost(flips) if item.group == worst]
    why = Counter(failure.code for item in lost for failure in details_of(item.branch).failures[:1]).most_common(1)
    asked = f"{len(lost)} of {of}" if of >= len(lost) else str(len(lost))
    return f"{asked} {worst} prompts lost" + (f", most often: {why[0][0].replace('_', ' ')}" if why else "")


def _lost(items: Iterable[ItemOutcome]) -> list[ItemOutcome]:
    return [item for item in items if item.flip == "regression"]


def _groups(decisive: Iterable[CriterionResult]) -> list[str | None]:
    """Of evals the groups of tasks that decided; all of them where none did, or one criterion is over all."""
    of_answers = (one for one in decisive if one.probe is ProbeName.EVALS and one.metric != "perplexity")
    groups: list[str | None] = [one.slice.split("/")[0] for one in of_answers]
    return [None] if "all" in groups or not groups else list(dict.fromkeys(groups))


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
    """People's actions on a run since its decision, so that nobody is asked to repeat a blessing or a signature."""
    blessings = history.blessings(run.branch, run.family)
    counted = () if run.report is None else run.report.signed_by
    signed = [one.owner for one in history.sign_offs(run.id) if one not in counted]
    return Since(bool(blessings) and blessings[0].run_id == run.id, tuple(signed))


def deciding_answer(item: ItemOutcome, required: bool = False) -> DecidingAnswer:
    """The item for a report; `required` says whether its flip alone blocks."""
    return DecidingAnswer(
        name=item_name(item),
        prompt=cut(item.prompt or "", PROMPT_CHARACTERS, end=True),
        reference=cut(item.reference.text or "", ANSWER_CHARACTERS),
        branch=cut(item.branch.text or "", ANSWER_CHARACTERS),
        why="; ".join(reasons(item.branch)),
        parting=parting_words(item) or "",
        required=required,
    )


def item_name(item: ItemOutcome) -> str:
    """Its group and what it is called; a question made from a template (`subject|template|filling`) as it was asked,
    a fixed prompt below the canary that it belongs to."""
    _, _, asked = item.cluster.partition("|")
    template, _, filling = asked.partition("|")
    if "{0}" in template and filling:
        return f"{item.group}: {template.replace('{0}', filling)}"
    if not item.cluster.startswith(item.group):
        return f"{item.group}: {item.cluster}"
    return item.cluster.replace("-must-pass/", ": ")
