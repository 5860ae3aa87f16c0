"""An engine that is a file and a line in the registry: opened, refused, and measured by every probe of a real run."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from q36eval.app.targets import load_family
from q36eval.config import Paths
from q36eval.engines import (
    IN_PROCESS,
    EngineOptions,
    EngineSettings,
    ScoreRequest,
    as_reference,
    identity_of,
    open_engine,
    repeats_itself,
)
from q36eval.engines.opening import KINDS, Kind
from q36eval.engines.parts import parts_of
from q36eval.errors import EngineError, UsageError
from q36eval.gate.policy_file import read_policy
from q36eval.history import History, RunRecord
from q36eval.probes import Progress
from q36eval.records import Measurement, ProbeName, Verdict
from q36eval.run.measure import measure
from q36eval.run.request import CanaryChoice, Request, Target
from tests.evals.small_suite import write_small_suite
from tests.q36eval.arithmetic_engine import KIND, REGISTERED, write_checkpoint
from tests.raising import raises

REPOSITORY = Path(__file__).parents[2]
SANDBOX = REPOSITORY / "data" / "sandbox" / "bf16"
TILT = 1.0
COUNTS = {f"mmlu{kind}/{name}.jsonl": 5 for kind in ("", "_dev") for name in ("geology", "law")}
COUNTS |= {f"short_answers{kind}/law.jsonl": 4 for kind in ("", "_dev")} | {"perplexity/czech.jsonl": 2}
OTHERS = {
    "device": "cuda:0",
    "emulate_activations": False,
    "kv_cache_dtype": "auto",
    "kv_scales": "ignored",
    "recurrent_state_dtype": "bfloat16",
    "conv_state_dtype": "float16",
    "as_served": "vllm",
    "placement": "packed",
    "batch_rows": 4,
    "engine_python": "/usr/bin/python3",
    "engine_arguments": ("seed=1",),
    "base_url": "http://127.0.0.1:1/v1",
    "served_model": "other",
    "workers": 2,
    "ray": "auto",
}
"""A value of every option that is not its default."""

DOCUMENTS = [" ".join(f"Obchod {n + m}: cena {m * (n + 1)} Kč." for m in range(6)) for n in range(12)]
POLICY = """
name: test
criteria:
  - {id: kl, probe: kl, metric: kl_divergence,
     margin: {kind: max_value, value: 0.02, source: x}, lanes: [structured, freeform], min_clusters: 8}
"""
CORPUS = """
name: few
json_lines: [{path: few.jsonl}]
on_policy: {per_canary: 1, max_new_tokens: 6, chat: false}
"""


Runs = dict[str, tuple[RunRecord, History]]


class Silent(Progress):
    def stage(self, title: str, total: int) -> None: ...

    def advance(self, count: int = 1) -> None: ...


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(KINDS, KIND, REGISTERED)
        yield


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("checkpoints")
    tilts = {"reference": 0.0, "copy": 0.0, "damaged": TILT}
    return {name: write_checkpoint(folder / name, SANDBOX, tilt) for name, tilt in tilts.items()}


@pytest.fixture(scope="module")
def runs(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Gates of a copy of the reference and of a damaged branch: all probes that need an engine, one capture."""
    state = tmp_path_factory.mktemp("state")
    lines = [json.dumps({"id": str(n), "slice": "own", "text": text}) for n, text in enumerate(DOCUMENTS)]
    (state / "few.jsonl").write_text("\n".join(lines))
    (state / "corpus.yaml").write_text(CORPUS)
    (state / "policy.yaml").write_text(POLICY)
    paths = Paths(REPOSITORY, state)
    history = History.open(paths.history)

    suite = write_small_suite(state / "suite", COUNTS)

    def gated(branch: str) -> RunRecord:
        request = Request(
            family=load_family(None, paths),
            branch=Target(branch, checkpoints[branch]),
            reference=Target("reference", checkpoints["reference"]),
            suite=str(suite),
            policy=read_policy(state / "policy.yaml"),
            probes=(ProbeName.CANARIES, ProbeName.KL, ProbeName.EVALS),
            engine=EngineOptions(kind=KIND),
            corpus=state / "corpus.yaml",
            canaries=CanaryChoice(only=("json-flat", "tool-call"), draws=4),
            exhaustive=True,
        )
        return measure(request, paths, history, Silent())

    return {branch: (gated(branch), history) for branch in ("copy", "damaged")}


def measured(of: tuple[RunRecord, History]) -> dict[str, Measurement]:
    run, history = of
    assert {failure.probe for failure in history.failures(run.id)} == {ProbeName.WEIGHTS}  # was not part of the run
    return {measurement.key: measurement for measurement in history.measurements(run.id)}


@pytest.mark.long
def test_every_probe_measures_an_engine_that_is_only_registered(
    runs: Runs,
) -> None:
    for run, history in runs.values():
        assert run.identity is not None
        assert run.reference_identity is not None
        assert run.identity.engine == run.reference_identity.engine == KIND
        outcomes = history.items(run.id)
        assert {outcome.probe for outcome in outcomes} == {ProbeName.CANARIES, ProbeName.KL, ProbeName.EVALS}
        assert not [outcome for outcome in outcomes if outcome.branch.error or outcome.reference.error]


@pytest.mark.long
def test_a_copy_passes_and_nothing_moves(runs: Runs) -> None:
    run, history = runs["copy"]
    assert run.report is not None
    assert run.report.verdict is Verdict.PASS
    assert measured(runs["copy"])["kl.kl_divergence[all]"].value == 0.0
    answered = [outcome for outcome in history.items(run.id) if outcome.probe is not ProbeName.KL]
    for outcome in answered:
        assert (outcome.branch.score, outcome.branch.text) == (outcome.reference.score, outcome.reference.text)
    assert {outcome.probe for outcome in answered} == {ProbeName.CANARIES, ProbeName.EVALS}


@pytest.mark.long
def test_a_damaged_branch_fails_by_the_divergence_its_arithmetic_gives(
    runs: Runs, checkpoints: dict[str, Path]
) -> None:
    """KL(reference || branch) from both deployments' logits on the scored tokens, without any code of the probe."""
    run, _ = runs["damaged"]
    assert run.report is not None
    assert run.report.verdict is Verdict.FAIL
    engines = [open_engine(EngineSettings(checkpoints[name], kind=KIND)) for name in ("reference", "damaged")]
    total, tokens = 0.0, 0
    for text in DOCUMENTS:
        ids = tuple(engines[0].tokenizer.encode(text, add_special_tokens=False))
        states = [next(engine.score([ScoreRequest("x", ids)])).hidden_states for engine in engines]
        p, q = (e.logits(s).double().log_softmax(-1) for e, s in zip(engines, states, strict=True) if s is not None)
        total += float((p.exp() * (p - q)).sum())
        tokens += len(ids) - 1
    assert measured(runs["damaged"])["kl.kl_divergence[own]"].value == pytest.approx(total / tokens, rel=1e-4)


def test_an_option_that_an_engine_does_not_have_is_refused_by_name(checkpoints: dict[str, Path]) -> None:
    options = {name: option.written for name, option in EngineOptions.described().items() if name != "kind"}
    assert options.keys() == OTHERS.keys()
    for name, flag in options.items():
        settings = EngineSettings(checkpoints["reference"], kind=KIND, **{name: OTHERS[name]})
        free = name == "engine_arguments"
        for opens in (open_engine, identity_of):
            code, written = ("engine-arg-unsupported", f"{flag} seed") if free else ("option-unsupported", flag)
            with raises(UsageError, code, KIND, written):
                opens(settings)


@pytest.mark.parametrize("argument", ["max_num_seqs", "=3"])
def test_an_argument_that_is_not_a_name_and_a_value_is_refused(argument: str) -> None:
    with raises(UsageError, "engine-arg-malformed", argument):
        EngineOptions.read({}, (argument,))


def test_an_unknown_kind_is_refused_with_those_that_are_known() -> None:
    with raises(UsageError, "engine-unknown", "'abacus'", KIND):
        open_engine(EngineSettings(SANDBOX, kind="abacus"))


def test_what_an_engine_does_not_offer_has_working_defaults(checkpoints: dict[str, Path]) -> None:
    engine = open_engine(EngineSettings(checkpoints["reference"], kind=KIND))
    assert (engine.deterministic, engine.ignores_activation_quantization, engine.perturbations()) == (False, False, ())
    with raises(EngineError, "engine-cannot", KIND):
        parts_of(engine)


def test_the_reference_is_opened_by_the_same_engine_batched_as_that_likes() -> None:
    quantized = EngineOptions(
        kv_cache_dtype="fp8_e4m3",
        kv_scales="ignored",
        recurrent_state_dtype="float16",
        conv_state_dtype="float16",
        as_served="vllm",
        batch_rows=3,
    )
    chosen = replace(quantized, device="cuda:1", emulate_activations=False)
    assert as_reference(chosen) == EngineOptions(device="cuda:1", emulate_activations=False, kv_cache_dtype="auto")
    assert as_reference(EngineOptions(kind=KIND)) == EngineOptions(kind=KIND)


def test_an_engine_may_leave_its_reference_to_another_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "abroad", replace(KINDS[IN_PROCESS], reference=KIND))
    chosen = EngineOptions(kind="abroad", device="cuda:1", kv_cache_dtype="fp8_e4m3", batch_rows=3)
    assert as_reference(chosen) == EngineOptions(kind=KIND)
    vllm = EngineOptions(kind="vllm", engine_python="python", engine_arguments=("a=1",), kv_cache_dtype="fp8_e4m3")
    served = EngineOptions(kind="openai", base_url="http://x/v1", served_model="m", batch_rows=3)
    for other in (vllm, served):
        assert as_reference(other) == EngineOptions(kv_cache_dtype="auto")


def test_only_a_registered_engine_repeats_itself_and_where_it_says_so(
    checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_cpu = identity_of(SANDBOX)
    assert repeats_itself(on_cpu)
    assert not repeats_itself(on_cpu.model_copy(update={"settings": on_cpu.settings | {"device": "NVIDIA H200"}}))
    other = on_cpu.model_copy(update={"engine": KIND})
    assert not repeats_itself(other)
    monkeypatch.setitem(KINDS, KIND, Kind(REGISTERED.engine, frozenset({"cpu"})))
    assert repeats_itself(other)
    assert not repeats_itself(on_cpu.model_copy(update={"engine": "abacus"}))


def test_the_door_opens_without_torch() -> None:
    code = "import sys, q36eval.engines; print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
