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

from q36eval.checkpoints import checkpoint_sha256
from q36eval.engines import Engine, EngineOptions, EngineSettings, ScoreRequest, open_engine
from q36eval.engines.base import Scored
from q36eval.engines.head import Head
from q36eval.engines.in_process import InProcessEngine
from q36eval.engines.opening import KINDS, Kind
from q36eval.errors import EngineError
from q36eval.history import History
from q36eval.kl.attribution import LEAST_DOCUMENTS
from q36eval.kl.corpus import CorpusDocument
from q36eval.probes import Progress
from q36eval.run import serving_error
from q36eval.run.serving_error import Plan, tell_apart
from tests.branches import folder_of
from tests.commands import q36eval
from tests.raising import raises

pytestmark = pytest.mark.long

SANDBOX = Path(__file__).parents[3] / "data" / "sandbox"


class Noisy(InProcessEngine):
    """The in-process engine, whose final states are moved by noise of that size, the same for the same text."""

    noise = 0.0

    def score(self, requests: Sequence[ScoreRequest], known: Collection[str] = ()) -> Iterator[Scored]:
        for scored in super().score(requests, known):
            assert scored.hidden_states is not None
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
        assert isinstance(settings, EngineSettings)
        return super().load(replace(settings, emulate_activations=False))


class Broken(Noisy):
    noise = float("nan")


def register(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make these engines known by their names."""
    for kind in (Quiet, Loud, Harsh, Unquantizing, Broken):
        engine = Kind(f"{__name__}:{kind.__name__}", reference="in-process")
        monkeypatch.setitem(KINDS, kind.__name__.lower(), engine)


@pytest.fixture(autouse=True)
def engines(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch)


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
            assert scored.hidden_states is not None
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


def test_a_faithful_engine_of_a_quantized_branch_adds_nothing() -> None:
    error = tell_apart(plan(folder_of("main"), "quiet"), Progress()).error
    assert error.serving.kl == 0.0
    assert error.checkpoint.kl == error.whole.kl > 0
    assert error.floor.kl == 0.0
    assert error.at_fault == "checkpoint"
    assert error.arithmetic == "emulated"
    assert error.documents == 24 >= LEAST_DOCUMENTS


def test_a_noisy_engine_of_the_reference_is_all_there_is() -> None:
    error = tell_apart(plan(SANDBOX / "bf16", "loud"), Progress()).error
    assert error.checkpoint.kl == 0.0
    assert error.serving.kl == error.whole.kl > 0
    assert error.arithmetic == "plain"
    assert error.floor is not None
    assert error.at_fault == "none", "the engine does the same to the reference: it is the floor"


def test_an_engine_that_serves_only_the_branch_wrongly_is_at_fault() -> None:
    error = tell_apart(plan(folder_of("main"), "harsh"), Progress()).error
    assert error.serving.kl > error.checkpoint.kl > 0
    assert error.floor.kl == 0.0
    assert error.excess == pytest.approx(error.serving.kl - error.checkpoint.kl)
    assert error.at_fault == "engine"


def test_an_engine_that_leaves_inputs_as_they_are_is_held_to_the_branch_decoded_so() -> None:
    error = tell_apart(plan(folder_of("main"), "unquantizing"), Progress()).error
    assert error.arithmetic == "weight-only"
    assert error.serving.kl == 0.0
    assert error.checkpoint.kl == error.whole.kl > 0
    said = tell_apart(plan(folder_of("main"), "unquantizing", weights_only=True), Progress()).error
    assert said.arithmetic == "weight-only"
    assert said.checkpoint.kl == error.checkpoint.kl


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


def test_the_whole_is_the_divergence_of_both_deployments_logits() -> None:
    """Against a computation that knows nothing of sides and heads."""
    chosen = plan(folder_of("main"), "loud")
    error = tell_apart(chosen, Progress()).error
    reference = open_engine(SANDBOX / "bf16")
    served = open_engine(EngineSettings(folder_of("main"), kind="loud"))
    kl, tokens = divergence_of(reference, served, chosen.documents)
    assert error.tokens == tokens
    assert error.whole.kl == pytest.approx(kl, rel=0.02)  # batches of other sizes round otherwise


def test_an_engine_without_numbers_blames_no_layer() -> None:
    with raises(EngineError, "values-not-finite"):
        tell_apart(plan(SANDBOX / "bf16", "broken"), Progress())


def test_the_command_prints_every_layer_and_keeps_them(tmp_path: Path) -> None:
    command = ["attribute", "--branch", "fp8-head", "--engine", "quiet", "--budget", "60000"]
    shown = q36eval(*command, state=tmp_path)
    assert shown.returncode == 0, shown.stderr
    for words in ("checkpoint: reference", "engine: the branch", "both:", "floor:", "The checkpoint causes more"):
        assert words in shown.stdout
    body = json.loads(q36eval(*command, "--json", state=tmp_path).stdout)
    assert (body["at_fault"], body["serving"]["kl"]) == ("checkpoint", 0.0)
    kept = {each.key: each.value for each in History.open(tmp_path / "history.sqlite").measurements(body["run"])}
    assert kept["kl.attributed_kl[quiet/whole]"] == pytest.approx(body["whole"]["kl"])
    assert len(kept) == 5
