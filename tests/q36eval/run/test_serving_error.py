"""The checkpoint's error and the engine's are told apart where each is known.

The engine is the in-process one, but for noise of a stated size; the branch is the reference or a quantized one.
"""

import json
import weakref
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from q36eval.app.targets import load_family
from q36eval.checkpoints import checkpoint_sha256
from q36eval.config import Paths
from q36eval.engines import Engine, EngineOptions, EngineSettings, ScoreRequest, open_engine
from q36eval.engines.base import Scored
from q36eval.engines.head import Head
from q36eval.engines.in_process import InProcessEngine
from q36eval.engines.opening import KINDS, Kind
from q36eval.errors import CorruptCheckpointError, EngineError, Q36Error
from q36eval.gate import CriterionResult, CriterionVerdict
from q36eval.gate.policy_file import read_policy
from q36eval.history import History, RunRecord
from q36eval.kl.attribution import LEAST_DOCUMENTS
from q36eval.kl.corpus import CorpusDocument
from q36eval.probes import Progress
from q36eval.records import ProbeName, Verdict
from q36eval.run import decoded_branch, serving_error
from q36eval.run.branch import Running
from q36eval.run.decoded_branch import DecodedHere, beginnings
from q36eval.run.request import Request, Target, asks_endpoint, probes_for
from q36eval.run.served_lane import alone
from q36eval.run.serving_error import Plan, record, tell_apart
from tests.app.sandbox_gates import POLICY as WEIGHTS
from tests.app.sandbox_gates import REPOSITORY, SANDBOX, Gates
from tests.branches import folder_of
from tests.commands import q36eval
from tests.q36eval.openai.server import Served, opened, serving
from tests.raising import failing, raises


class Noisy(InProcessEngine):
    """The in-process engine, whose final states are moved by noise of that size, the same for the same text."""

    noise = 0.0

    def score(self, requests: Sequence[ScoreRequest], known: Collection[str] = ()) -> Iterator[Scored]:
        for scored in super().score(requests, known):
            rows = scored.hidden_states
            generator = torch.Generator().manual_seed(sum(scored.request.token_ids))
            moved = rows + self.noise * torch.randn(rows.shape, generator=generator).to(rows.dtype)
            yield replace(scored, hidden_states=moved if self.noise else rows)


class Quiet(Noisy):
    """No noise at all."""


class Loud(Noisy):
    noise = 0.3


class Harsh(Noisy):
    """Serves the reference as it is, and makes something else of quantized weights, as a wrong kernel does."""

    @property
    def noise(self) -> float:  # type: ignore[override]
        return 0.0 if self.identity.checkpoint_sha256 == checkpoint_sha256(SANDBOX / "bf16") else 1.0


class Unquantizing(Noisy):
    """Multiplies decoded weights with inputs as they are, whatever the checkpoint says, as Hopper's kernels do."""

    @classmethod
    def load(cls, settings: EngineSettings | Path) -> "InProcessEngine":
        return super().load(replace(settings, emulate_activations=False))


class Broken(Noisy):
    noise = float("nan")


@pytest.fixture(autouse=True)
def engines_and_few_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """These engines are known by their names."""
    monkeypatch.setattr(decoded_branch, "SERVING_TEXTS", FEW)
    for kind in (Quiet, Loud, Harsh, Unquantizing, Broken):
        engine = Kind(f"{__name__}:{kind.__name__}", reference="in-process")
        monkeypatch.setitem(KINDS, kind.__name__.lower(), engine)


def divergence_of(
    p: Engine, q: Engine, documents: Sequence[CorpusDocument], most: int | None = None
) -> tuple[float, int]:
    """KL(p || q) in nats/token over at most so many tokens of each text, and the tokens, without sides and heads."""
    total, tokens = 0.0, 0
    for document in documents:
        ids = tuple(p.tokenizer.encode(document.text, add_special_tokens=False))[:most]
        rows = []
        for engine in (p, q):
            (scored,) = engine.score([ScoreRequest("x", ids, group="attribute")])
            rows.append(engine.logits(scored.hidden_states).double().log_softmax(-1))
        total, tokens = total + float((rows[0].exp() * (rows[0] - rows[1])).sum()), tokens + len(rows[0])
    return total / tokens, tokens


def documents() -> list[CorpusDocument]:
    texts = [
        f"Obchod {n} prodává {n % 7 + 2} kusy za {n * 13 % 900 + 10} Kč, sleva {n % 50} %. " * 3 for n in range(24)
    ]
    return [CorpusDocument(str(n), "own", text, str(n)) for n, text in enumerate(texts)]


def plan(branch: Path, kind: str, **options: object) -> Plan:
    return Plan(branch, SANDBOX / "bf16", documents(), 100_000, EngineOptions(kind=kind), **options)  # type: ignore[arg-type]


@pytest.mark.long
def test_a_faithful_engine_of_a_quantized_branch_adds_nothing() -> None:
    error = tell_apart(plan(folder_of("main"), "quiet"), Progress()).error
    assert error.serving.kl == 0.0
    assert error.checkpoint.kl == error.whole.kl > 0
    assert error.floor.kl == 0.0
    assert error.at_fault == "checkpoint"
    assert error.arithmetic == "emulated"
    assert error.documents == 24 >= LEAST_DOCUMENTS


@pytest.mark.long
def test_a_noisy_engine_of_the_reference_is_all_there_is() -> None:
    error = tell_apart(plan(SANDBOX / "bf16", "loud"), Progress()).error
    assert error.checkpoint.kl == 0.0
    assert error.serving.kl == error.whole.kl > 0
    assert error.arithmetic == "plain"
    assert error.floor is not None
    assert error.at_fault == "none", "the engine does the same to the reference: it is the floor"


@pytest.mark.long
def test_an_engine_that_serves_only_the_branch_wrongly_is_at_fault() -> None:
    error = tell_apart(plan(folder_of("main"), "harsh"), Progress()).error
    assert error.serving.kl > error.checkpoint.kl > 0
    assert error.floor.kl == 0.0
    assert error.excess == pytest.approx(error.serving.kl - error.checkpoint.kl)
    assert error.at_fault == "engine"


@pytest.mark.long
def test_an_engine_that_leaves_inputs_as_they_are_is_held_to_the_branch_decoded_so() -> None:
    error = tell_apart(plan(folder_of("main"), "unquantizing"), Progress()).error
    assert error.arithmetic == "weight-only"
    assert error.serving.kl == 0.0
    assert error.checkpoint.kl == error.whole.kl > 0
    said = tell_apart(plan(folder_of("main"), "unquantizing", weights_only=True), Progress()).error
    assert said.arithmetic == "weight-only"
    assert said.checkpoint.kl == error.checkpoint.kl


@pytest.mark.long
def test_each_engine_opens_when_the_models_before_are_gone_and_no_head_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """At full shape there is room for one model alone, and none for heads beside vLLM."""
    events: list[str] = []
    opened: list[weakref.ref[InProcessEngine]] = []

    def opening(settings: EngineSettings) -> InProcessEngine:
        assert all(one() is None for one in opened), "an engine before is still there"
        events.append(f"opened {settings.kind}")
        engine = open_engine(settings)
        opened.append(weakref.ref(engine))
        return engine

    class Told(Head):
        @classmethod
        def of(cls, settings: EngineSettings) -> "Head":
            events.append("head")
            return super().of(settings)

    monkeypatch.setattr(serving_error, "open_engine", opening)
    monkeypatch.setattr(serving_error, "Head", Told)
    give_back = serving_error.give_back
    monkeypatch.setattr(serving_error, "give_back", lambda device: (events.append("given back"), give_back(device)))
    tell_apart(plan(folder_of("main"), "quiet"), Progress())
    kinds = ["in-process", "in-process", "in-process", "quiet", "quiet"]
    assert events[:10] == [event for kind in kinds for event in (f"opened {kind}", "given back")]
    assert events[10:] == ["head"] * 5


@pytest.mark.long
def test_the_whole_is_the_divergence_of_both_deployments_logits() -> None:
    """Against a computation that knows nothing of sides and heads."""
    chosen = plan(folder_of("main"), "loud")
    error = tell_apart(chosen, Progress()).error
    reference = open_engine(SANDBOX / "bf16")
    served = open_engine(EngineSettings(folder_of("main"), kind="loud"))
    kl, tokens = divergence_of(reference, served, chosen.documents)
    assert error.tokens == tokens
    assert error.whole.kl == pytest.approx(kl, rel=0.02)  # batches of other sizes round otherwise


@pytest.mark.long
def test_an_engine_without_numbers_blames_no_layer() -> None:
    with raises(EngineError, "values-not-finite"):
        tell_apart(plan(SANDBOX / "bf16", "broken"), Progress())


@pytest.mark.long
def test_the_command_prints_every_layer_and_keeps_them(tmp_path: Path) -> None:
    command = ["attribute", "--branch", "fp8-head", "--engine", "quiet", "--budget", "60000"]
    assert "floor:" in q36eval(*command, state=tmp_path, code=0).stdout
    body = json.loads(q36eval(*command, "--json", state=tmp_path).stdout)
    assert (body["at_fault"], body["serving"]["kl"]) == ("checkpoint", 0.0)
    kept = {each.key: each.value for each in History.open(tmp_path / "history.sqlite").measurements(body["run"])}
    assert kept["kl.attributed_kl[quiet/whole]"] == pytest.approx(body["whole"]["kl"])
    assert len(kept) == 5


# -- in a gate what serving adds is a criterion: measured where something is served, never passed where it is not


FEW = 40
POLICY = f"""{WEIGHTS}
  - {{id: as-decoded, probe: served, metric: serving_kl,
     margin: {{kind: max_value, value: 0.0005, source: x}}, lanes: [structured, freeform]}}
"""


@pytest.fixture
def loud() -> tuple[DecodedHere, Engine]:
    """Five texts decoded here, and the engine that serves them."""
    folder = folder_of("main")
    found = DecodedHere.of(folder, EngineOptions(kind="loud"), documents()[:5])
    return found, open_engine(EngineSettings(folder, kind="loud"))


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    (tmp_path / "state").mkdir()
    return Paths(REPOSITORY, tmp_path / "state")


def gated(
    paths: Paths, engine: EngineOptions, branch: str = "bf16", text: str = POLICY, resume: str | None = None
) -> tuple[RunRecord, History]:
    gates = Gates(paths.state, text, probes=(ProbeName.WEIGHTS, ProbeName.SERVED))
    return gates(folder_of(branch), engine=engine, resume=resume), gates.history


def criterion(run: RunRecord) -> CriterionResult:
    return next(each for each in run.report.criteria if each.id == "as-decoded")


@pytest.mark.long
def test_what_an_engine_adds_is_the_divergence_of_both_ones_logits() -> None:
    """Against a computation that knows nothing of sides and heads, on the first tokens of every text."""
    folder = folder_of("main")
    found = DecodedHere.of(folder, EngineOptions(kind="loud"), documents())
    measured = found.served_by(open_engine(EngineSettings(folder, kind="loud")))
    here, loud = open_engine(folder), open_engine(EngineSettings(folder, kind="loud"))
    kl, tokens = divergence_of(here, loud, documents(), decoded_branch.TOKENS)
    assert measured.counts.scored == tokens
    assert measured.value == pytest.approx(kl, rel=0.02)  # batches of other sizes round otherwise
    assert measured.effect_interval.lower < measured.value < measured.effect_interval.upper


def test_no_answer_is_held_when_the_next_is_asked_for(
    loud: tuple[DecodedHere, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server's are as wide as the vocabulary: 10 GB of the texts of a gate, at 248,320 tokens."""
    found, engine = loud
    score, answers = engine.score, []

    def one_by_one(requests: Sequence[ScoreRequest], known: Collection[str] = ()) -> Iterator[Scored]:
        for request in requests:
            assert not [answer for answer in answers if answer() is not None]
            (scored,) = score([request])
            scored = replace(scored, hidden_states=scored.hidden_states.clone())
            answers.append(weakref.ref(scored.hidden_states))
            yield scored
            del scored

    monkeypatch.setattr(engine, "score", one_by_one)
    found.served_by(engine)
    assert len(answers) == 5


def test_a_text_that_is_not_answered_is_no_figure_of_the_others(
    loud: tuple[DecodedHere, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, engine = loud
    score = engine.score
    monkeypatch.setattr(engine, "score", lambda requests, known=(): score(requests[:-1]))
    with raises(EngineError, "scoring-failed"):
        found.served_by(engine)


def test_one_text_of_each_source_and_of_each_its_beginning() -> None:
    tokenizer = open_engine(SANDBOX / "bf16").tokenizer
    many = [CorpusDocument(str(n), "own", f"Text {n}. " * 200, str(n // 4)) for n in range(100)]
    chosen = beginnings(many, tokenizer)
    assert len({document.cluster for document in chosen.documents}) == len(chosen.documents) == 25
    assert {len(request.token_ids) for request in chosen.requests} == {decoded_branch.TOKENS}


@pytest.mark.long
def test_an_engine_that_leaves_inputs_as_they_are_adds_nothing_to_the_branch_decoded_so(paths: Paths) -> None:
    run, _ = gated(paths, EngineOptions(kind="unquantizing"), "main")
    assert criterion(run).figure == 0.0
    assert criterion(run).verdict is CriterionVerdict.PASS


@pytest.mark.long
@pytest.mark.parametrize(("kind", "verdict"), [("quiet", CriterionVerdict.PASS), ("harsh", CriterionVerdict.FAIL)])
def test_what_serves_other_weights_than_the_checkpoints_fails(
    paths: Paths, kind: str, verdict: CriterionVerdict
) -> None:
    run, history = gated(paths, EngineOptions(kind=kind), "main")
    judged = criterion(run)
    assert judged.verdict is verdict, judged.reason
    assert judged.figure_interval is not None
    assert judged.counts.scored > 0
    assert run.verdict is (Verdict.FAIL if verdict is CriterionVerdict.FAIL else Verdict.PASS)
    assert not [each for each in history.failures(run.id) if each.probe is ProbeName.SERVED]
    assert run.timings["serving_kl"] > 0


@pytest.mark.parametrize(
    ("engine", "reason", "exit_code"),
    [(EngineOptions(), "serves nothing", 3), (EngineOptions(kind="broken"), "not finite", 4)],
)
def test_where_nothing_is_served_or_no_numbers_are_given_it_is_not_measured(
    paths: Paths, engine: EngineOptions, reason: str, exit_code: int
) -> None:
    run, _ = gated(paths, engine)
    assert criterion(run).verdict is CriterionVerdict.NOT_MEASURED
    assert reason in criterion(run).reason
    assert run.verdict is Verdict.INCONCLUSIVE
    assert run.report.exit_code == exit_code


@pytest.mark.long
@pytest.mark.parametrize(
    "error",
    [EngineError("memory-insufficient", "no memory"), CorruptCheckpointError("file-truncated", "it is damaged")],
)
def test_a_figure_of_before_does_not_stand_for_what_cannot_be_measured_any_more(
    paths: Paths, monkeypatch: pytest.MonkeyPatch, error: Q36Error
) -> None:
    with monkeypatch.context() as changed:
        changed.setattr(Running, "_evaluate", failing(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            gated(paths, EngineOptions(kind="quiet"))
    history = History.open(paths.history)
    (begun,) = history.list_runs()
    assert any(each.metric == "serving_kl" for each in history.measurements(begun.id))
    monkeypatch.setattr(DecodedHere, "of", failing(error))
    run, _ = gated(paths, EngineOptions(kind="quiet"), resume=begun.id)
    assert criterion(run).verdict is CriterionVerdict.NOT_MEASURED
    assert run.report.exit_code == 4


@pytest.mark.long
def test_a_margin_below_what_the_engine_makes_of_the_reference_proves_nothing(paths: Paths) -> None:
    """The floor is of an attribution that was kept; a fault that is in both is not excused by it either."""
    history = History.open(paths.history)
    kept = record(tell_apart(plan(SANDBOX / "bf16", "loud"), Progress()), "sandbox", "bf16", "0" * 64, history, paths)
    run, _ = gated(paths, EngineOptions(kind="loud"))
    judged = criterion(run)
    assert kept in judged.noise_floor.source
    assert judged.noise_floor.loss > judged.margin.value
    assert judged.verdict is CriterionVerdict.INCONCLUSIVE
    assert "below the noise floor" in judged.reason
    wider = POLICY.replace("0.0005", str(2 * judged.noise_floor.loss))
    assert criterion(gated(paths, EngineOptions(kind="loud"), text=wider)[0]).verdict is CriterionVerdict.PASS


def test_a_gate_measures_it_where_a_criterion_asks_and_asks_no_endpoint_for_it_alone(paths: Paths) -> None:
    own, served = Gates(paths.state, POLICY).policy, read_policy(REPOSITORY / "data" / "policies" / "served.yaml")
    assert ProbeName.SERVED in probes_for(own)
    base = Request(load_family("sandbox", paths), Target("bf16", SANDBOX / "bf16"), None, "sandbox", own)
    assert not asks_endpoint(Request(**vars(base) | {"probes": probes_for(own)}))
    assert asks_endpoint(Request(**vars(base) | {"policy": served, "probes": probes_for(served)}))
    assert any(each.metric == "serving_kl" and each.tier == "blocking" for each in served.criteria)
    judged_alone = alone(served, against=False).criteria
    assert judged_alone
    assert not [each for each in judged_alone if each.metric == "serving_kl"], "the branch is not decoded there"
    without = POLICY.replace("metric: serving_kl", "metric: greedy_faults").replace("max_value", "max_count")
    run, history = gated(paths, EngineOptions(kind="loud"), text=without)
    assert "serving_kl" not in {each.metric for each in history.measurements(run.id)}


@pytest.mark.long
@pytest.mark.parametrize("max_logprobs", [-1, 20])
def test_an_endpoint_is_judged_by_what_it_says_of_the_whole_vocabulary(paths: Paths, max_logprobs: int) -> None:
    with serving(Served(opened(SANDBOX / "bf16"), max_logprobs=max_logprobs)) as address:
        run, _ = gated(paths, EngineOptions(kind="openai", base_url=address))
    judged = criterion(run)
    if max_logprobs == -1:
        assert judged.verdict is CriterionVerdict.PASS, judged.reason
        assert run.identity.checkpoint_sha256 == checkpoint_sha256(SANDBOX / "bf16")
    else:
        assert judged.verdict is CriterionVerdict.NOT_MEASURED
        assert "--max-logprobs -1" in judged.reason
