"""A reference that the branch's own engine answered: captured, gated against, named in reports, and what is refused.

The engine is one of plain arithmetic whose reference is the one in-process unless it is captured, as vLLM's is; the
last test captures and gates with a real vLLM, where Q36EVAL_VLLM_PYTHON names one.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from q36eval.app.targets import load_family
from q36eval.config import Paths
from q36eval.engines import IN_PROCESS, EngineOptions
from q36eval.engines.comparability import NEVER_RUN
from q36eval.engines.opening import KINDS
from q36eval.engines.vllm.environment import PYTHON_VARIABLE
from q36eval.errors import UsageError
from q36eval.probes import Progress
from q36eval.records import ProbeName, Verdict
from q36eval.references import Pack
from q36eval.reports.story import notes
from q36eval.run.measure import measure
from q36eval.run.pack import CaptureRequest, capture
from q36eval.run.preflight import answered_apart
from q36eval.run.probe_set import Scored
from q36eval.run.reference import local_reference, reference_of
from q36eval.run.request import Target
from q36eval.run.workload import planned_capture, planned_run
from tests.app.sandbox_gates import REPOSITORY, SANDBOX, Gates
from tests.commands import q36eval
from tests.profiles import LONG
from tests.q36eval.arithmetic_engine import KIND, REGISTERED, write_checkpoint
from tests.q36eval.small_runs import POLICY
from tests.q36eval.test_engine_contract import DOCUMENTS
from tests.raising import raises
from tests.small_corpus import write_corpus

SAMPLED = {"per_canary": 1, "max_new_tokens": 6, "chat": False}


@pytest.fixture(scope="module", autouse=True)
def served() -> Iterator[None]:
    """An engine whose branches are held against the reference in-process, unless a person says otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(KINDS, KIND, replace(REGISTERED, reference=IN_PROCESS))
        yield


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("state")
    write_corpus(folder, DOCUMENTS, on_policy=SAMPLED)
    for name, tilt in {"reference": 0.0, "damaged": 1.0}.items():
        write_checkpoint(folder / name, SANDBOX / "bf16", tilt)
    return folder


def capturing(state: Path) -> CaptureRequest:
    return CaptureRequest(
        Target("reference", state / "reference"),
        Scored("sandbox", 4096, state / "corpus.yaml"),
        (ProbeName.KL,),
        engine=EngineOptions(kind=KIND),
        out=state / "pack",
        family=load_family("sandbox", Paths(REPOSITORY, state)),
    )


@pytest.fixture(scope="module")
def pack(state: Path) -> Path:
    return capture(capturing(state), Paths(REPOSITORY, state), Progress(), lambda _: None).folder


def gating(state: Path, pack: Path) -> Gates:
    reference = Target("reference", state / "reference")
    asked = {"reference": reference, "corpus": state / "corpus.yaml", "reference_pack": pack}
    return Gates(state, POLICY, probes=(ProbeName.KL,), engine=EngineOptions(kind=KIND), **asked)


def test_a_pack_says_which_engine_answered_and_is_no_other_engines(state: Path, pack: Path) -> None:
    held = Pack.open(pack)
    assert held.identity.engine == KIND
    own = local_reference(state / "reference", state / "packs", EngineOptions(kind=KIND), by=KIND)
    default = local_reference(state / "reference", state / "packs", EngineOptions(kind=KIND))
    assert own.identity == held.identity
    assert default.identity.engine == IN_PROCESS
    assert own.root != default.root
    assert not default.root.exists()
    with raises(UsageError, "pack-identity", "engine"):
        capture(replace(capturing(state), engine=EngineOptions()), Paths(REPOSITORY, state), Progress(), lambda _: None)


def test_a_plan_of_a_capture_is_of_the_engine_that_answers(state: Path) -> None:
    plan = planned_capture(replace(capturing(state), out=state / "none"), Paths(REPOSITORY, state))
    assert plan.batches == {}, "this engine plans none; the one in-process would"
    assert [stage.deployment for stage in plan.stages] == ["reference"]


@pytest.mark.long
def test_a_gate_by_the_same_engine_judges_and_says_what_that_leaves_out(state: Path, pack: Path) -> None:
    passed, failed = (gating(state, pack)(state / branch) for branch in ("reference", "damaged"))
    assert (passed.verdict, failed.verdict) == (Verdict.PASS, Verdict.FAIL)
    assert failed.reference_identity.engine == KIND
    said = f"what {KIND} does wrong to the reference too does not show"
    assert said in " ".join(notes(failed.report, failed))
    untried = failed.reference_identity.model_copy(update={"engine_version": f"2 ({NEVER_RUN})"})
    told = " ".join(notes(failed.report, failed.model_copy(update={"identity": untried})))
    assert f"{KIND} (2 ({NEVER_RUN})): its start-up test alone vouches for it" in told


def test_a_gate_by_another_engine_is_refused_and_a_measurement_says_what_it_holds(state: Path, pack: Path) -> None:
    gates = gating(state, pack)
    other = replace(gates.request(state / "damaged", engine=EngineOptions()), branch=Target("other", state / "damaged"))
    with raises(UsageError, "reference-of-another-engine", f"{KIND} (1)", "in-process"):
        measure(other, gates.paths, gates.history, Progress())
    assert not gates.history.list_runs(branch="other"), "nothing was begun"
    with raises(UsageError, "reference-of-another-engine"):
        planned_run(other, gates.paths, None)
    reference = reference_of(other, gates.paths)
    assert "differ by on BF16 itself" in str(answered_apart(replace(other, policy=None), reference))
    newer = replace(reference, identity=reference.identity.model_copy(update={"engine_version": "0"}))
    with raises(UsageError, "reference-of-another-engine", f"{KIND} (0)", f"{KIND} (1)"):
        answered_apart(gates.request(state / "damaged"), newer)
    assert answered_apart(gates.request(state / "damaged"), reference) is None


@pytest.mark.long
def test_a_real_vllm_answers_for_both_sides(tmp_path: Path) -> None:
    """Captured, held against itself by a gate, and refused to the engine in-process, which `kl` holds it against."""
    if not (LONG and os.environ.get(PYTHON_VARIABLE)):
        pytest.skip("only `make test-long`, where Q36EVAL_VLLM_PYTHON names an environment with vLLM")
    state, pack = tmp_path / "state", str(tmp_path / "pack")
    (tmp_path / "policy.yaml").write_text(POLICY)
    corpus = str(write_corpus(tmp_path, DOCUMENTS, on_policy=SAMPLED))
    captured = q36eval(
        *("reference", "capture", "--engine", "vllm", "--probe", "kl", "--corpus", corpus, "--out", pack, "--json"),
        state=state,
    )
    assert captured.returncode == 0, captured.stderr
    (row,) = json.loads(captured.stdout)["captures"]
    assert row["identity"]["engine"] == "vllm"
    asked = ("--branch", "bf16", "--corpus", corpus, "--reference-pack", pack)
    gate = ("gate", *asked, "--policy", str(tmp_path / "policy.yaml"))
    q36eval(*gate, "--engine", "vllm", "--skip", "canaries", "--skip", "evals", "--json", state=state, code=0)
    report = q36eval("report", "latest", "--format", "markdown", state=state)
    assert "what vllm does wrong to the reference too does not show" in report.stdout
    refused = q36eval(*gate, state=state, code=2)
    assert "the branch is answered by in-process" in refused.stderr
    between = q36eval("kl", *asked, "--json", state=state, code=0)
    figures = json.loads(between.stdout)["measurements"]
    # of texts such as it learnt; of the others, whose perplexity is 313, a near tie of its experts moves single tokens
    own_texts = ("kl_divergence", "on_policy/canaries")
    (value,) = [each["value"] for each in figures if (each["metric"], each["slice"]) == own_texts]
    assert 0 < value < 1e-4, "two engines in BF16: neither the same bits nor another model"
