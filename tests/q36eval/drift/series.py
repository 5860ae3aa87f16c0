"""Series of one metric, as history would give them."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from q36eval.history import SeriesPoint, SeriesRun
from q36eval.records import DeploymentIdentity, Direction, Interval, ProbeName

IDENTITY = DeploymentIdentity(
    checkpoint_sha256="aa", tokenizer_sha256="bb", chat_template_sha256="cc", engine="vllm", engine_version="1"
)
ERROR = 0.01


def point(day: int, effect: float, *, metric: str = "perplexity", suite: str = "s", error: float = ERROR, **changed):
    """`changed` are fields of the run's identity; the others that are popped here are the point's own."""
    higher, reference = changed.pop("higher", False), changed.pop("reference", IDENTITY)
    scored, answers = changed.pop("scored", 9), changed.pop("answers", None)
    own = changed.pop("own", 0.5)  # the reference's own figure
    run = SeriesRun(
        id=f"r{day:02d}",
        started=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=day),
        verdict=None,
        policy="sandbox",
        suites={"evals": suite},
        identity=IDENTITY.model_copy(update=changed),
        reference_identity=reference,
        reference_answers={} if answers is None else {"evals": answers},
    )
    arm = 1.959964 * error
    return SeriesPoint(
        run=run,
        probe=ProbeName.EVALS,
        metric=metric,
        key=f"evals.{metric}[all]",
        unit="fraction",
        direction=Direction.HIGHER_IS_BETTER if higher else Direction.LOWER_IS_BETTER,
        estimator="paired_mean",
        value=own + effect,
        effect=effect,
        effect_interval=Interval(lower=effect - arm, upper=effect + arm, level=0.95, method="betting"),
        scored=scored,
        errored=0,
    )


def line(effects: Sequence[float], **how) -> list[SeriesPoint]:
    """One run a day."""
    return [point(day, effect, **how) for day, effect in enumerate(effects)]
