"""An engine that is a file and a line in the registry: opened, refused, and measured by every probe of a real run."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from q36eval.engines import (
    IN_PROCESS,
    EngineOptions,
    EngineSettings,
    as_reference,
    identity_of,
    open_engine,
    repeats_itself,
)
from q36eval.engines.comparability import is_fair, shared_words
from q36eval.engines.opening import KINDS, Kind
from q36eval.engines.parts import parts_of
from q36eval.errors import EngineError, UsageError
from q36eval.history import RunRecord
from q36eval.kl.corpus import CorpusDocument
from q36eval.records import DeploymentIdentity, Measurement, ProbeName, Verdict
from q36eval.run.request import CanaryChoice
from tests.q36eval.arithmetic_engine import KIND, REGISTERED, write_checkpoint
from tests.q36eval.run.test_serving_error import divergence_of
from tests.q36eval.small_runs import SmallRuns
from tests.q36eval.test_references import IDENTITY
from tests.raising import raises

REPOSITORY = Path(__file__).parents[2]
SANDBOX = REPOSITORY / "data" / "sandbox" / "bf16"
TILT = 1.0
OTHERS = {
    "device": "cuda:0",
    "emulate_activations": False,
    "kv_cache_dtype": "auto",
    "kv_scales": "ignored",
    "recurrent_state_dtype": "bfloat16",
    "conv_state_dtype": "float16",
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
PROBES = (ProbeName.CANARIES, ProbeName.KL, ProbeName.EVALS)
CANARIES = CanaryChoice(only=("json-flat", "tool-call"), draws=4)
ON_POLICY = "{per_canary: 1, max_new_tokens: 6, chat: false}"

Runs = dict[str, tuple[RunRecord, SmallRuns]]


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
    small = SmallRuns(tmp_path_factory.mktemp("state"), DOCUMENTS, CANARIES, ON_POLICY)
    return {
        branch: (small.run(checkpoints[branch], checkpoints["reference"], EngineOptions(kind=KIND), *PROBES), small)
        for branch in ("copy", "damaged")
    }


def measured(of: tuple[RunRecord, SmallRuns]) -> dict[str, Measurement]:
    run, small = of
    assert set(small.failures(run)) == {ProbeName.WEIGHTS}  # was not part of the run
    return small.figures(run)


@pytest.mark.long
def test_every_probe_measures_an_engine_that_is_only_registered_and_nothing_of_a_copy_moves(runs: Runs) -> None:
    for run, small in runs.values():
        assert run.identity.engine == run.reference_identity.engine == KIND
        outcomes = small.history.items(run.id)
        assert {outcome.probe for outcome in outcomes} == set(PROBES)
        assert not [outcome for outcome in outcomes if outcome.branch.error or outcome.reference.error]
    run, small = runs["copy"]
    assert run.verdict is Verdict.PASS
    assert measured(runs["copy"])["kl.kl_divergence[all]"].value == 0.0
    for outcome in small.history.items(run.id):
        if outcome.probe is not ProbeName.KL:
            assert (outcome.branch.score, outcome.branch.text) == (outcome.reference.score, outcome.reference.text)


@pytest.mark.long
def test_a_damaged_branch_fails_by_the_divergence_its_arithmetic_gives(
    runs: Runs, checkpoints: dict[str, Path]
) -> None:
    """KL(reference || branch) from both deployments' logits on the scored tokens, without any code of the probe."""
    assert runs["damaged"][0].verdict is Verdict.FAIL
    engines = [open_engine(EngineSettings(checkpoints[name], kind=KIND)) for name in ("reference", "damaged")]
    kl, _ = divergence_of(*engines, [CorpusDocument(text, "own", text) for text in DOCUMENTS])
    assert measured(runs["damaged"])["kl.kl_divergence[own]"].value == pytest.approx(kl, rel=1e-4)


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


def test_what_an_engine_does_not_offer_has_working_defaults(checkpoints: dict[str, Path]) -> None:
    engine = open_engine(EngineSettings(checkpoints["reference"], kind=KIND))
    assert (engine.deterministic, engine.ignores_activation_quantization, engine.perturbations()) == (False, False, ())
    with raises(EngineError, "engine-cannot", KIND):
        parts_of(engine)


def test_the_reference_is_opened_by_the_same_engine_batched_as_that_likes_or_by_the_kind_it_is_left_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changed = {name: OTHERS[name] for name in ("kv_scales", "recurrent_state_dtype", "conv_state_dtype", "batch_rows")}
    chosen = EngineOptions(device="cuda:1", emulate_activations=False, kv_cache_dtype="fp8_e4m3", **changed)
    assert as_reference(chosen) == EngineOptions(device="cuda:1", emulate_activations=False, kv_cache_dtype="auto")
    assert as_reference(EngineOptions(kind=KIND)) == EngineOptions(kind=KIND)
    monkeypatch.setitem(KINDS, "abroad", replace(KINDS[IN_PROCESS], reference=KIND))
    abroad = EngineOptions(kind="abroad", device="cuda:1", kv_cache_dtype="fp8_e4m3", batch_rows=3)
    assert as_reference(abroad) == EngineOptions(kind=KIND)
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


# -- which engines may answer for the two sides of a comparison


def deployment(engine: str, version: str = "1", kv_cache_dtype: str = "auto", **settings: str) -> DeploymentIdentity:
    changed = {"engine": engine, "engine_version": version, "kv_cache_dtype": kv_cache_dtype, "settings": settings}
    return IDENTITY.model_copy(update=changed)


@pytest.mark.parametrize(
    ("branch", "reference", "fair"),
    [
        (deployment("in-process"), deployment("in-process", "2"), True),
        (deployment("vllm"), deployment("in-process"), True),
        (deployment("openai"), deployment("in-process"), True),
        (deployment("vllm"), deployment("vllm"), True),
        (deployment("vllm", arguments="{}", kv_cache_dtype="fp8_e4m3"), deployment("vllm"), True),
        (deployment("vllm", "2"), deployment("vllm", "1"), False),
        (deployment("in-process"), deployment("vllm"), False),
        (deployment("openai"), deployment("vllm"), False),
    ],
)
def test_only_a_reference_in_process_or_of_the_branchs_own_engine_is_fair(
    branch: DeploymentIdentity, reference: DeploymentIdentity, fair: bool
) -> None:
    assert is_fair(branch, reference) is fair
    assert (shared_words(branch, reference) is None) is (reference.engine == IN_PROCESS)


def test_what_differs_between_two_sides_of_one_engine_is_named() -> None:
    plain, other = deployment("vllm", device="cpu"), deployment("vllm", "1", "fp8_e4m3", device="cpu", arguments="{}")
    assert "arguments" not in str(shared_words(plain, plain))
    assert str(shared_words(other, plain)).endswith("arguments, kv_cache_dtype")
