"""What `q36eval evals` prints, and `q36eval evals --plan`."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from q36eval.app.cli.tables import plain_table
from q36eval.app.figures.answers import shortened
from q36eval.app.figures.evals import (
    GROUP_COLUMNS,
    PART_COLUMNS,
    PERPLEXITY_COLUMNS,
    Flip,
    answer_words,
    flip_json,
    flip_words,
    flips_of,
    group_rows,
    largest,
    length_rows,
    macro_words,
    perplexity_rows,
    seconds_by_group,
    task_rows,
)
from q36eval.measured_on import recorded_unverified
from q36eval.records import ProbeName
from q36eval.reports.evals_figures import EvalsFigures, effective_words, figures_json
from q36eval.reports.text import duration, plain
from q36eval.run.declared_figures import ASSUMED_SCORE
from q36eval.run.eval_plan import FLIPS, SAMPLE_ITEMS, CriterionPlan, EvalPlan
from q36eval.stats import GREATEST_LIMIT

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from q36eval.history import History, RunRecord

PROMPT_CHARACTERS = 240
ANSWER_CHARACTERS = 160


def print_summary(
    run: "RunRecord", history: "History", *, flips: int, recovery_at_least: float, by_task: bool = False
) -> None:
    """Groups, tasks where asked, RULER by length, perplexity, the largest flips, and what was not measured."""
    from rich.console import Console
    from rich.text import Text

    figures = EvalsFigures(history.measurements(run.id))
    items = history.items(run.id, ProbeName.EVALS)
    console = Console()
    console.print(Text(plain(f"{run.family}/{run.branch}, run {run.id}"), style="bold"))
    if not figures.measured:
        console.print(Text("No item was scored."))
    seconds = seconds_by_group(items, figures)
    for part in _parts(figures, seconds, recovery_at_least, by_task=by_task):
        console.print(part)
    for part in _flip_parts(flips_of(items), flips):
        console.print(part)
    unverified = recorded_unverified(run.provenance)
    if unverified is not None:
        console.print(Text(plain(unverified)))
    for failure in history.failures(run.id):
        console.print(Text(plain(f"not measured: {failure.probe}: {failure.reason}")))


def evals_body(run: "RunRecord", history: "History", *, flips: int | None, recovery_at_least: float) -> dict[str, Any]:
    """What `--json` holds beside the measurements: figures by group, effective lengths, and flips.

    `flips` bounds how many of each direction are listed, the largest first; None lists all.
    """
    figures = EvalsFigures(history.measurements(run.id))
    items = history.items(run.id, ProbeName.EVALS)
    flipped = flips_of(items)
    listed = flipped if flips is None else largest(flipped, flips)
    return {
        "evals": figures_json(figures, recovery_at_least) | {"seconds": seconds_by_group(items, figures)},
        "flips": [flip_json(flip) for flip in listed],
    }


def _parts(
    figures: EvalsFigures, seconds: dict[str, float], recovery_at_least: float, *, by_task: bool
) -> Iterator["RenderableType"]:
    from rich.text import Text

    groups = group_rows(figures, seconds)
    if groups:
        yield plain_table(GROUP_COLUMNS, groups, right=(1, 2, 4, 5, 6, 7, 9, 10, 11))
    for line in answer_words(figures):
        yield Text(plain(line))
    for line in macro_words(figures):
        yield Text(plain(line))
    for group in (row[0] for row in groups if by_task):
        tasks = task_rows(figures, group)
        if tasks:
            yield Text("")
            yield plain_table((f"{group} by task", *PART_COLUMNS), tasks, right=(1, 2, 4, 5))
    for group in figures.groups_with_lengths():
        yield Text("")
        yield plain_table((f"{group} by tokens", *PART_COLUMNS), length_rows(figures, group), right=(0, 1, 2, 4, 5))
        yield Text(plain(effective_words(figures.effective_length(group, recovery_at_least))))
    perplexities = perplexity_rows(figures)
    if perplexities:
        yield Text("")
        yield plain_table(PERPLEXITY_COLUMNS, perplexities, right=(4, 5))


def _flip_parts(flips: Sequence[Flip], each: int) -> Iterator["RenderableType"]:
    from rich.text import Text

    shown = largest(flips, each)
    for direction, title in (("regression", "lost"), ("improvement", "gained")):
        whole = [flip for flip in flips if flip.direction == direction]
        chosen = [flip for flip in shown if flip.direction == direction]
        if chosen:
            yield Text(f"\n{len(whole)} items {title}" + (f", the {len(chosen)} largest:" if chosen != whole else ":"))
        for flip in chosen:
            yield from _flip_lines(flip)


def _flip_lines(flip: Flip) -> Iterator["Text"]:
    from rich.text import Text

    yield Text(plain(flip_words(flip)), style="bold")
    yield Text(f"  prompt     {_short(flip.prompt, PROMPT_CHARACTERS)}")
    if flip.expected is not None:
        yield Text(f"  expected   {_short(flip.expected, ANSWER_CHARACTERS)}")
    yield Text(f"  reference  {_short(flip.reference.text or '', ANSWER_CHARACTERS)}")
    yield Text(f"  branch     {_short(flip.branch.text or '', ANSWER_CHARACTERS)}")


def _short(text: str, most: int) -> str:
    """One harmless line with the text's beginning and end."""
    return plain(shortened(text, most), limit=2 * most)


COLUMNS = ("criterion", "asks", "items", "excludes", "flips", "passes", "finds, 80 %", "finds, 95 %")

WEIGHTS = ("criterion", "items", "clusters", "weigh as", "largest", "solved")


def print_plan(plan: EvalPlan) -> None:
    """What each criterion can show, and how long the tasks take."""
    from rich.console import Console
    from rich.text import Text

    console = Console()
    rows = [row for criterion in plan.criteria for row in _rows(criterion)]
    if rows:
        console.print(plain_table(COLUMNS, rows, right=range(2, len(COLUMNS)), whole=(0, 1)))
        console.print(Text(_legend(plan)))
        console.print(plain_table(WEIGHTS, [_weight(criterion) for criterion in plan.criteria], right=range(1, 6)))
        console.print(Text(WEIGHTS_LEGEND))
    else:
        console.print(Text("Of no criterion of the policy the power is known here."))
    tasks = [(task, str(items), _time(plan.seconds.get(task))) for task, items in plan.items.items()]
    console.print(plain_table(("task", "items", "one deployment"), tasks, right=(1, 2)))
    whole = _time(plan.whole_seconds)
    reference = "captured already" if plan.captured else "to be captured once, which takes about as long"
    sentence = (
        f"All items of the branch: {whole} at most, timed on {SAMPLE_ITEMS} of each task: full batches take less, and "
        f"so do criteria that are resolved early. The reference: {reference}."
    )
    console.print(Text(sentence))
    for note in plan.notes:
        console.print(Text(note))


def _time(seconds: float | None) -> str:
    return "not known" if seconds is None else duration(seconds)


def _rows(criterion: CriterionPlan) -> list[tuple[str, ...]]:
    """A row for each share of flips, the first with the criterion's name."""
    rows = []
    for place, (flips, power) in enumerate(criterion.powers.items()):
        named = (
            (criterion.id, _asked(criterion), str(criterion.items), _excluded(criterion)) if place == 0 else ("",) * 4
        )
        drops = tuple("never" if loss is None else f"{loss:.1%}" for loss in power.detected.values())
        rows.append((*named, f"{flips:.0%}", f"{power.passes:.0%}", *drops))
    return rows


WEIGHTS_LEGEND = (
    "clusters: items that share a text are right or wrong together, and count as one; weigh as: so many clusters of "
    "equal size (Kish); largest: items of the largest one; solved: items that the reference gets right, of which alone "
    "a branch can lose any."
)


def _weight(criterion: CriterionPlan) -> tuple[str, ...]:
    counts = (criterion.items, criterion.clusters, criterion.effective_clusters, criterion.largest_cluster)
    solved = "not known" if criterion.informative is None else f"{criterion.informative / max(1, criterion.items):.0%}"
    return (criterion.id, *(f"{count:,}" for count in counts), solved)


def _asked(criterion: CriterionPlan) -> str:
    return f"loss < {criterion.limit:.1%}" if criterion.can_show else f"loss < {criterion.limit:.1%}: CANNOT BE SHOWN"


def _excluded(criterion: CriterionPlan) -> str:
    return f"over {GREATEST_LIMIT:.0%}" if criterion.tightest is None else f"{criterion.tightest:.1%}"


def _legend(plan: EvalPlan) -> str:
    assumed = sorted(criterion.id for criterion in plan.criteria if criterion.assumed)
    guess = f" {', '.join(assumed)}: taking the reference to get {ASSUMED_SCORE:.0%} right." if assumed else ""
    flips = ", ".join(f"{share:.0%}" for share in FLIPS)
    return (
        "excludes: the least loss that these items can exclude, of a branch that answers all as the reference does. "
        f"For branches that change so many answers ({flips}), half each way: passes: how often one without loss does; "
        f"finds: the smallest loss, of the margin's own kind, that FAILs with that probability.{guess}"
    )
