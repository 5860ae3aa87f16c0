"""What `q36eval evals --plan` prints."""

from q36eval.app.cli.tables import plain_table
from q36eval.run.eval_plan import FLIPS, SAMPLE_ITEMS, CriterionPlan, EvalPlan
from q36eval.run.measurable import ASSUMED_SCORE
from q36eval.run.progress import duration
from q36eval.stats import GREATEST_LIMIT

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
    reference = "captured already" if plan.captured else "to be asked as much once, which takes about as long"
    sentence = (
        f"All items of the branch: {whole} at most, timed on {SAMPLE_ITEMS} of each task: full batches take less, and "
        f"so do criteria that are settled early. The reference: {reference}."
    )
    console.print(Text(sentence))
    for note in plan.notes:
        console.print(Text(note))


def _time(seconds: float | None) -> str:
    return "not known" if seconds is None else duration(seconds)


def _rows(criterion: CriterionPlan) -> list[tuple[str, ...]]:
    """A row for each share of flips, the first with the criterion's name."""
    rows = []
    for place, (flips, found) in enumerate(criterion.powers.items()):
        named = (
            (criterion.id, _asked(criterion), str(criterion.items), _excluded(criterion)) if place == 0 else ("",) * 4
        )
        drops = tuple("never" if loss is None else f"{loss:.1%}" for loss in found.detected.values())
        rows.append((*named, f"{flips:.0%}", f"{found.passes:.0%}", *drops))
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
