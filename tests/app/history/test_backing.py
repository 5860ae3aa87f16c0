"""Whatever a gate measures is what its items give, also where something errored, or flipped at times."""

from q36eval.app.history.backing import unbacked
from q36eval.canaries.must_pass import flips
from q36eval.canaries.paired import failed, rate
from q36eval.evals.paired_clusters import paired_clusters, scores
from q36eval.kl.measurements import Grouping
from q36eval.metrics import metric_of
from q36eval.records import Answer, Clusters, Counts, DeclaredFigure, Direction, ItemOutcome, Measurement, ProbeName
from q36eval.served.comparing import Compared, counted_faults, measured_differences
from tests.q36eval.gate.evidence import measurement

RIGHT, WRONG, BROKEN = Answer(score=1.0, text="4"), Answer(score=0.0, text="5"), Answer(score=None, error="it broke")
BOTH = ((RIGHT, RIGHT), (WRONG, RIGHT), (BROKEN, RIGHT), (WRONG, BROKEN), (RIGHT, WRONG), (WRONG, WRONG))


def items(probe: ProbeName, pairs: tuple[tuple[Answer, Answer], ...], *, source: int = 1) -> list[ItemOutcome]:
    """One item of each pair of answers; `source` of them in turn are of one cluster."""
    return [
        ItemOutcome(
            probe=probe,
            group="sums",
            item_key=f"{number:016}",
            cluster=f"sums/{number // source}",
            prompt="2 + 2 =",
            branch=branch,
            reference=reference,
        )
        for number, (branch, reference) in enumerate(pairs)
    ]


def declared(metric: str) -> DeclaredFigure:
    known = metric_of(ProbeName.CANARIES, metric)
    return DeclaredFigure(ProbeName.CANARIES, metric, "sums", known.estimator, known.direction, known.unit)


def held(found: Measurement | None, outcomes: list[ItemOutcome]) -> list[str]:
    assert found is not None
    return list(unbacked([found], outcomes))


def test_what_errored_on_one_side_counts_on_neither() -> None:
    asked = items(ProbeName.EVALS, BOTH, source=2)
    clusters = paired_clusters(asked, scores, bounds=(0.0, 1.0))
    found = measurement(ProbeName.EVALS, "accuracy", clusters, "paired_mean", Direction.HIGHER_IS_BETTER, "sums")
    assert held(found, asked) == []
    assert held(found, [*asked[:1], asked[0].model_copy(update={"item_key": "x"}), *asked[2:]]) != []
    drawn = items(ProbeName.CANARIES, BOTH)
    rated = rate(declared("failure_rate"), drawn, failed)
    assert held(rated, drawn) == []
    better = [item.model_copy(update={"branch": RIGHT}) for item in drawn]
    assert "counts 2 of the branch where its items give 0" in held(rated, better)[0]


def test_a_must_pass_prompt_that_flips_at_times_is_no_flip() -> None:
    def asked_again(*scored: float) -> Answer:
        return WRONG.model_copy(update={"detail": {"repeats": [{"score": score} for score in scored]}})

    sure = RIGHT.model_copy(update={"detail": {"margin": {"nats": 9.0}, "repeats": [{"score": 1.0}]}})
    pairs = tuple((branch, sure) for branch in (RIGHT, WRONG, asked_again(1.0), asked_again(0.0)))
    asked = items(ProbeName.CANARIES, pairs)
    assert held(flips(declared("must_pass_flips"), asked), asked) == []


def test_documents_of_one_source_are_found_by_what_they_are_called_together() -> None:
    def divergent(divergence: float) -> Answer:
        return Answer(score=None, text="", detail={"finite_tokens": 10, "tokens": 10, "forward_kl": divergence})

    texts = items(ProbeName.KL, tuple((divergent(n / 8), divergent(0.0)) for n in range(6)), source=3)
    lost = Answer(score=None, error="it broke", detail={"tokens": 10})
    texts[4] = texts[4].model_copy(update={"branch": lost})
    grouping = Grouping.of(texts)
    values = [0.0 if text.branch.error else float(text.branch.detail["forward_kl"]) for text in texts]
    clusters = Clusters(units=(30, 20), branch=grouping.sums(values), errored=(0, 10), names=grouping.names)
    found = measurement(ProbeName.KL, "kl_divergence", clusters, "mean")
    assert held(found, texts) == []
    texts[5] = texts[5].model_copy(update={"branch": divergent(9.0)})
    assert "where its items give" in held(found, texts)[0]


def test_figures_without_items_are_held_against_their_own_clusters() -> None:
    """Of an endpoint by itself, and of an attribution, no outcome is kept."""
    asked = [Compared(str(n), "another" if n < 3 else None) for n in range(8)]
    differing = measured_differences("cache-hit", asked, "")
    tokens = Clusters(units=(30, 20), branch=(0.3, 0.6), errored=(0, 0), reference=(0.1, 0.1))
    blamed = measurement(ProbeName.KL, "attributed_kl", tokens, "paired_mean")
    blamed = blamed.model_copy(update={"value": 0.9 / 50, "reference_value": 0.2 / 50})
    counted = counted_faults("greedy_faults", "all", ["one"], Counts(total=8, scored=8, errored=0))
    assert list(unbacked([differing, blamed, counted], [])) == []
    for figure, field, whose in (
        (differing, "value", "the branch"),
        (differing, "reference_value", "the reference"),
        (blamed, "value", "the branch"),
    ):
        (why,) = unbacked([figure.model_copy(update={field: 0.9})], [])
        assert f"says 0.9 of {whose}" in why
