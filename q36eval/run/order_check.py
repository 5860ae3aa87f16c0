"""Whether an engine's answers changed during a run: the first items are evaluated again at the end.

The last items see an engine that has run for hours. If it has changed by then, its answers say nothing about the
branch. A deterministic engine must repeat every answer bit for bit: a few short ones show whether it does. For any
other engine only scores are compared, since its texts diverge at near ties, and as many may differ as its own
nondeterminism explains.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

from scipy.special import bdtrc

from q36eval.engines.base import Engine
from q36eval.gate.integrity import ENGINE_DRIFT
from q36eval.metrics import METRICS
from q36eval.probes import Captures, Progress, WorkItem
from q36eval.records import Counts, ItemOutcome, Measurement, ProbeName
from q36eval.run.items import MISSING, Work, finished_items, known_of
from q36eval.stats import DEFAULT_LEVEL, proportion_interval

ITEMS = 64
FEW = 8
"""The number of items if the engine is deterministic."""
AMONG = 4
"""They are selected from this many times as many."""

PROBES = (ProbeName.CANARIES, ProbeName.EVALS)
FALSE_ALARMS = 0.001
"""The chance that a run is called not measured although its engine is unchanged, over all probes together."""

STATED_RATE = 0.06
"""The maximum share of scores that an engine changes from run to run: near-lossless branches change 2 to 6 % of them,
and an engine that alone changes more cannot distinguish such a branch from its reference."""


def first_answered(outcomes: Sequence[ItemOutcome], places: Mapping[str, tuple[str, int]] | None) -> list[ItemOutcome]:
    """The first items that the branch answered, in the order of evaluation; texts that are only scored do not count.

    If the engine is deterministic, as `places` shows, the shortest answers in the first round, since a batch is
    evaluated whole. Else, among choices, those of the reference's largest margins: near ties are evaluated first, and
    would flip without any fault.
    """
    answered = (o for o in outcomes if o.branch.error is None and o.branch.score is not None)
    first = [outcome for outcome in answered if outcome.branch.text is not None][: AMONG * ITEMS]
    if places is not None:
        first = [outcome for outcome in first if places[outcome.item_key] == places[first[0].item_key]]
        return sorted(first[: AMONG * FEW], key=lambda outcome: len(outcome.branch.text or ""))[:FEW]
    surest = sorted(range(len(first)), key=lambda place: (-_reference_margin(first[place]), place))[:ITEMS]
    return [first[place] for place in sorted(surest)]


def _reference_margin(outcome: ItemOutcome) -> float:
    """The margin in nats of the reference's choice; 0 if unknown, so that the first ones are taken."""
    margin = outcome.reference.detail.get("margin_nats")
    return abs(float(margin)) if isinstance(margin, int | float) else 0.0


def most_disagreements(items: int, repeats: tuple[int, int], *, deterministic: bool) -> int:
    """The number of `items` that may disagree before the engine counts as changed: none if it is deterministic.

    Else the smallest number exceeded with at most half a probe's share of `FALSE_ALARMS`, if items disagree
    independently at the engine's rate (exact binomial). `repeats` counts re-runs of the reference: those that
    disagreed, and all. The rate is their upper bound (Clopper & Pearson, for the other half), but with few re-runs at
    most `STATED_RATE`, unless they refute it.
    """
    if deterministic:
        return 0
    alpha = FALSE_ALARMS / len(PROBES) / 2
    measured = proportion_interval(*repeats, level=1.0 - 2.0 * alpha) if repeats[1] else None
    upper = STATED_RATE if measured is None else measured.upper
    rate = upper if measured is not None and measured.lower > STATED_RATE else min(upper, STATED_RATE)
    return next(k for k in range(items + 1) if k == items or bdtrc(k, items, rate) <= alpha)


def check_order(
    engine: Engine, work: Work, outcomes: Sequence[ItemOutcome], captures: Captures, progress: Progress
) -> Measurement | None:
    """Evaluate a probe's first items again and count the changed outcomes; None without items.

    `outcomes` are the probe's own in the order of evaluation. The batches are those of the first time.
    """
    deterministic = engine.deterministic
    places = {item.key: (item.stage, item.block) for item in work.items}
    first = first_answered(outcomes, places if deterministic else None)
    if work.failed is not None or work.probe.name not in PROBES or not first:
        return None
    progress.stage("evaluating the first items again", len(first))
    again = {}
    for outcome in _evaluated_again(engine, work, {outcome.item_key for outcome in first}, captures):
        again[outcome.item_key, outcome.group] = outcome.branch
        progress.advance()
    pairs = [(outcome, again[outcome.item_key, outcome.group]) for outcome in first]
    errored = [answer.error or answer.unreadable for _, answer in pairs if answer.score is None]  # counted separately
    scored = [(outcome.branch, answer) for outcome, answer in pairs if answer.score is not None]
    differing = sum(one.score != two.score or (deterministic and one.text != two.text) for one, two in scored)
    repeats = work.probe.reference_repeats(outcomes)
    explained = most_disagreements(len(first), repeats, deterministic=deterministic)
    note = f"of the first {len(first)} items, evaluated again at the end, {differing} changed"
    note += f" and {len(errored)} could not be scored ({errored[0]})" if errored else ""
    note += f"; the engine's own scatter explains {explained} at most"
    return METRICS[work.probe.name, ENGINE_DRIFT].counted(
        differing,
        Counts(total=len(first), scored=len(first) - len(errored), errored=len(errored)),
        level=DEFAULT_LEVEL,
        reference_value=float(explained),
        note=note,
    )


def _evaluated_again(engine: Engine, work: Work, keys: Collection[str], captures: Captures) -> Iterator[ItemOutcome]:
    """The outcomes of those items, evaluated again round by round; all others are passed to the engine as known."""
    probe = work.probe
    wanted: list[WorkItem] = [item for item in work.items if item.key in keys]
    rest = frozenset(item.key for item in work.items if item.key not in keys)
    for place in sorted({(item.stage, item.block) for item in wanted}):
        for _, item, results in finished_items(engine, [Work(probe, work.items, done=rest)], place):
            reference = known_of(captures[probe.name], item.key) or MISSING
            yield from probe.compare(engine, item, results, reference)
