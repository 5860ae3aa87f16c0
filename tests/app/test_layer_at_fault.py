"""A gate's report names the layer at fault by figures of the same deployment, and by no others."""

import json
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from q36eval.app.cli.report_formats import document_of
from q36eval.app.figures.layer_at_fault import NOT_TOLD, layer_of
from q36eval.config import Paths
from q36eval.gate import Policy, decide
from q36eval.gate.fault_layer import Arithmetic, fault_of
from q36eval.gate.policy_file import read_policy
from q36eval.history import History, RunRecord
from q36eval.kl.attribution import sample
from q36eval.kl.corpus import CorpusDocument
from q36eval.kl.serving_error import serving_error
from q36eval.records import Counts, DeploymentIdentity, Interval, Measurement
from q36eval.reports import to_json
from q36eval.reports.html_report import to_html
from q36eval.reports.junit_report import to_junit
from q36eval.reports.markdown_report import to_markdown
from q36eval.run.served_lane import alone
from q36eval.run.serving_error import Told, record
from q36eval.served.comparison import counted_faults
from tests.kl.comparing import Words
from tests.q36eval.gate.evidence import small_policy
from tests.q36eval.run.runner import IDENTITY

REPOSITORY = Path(__file__).parents[2]
DOCUMENTS = 24


SMALL = small_policy()
CHOSEN = sample(
    [CorpusDocument(str(n), "own", f"text {n} of some words " * 4) for n in range(DOCUMENTS)], Words(), 3, 100_000
)


def identity(checkpoint: str, engine: str = "vllm") -> DeploymentIdentity:
    return IDENTITY.model_copy(update={"checkpoint_sha256": checkpoint, "engine": engine})


def sums(nats: float) -> list[float]:
    return [nats * (1 + n % 3) for n in range(DOCUMENTS)]


def lines(history: History, run: RunRecord) -> tuple[str, ...]:
    return layer_of(history, run).lines


def told(checkpoint: float, engine: float, served: DeploymentIdentity, arithmetic: Arithmetic = "plain") -> Told:
    error = serving_error(
        served.engine,
        CHOSEN,
        checkpoint=sums(checkpoint),
        serving=sums(engine),
        whole=sums(checkpoint + engine),
        floor=sums(1e-6),
        arithmetic=arithmetic,
    )
    return Told(error, served, identity("reference", "in-process"))


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(REPOSITORY, tmp_path)


@pytest.fixture
def history(paths: Paths) -> History:
    return History.open(paths.history)


def gated(
    history: History, served: DeploymentIdentity, policy: Policy = SMALL, found: Sequence[Measurement] = ()
) -> RunRecord:
    """A gate run that measured that: nothing, hence no PASS."""
    reference = identity("reference", "in-process")
    known = {"identity": served, "reference_identity": reference, "policy": policy}
    run = history.start_run(family="sandbox", branch="main", **known)
    history.finish_run(run.id, decide(policy, found))
    return history.get_run(run.id)


@pytest.mark.parametrize(("checkpoint", "engine", "at_fault"), [(0.1, 0.001, "checkpoint"), (0.001, 0.1, "engine")])
def test_the_layer_at_fault_is_named_in_every_report(
    checkpoint: float, engine: float, at_fault: str, history: History, paths: Paths
) -> None:
    """And for programs its figures and their run."""
    run_id = record(told(checkpoint, engine, identity("branch")), "sandbox", "main", "x", history, paths)
    run = gated(history, identity("branch"))
    document = document_of(run, history)
    for text in (to_markdown(document), to_html(document)):
        assert f"The {at_fault} is at fault" in text
        assert run_id in text.replace("\\", "")
    layer = json.loads(to_json(document))["layer"]
    found = (layer["at_fault"], layer["engine"], layer["run"], layer["arithmetic"])
    assert found == (at_fault, "vllm", run_id, "plain")
    assert set(layer["kl"]) == {"checkpoint", "serving", "whole", "floor"}
    serving = layer["kl"]["serving"]
    assert serving["interval"]["lower"] < serving["value"] < serving["interval"]["upper"]
    schema = json.loads((REPOSITORY / "docs" / "schemas" / "report.schema.json").read_text())
    Draft202012Validator(schema).validate(json.loads(to_json(document)))
    properties = {each.get("name"): each.get("value") for each in ET.fromstring(to_junit(document)).iter("property")}
    assert (properties["layer_at_fault"], properties["engine"]) == (at_fault, "vllm")


def test_what_is_not_told_apart_is_said_of_an_engine_and_of_none_in_this_process(history: History) -> None:
    document = document_of(gated(history, identity("branch")), history)
    assert json.loads(to_json(document))["layer"]["at_fault"] is None
    assert 'name="layer_at_fault" value="not told apart"' in to_junit(document)
    in_process = document_of(gated(history, identity("branch", "in-process")), history)
    assert json.loads(to_json(in_process))["layer"] is None
    assert "layer_at_fault" not in to_junit(in_process)


def test_what_only_a_server_shows_is_the_engines_fault(history: History) -> None:
    policy = alone(read_policy(REPOSITORY / "data" / "policies" / "served.yaml"), against=False)
    criterion = next(each for each in policy.criteria if each.id == "served-prompts")
    policy = policy.model_copy(update={"criteria": (criterion,)})
    faults = counted_faults("prompt_differences", "all", ["one"], Counts(total=64, scored=64, errored=0))
    served = identity("branch", "openai")
    layer = layer_of(history, gated(history, served, policy, [faults]))
    assert (layer.at_fault, layer.run) == ("engine", None)
    assert layer_of(history, gated(history, served, policy)) is None


@pytest.mark.parametrize(
    "other", [identity("another"), identity("branch", "openai")], ids=["another checkpoint", "another engine"]
)
def test_figures_of_another_deployment_say_nothing(other: DeploymentIdentity, history: History, paths: Paths) -> None:
    record(told(0.1, 0.001, other), "sandbox", "main", "x", history, paths)
    (only,) = lines(history, gated(history, identity("branch")))
    assert only == NOT_TOLD


def test_of_a_gate_in_this_process_no_engine_is_suspected_unless_it_was_measured(
    history: History, paths: Paths
) -> None:
    run = gated(history, identity("branch", "in-process"))
    assert layer_of(history, run) is None
    record(told(0.001, 0.1, identity("branch"), "weight-only"), "sandbox", "main", "x", history, paths)
    told_of = lines(history, run)
    assert told_of[0].startswith("The engine is at fault: vllm")
    assert "weight-only" in told_of[2]


def test_the_whole_no_larger_than_the_floor_blames_nobody() -> None:
    def interval(lower: float, upper: float) -> Interval:
        return Interval(lower=lower, upper=upper, level=0.95, method="x")

    engine = interval(0.1, 0.2)
    assert fault_of(interval(0, 0.1), interval(0, 0.1), engine) == "none"
    assert fault_of(interval(0, 0.2), interval(0, 0.1), engine) == "engine"
    assert fault_of(interval(0, 0.2), None, interval(-0.2, -0.1)) == "checkpoint"
    assert fault_of(interval(0, 0.2), None, interval(-0.1, 0.1)) == "alike"
