"""Runs of a served branch: what they measure is what the same model gives in this process, the rest is not measured."""

from collections.abc import Callable

import pytest
import torch

from q36eval.engines import EngineOptions, EngineSettings
from q36eval.engines.openai.capabilities import PROOF_TEXTS
from q36eval.gate import CriterionVerdict
from q36eval.history import RunRecord
from q36eval.records import Measurement, ProbeName, Verdict
from q36eval.run.request import CanaryChoice
from q36eval.run.rounds import LIKELIEST_ALONE
from tests.q36eval.openai.server import SANDBOX, Served
from tests.q36eval.small_runs import SmallRuns

pytestmark = pytest.mark.long

DOCUMENTS = [f"Obchod {n}: cena {n * 130} Kč, sleva {n} %." for n in range(10)]
NOISE = 1e-5
"""Nats/token between the same model's logits, once as they are and once through JSON, and more."""
DIVERGENCES = {"kl.kl_divergence", "kl.perplexity"}

Measured = tuple[RunRecord, dict[str, Measurement], dict[ProbeName, str]]
Run = Callable[..., Measured]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> SmallRuns:
    """In one state, so that the reference is captured once."""
    return SmallRuns(tmp_path_factory.mktemp("state"), DOCUMENTS, CanaryChoice(only=("json-flat",), draws=3))


@pytest.fixture
def run(settings: EngineSettings, runs: SmallRuns, monkeypatch: pytest.MonkeyPatch) -> Run:
    # this process has the server's threads: it must not fork
    monkeypatch.setattr("q36eval.engines.resident.usable_workers", lambda: 1)

    def measured(*probes: ProbeName, gated: bool = False) -> Measured:
        engine = EngineOptions(kind="openai", base_url=settings.base_url)
        done = runs.run(SANDBOX, SANDBOX, engine, *probes, gated=gated)
        return done, runs.figures(done), runs.failures(done)

    return measured


def test_a_served_branch_is_gated_as_the_same_branch_in_this_process(run: Run) -> None:
    done, figures, failures = run(ProbeName.CANARIES, ProbeName.KL, ProbeName.EVALS, gated=True)
    assert set(failures) == {ProbeName.WEIGHTS}  # was not part of the run
    assert done.verdict is Verdict.PASS
    assert (done.identity.engine, done.reference_identity.engine) == ("openai", "in-process")
    # the reference was scored in batches, the served model text by text
    alone = figures["kl.kl_noise_floor[batch-of-one]"].value
    assert figures["kl.kl_divergence[all]"].value <= 2 * alone + NOISE
    perplexities = [figure for key, figure in figures.items() if key.startswith("evals.") and "perplexity" in key]
    assert perplexities
    for figure in perplexities:
        assert figure.value == pytest.approx(figure.reference_value, rel=0.01)
    for key, figure in figures.items():
        assert figure.counts.errored == 0, key
    for probe in (ProbeName.CANARIES, ProbeName.EVALS):
        assert any(figure.counts.scored for key, figure in figures.items() if key.startswith(f"{probe}."))


def test_of_a_server_without_log_probabilities_answers_alone_are_measured(run: Run, served: Served) -> None:
    served.shape = "llama.cpp"
    done, figures, failures = run(ProbeName.CANARIES, ProbeName.KL, gated=True)
    assert "gives no log-probabilities of a prompt's tokens" in failures[ProbeName.KL]
    assert ProbeName.CANARIES not in failures
    assert not {key.partition("[")[0] for key in figures} & DIVERGENCES
    answered = [figure for key, figure in figures.items() if key.startswith("canaries.")]
    assert any(figure.counts.scored for figure in answered)
    assert not any(figure.counts.errored for figure in answered)
    assert done.report.exit_code == 4
    for judged in done.report.criteria:  # the policy's own, and what every policy demands of KL
        assert judged.reason.startswith("the kl probe cannot be measured with this engine: its server gives no")


@pytest.mark.parametrize(
    ("lie", "verdict"),
    [
        (lambda rows: rows, CriterionVerdict.PASS),
        (lambda rows: rows * torch.nan, CriterionVerdict.NOT_MEASURED),
        (lambda rows: rows + 1e30, CriterionVerdict.NOT_MEASURED),
        (lambda rows: rows.roll(1, 0), CriterionVerdict.FAIL),
        (lambda rows: rows.flip(1), CriterionVerdict.FAIL),
        (lambda rows: rows[-1:].expand_as(rows), CriterionVerdict.FAIL),
    ],
    ids=["none", "not numbers", "huge", "shifted", "swapped", "copied"],
)
def test_figures_that_are_not_the_texts_own_pass_no_kl(
    run: Run, served: Served, lie: Callable[[torch.Tensor], torch.Tensor], verdict: CriterionVerdict
) -> None:
    """Honest where it is tried: of the first proof text alone."""
    honest, proof = served.log_probs, served.ids_of(PROOF_TEXTS[0])[:8]
    served.log_probs = lambda ids: honest(ids) if list(ids)[:8] == proof else lie(honest(ids))  # type: ignore[method-assign]
    done, _, _ = run(ProbeName.KL, gated=True)
    (judged,) = [each for each in done.report.criteria if each.id == "kl"]
    assert judged.verdict is verdict


def test_of_the_likeliest_tokens_no_divergence_is_measured(run: Run, served: Served) -> None:
    served.max_logprobs = 20
    _, figures, failures = run(ProbeName.KL)
    assert failures[ProbeName.KL] == LIKELIEST_ALONE
    assert not {key.partition("[")[0] for key in figures} & DIVERGENCES


def test_a_server_that_is_another_one_in_the_middle_is_measured_no_further(run: Run, served: Served) -> None:
    generate = served.generate
    asked = 0

    def restarted(request: object) -> object:
        nonlocal asked
        asked += 1
        served.started += asked > 3
        return generate(request)  # type: ignore[arg-type]

    served.generate = restarted  # type: ignore[method-assign, assignment]
    done, figures, failures = run(ProbeName.CANARIES, ProbeName.KL, gated=True)
    assert "is not what it was: its process began at" in failures[ProbeName.CANARIES]
    assert not [key for key in figures if key.startswith("canaries.")]
    assert done.report.exit_code == 4
