"""The project file, `init` which writes it, and a gate that is resumed without any other option."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from q36eval.app.targets import load_family
from q36eval.checkpoints import chat_template_sha256
from q36eval.config import Paths, Project
from q36eval.config.paths import HISTORY
from q36eval.errors import UsageError
from q36eval.provenance import OPTIONS
from q36eval.run.request import Request, Target
from q36eval.run.templates import declared_template, shipped_template
from tests.app.sandbox_gates import REPOSITORY, SANDBOX
from tests.commands import code_of, q36eval
from tests.raising import failing, raises

POLICY = """\
name: close
criteria:
  - {id: close, title: Close to the reference, probe: kl, metric: kl_divergence, slice: all,
     margin: {kind: max_value, value: 9.0, source: this test}, lanes: [structured, freeform], min_clusters: 8}
"""


@pytest.fixture
def project(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty repository, where we are."""
    monkeypatch.delenv(HISTORY, raising=False)
    return elsewhere


def test_it_is_found_upwards_to_the_repositorys_root(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    above = project.parent / "q36eval.yaml"
    above.write_text("family: sandbox\n")
    assert Project.here().file is None  # it lies above the repository
    (project / "q36eval.yaml").write_text("family: qwen3.6-35b-a3b\n")
    below = project / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert (Project.here().family, Project.here().file) == ("qwen3.6-35b-a3b", project / "q36eval.yaml")
    (below / ".git").write_text("gitdir: elsewhere\n")  # of a submodule, or of another work tree
    assert Project.here().file is None
    (below / ".git").unlink()
    monkeypatch.setenv("HOME", str(project / "a"))
    assert Project.here().file is None


def test_paths_count_from_the_file_and_names_stay(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {
        "family": "families/mine.yaml",
        "reference": "./bf16",
        "policy": "policy.yaml",
        "suite": "suite.yaml=frozen",
        "history": "runs.sqlite",
        "out": "reports",
    }
    (project / "q36eval.yaml").write_text(yaml.safe_dump(body))
    (project / "below").mkdir()
    monkeypatch.chdir(project / "below")
    found = Project.here()
    assert found.model_dump(include=set(body)) == {
        "family": str(project / "families" / "mine.yaml"),
        "reference": str(project / "bf16"),
        "policy": str(project / "policy.yaml"),
        "suite": f"{project / 'suite.yaml'}={project / 'frozen'}",
        "history": str(project / "runs.sqlite"),
        "out": str(project / "reports"),
    }
    assert Paths.default().history_url == str(project / "runs.sqlite")
    monkeypatch.setenv(HISTORY, "other.sqlite")
    assert Paths.default().history_url == "other.sqlite"
    names = {"family": "sandbox", "reference": "Org/Model@v1", "suite": "quick", "policy": "release"}
    names |= {"history": "sqlite:////tmp/x"}
    (project / "q36eval.yaml").write_text(yaml.safe_dump(names))
    assert Project.here().model_dump(include=set(names)) == names


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("famly: sandbox\n", "famly"),
        ("reference: a\nreference_pack: b\n", "reference_pack"),
        ("lanes: [prose]\n", "lanes"),
        ("chat_template: abc\n", "chat_template"),
        ("engine_arguments: [engine-python=/bin/sh]\n", "engine_arguments"),
        ("engine_arguments: [' engine_python =/bin/sh']\n", "engine_arguments"),
        ("engine_arguments: [trust_remote_code=true]\n", "engine_arguments"),
        ("engine_python: /bin/sh\n", "engine_python"),
        ("family: ''\n", "family"),
        ("reference: bf16\n", "./bf16"),
        ("- family\n", "top level"),
        ("", "top level"),
        ("family: [\n", "YAML"),
    ],
)
def test_a_malformed_file_is_refused_by_name_and_key(text: str, said: str, project: Path) -> None:
    (project / "bf16").mkdir()
    (project / "q36eval.yaml").write_text(text)
    ended = q36eval("gate", "--branch=x/y", "--plan", state=project.parent / "state")
    assert (ended.returncode, code_of(ended)[:5]) in ((2, "file-"), (2, "yaml-")), ended.stderr
    assert str(project / "q36eval.yaml") in ended.stderr
    assert said in ended.stderr


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """The requests that gates make; none is measured."""
    made: list[Request] = []

    def measure(request: Request, *_: object) -> None:
        made.append(request)
        raise UsageError("enough-seen", "The test has seen enough.")

    monkeypatch.setattr("q36eval.run.measure.measure", measure)
    return made


def test_the_command_line_wins_over_the_file(project: Path, requested: list[Request]) -> None:
    state = project.parent / "state"
    (project / "mine.yaml").write_text(POLICY)
    body = {"family": "sandbox", "reference": str(SANDBOX / "fp8-head"), "policy": "mine.yaml", "lanes": ["freeform"]}
    body |= {"suite": "sandbox", "engine_arguments": ["batch_size=3"], "out": "reports"}
    (project / "q36eval.yaml").write_text(yaml.safe_dump(body))
    for options in (
        (),
        ("--reference", "bf16", "--policy", "sandbox", "--lane", "structured"),
        ("--family", "sandbox"),
    ):
        assert code_of(q36eval("gate", "--branch", "fp8-head", *options, state=state)) == "enough-seen"
    of_file, of_options, of_family = requested
    assert (of_file.policy.name, [*of_file.policy.lanes]) == ("close", ["freeform"])
    assert (of_options.policy.name, [*of_options.policy.lanes]) == ("sandbox", ["structured"])
    assert [each.reference.folder.name for each in requested if each.reference] == ["fp8-head", "bf16", "bf16"]
    assert [each.engine.batch_rows for each in requested] == [3, 3, 3]
    assert (of_family.policy.name, len(of_family.policy.lanes)) == ("sandbox", 2)  # a family brings its own
    assert (project / "reports").is_dir()


def test_the_files_template_is_a_declaration_of_branches_with_one_of_their_own(project: Path) -> None:
    family = load_family("sandbox", Paths(REPOSITORY, project))
    shipped = chat_template_sha256(SANDBOX / "fp8-head")
    branch = Target(str(SANDBOX / "fp8-head"), SANDBOX / "fp8-head")
    requests = [Request(family, branch, None, "sandbox", None, template=each) for each in (shipped, "0" * 64, None)]
    assert [shipped_template(family, branch, each.template) for each in requests] == [shipped, None, None]
    declared = declared_template(requests[0], "1" * 64)
    assert (declared.sha256, declared.by, declared.is_own) == (shipped, "the project file", True)
    with raises(UsageError, "template-declared-differs", "0" * 64, shipped):
        declared_template(requests[1], "1" * 64)
    assert declared_template(requests[2], "1" * 64) is None
    assert [declared_template(each, shipped) for each in requests] == [None] * 3  # it is the reference's


def test_init_names_the_family_or_the_reference_and_overwrites_nothing(
    project: Path, llamas: tuple[Path, Path]
) -> None:
    state, file = project.parent / "state", project / "q36eval.yaml"
    reference, branch = llamas
    (project / "base").symlink_to(reference)
    wanted = {
        ("qwen3.6-35b-a3b/fp8-head",): {"family": "qwen3.6-35b-a3b"},
        ("inferRouter/Qwen3.6-35B-A3B-NVFP4@fp8-head", "Qwen/Qwen3.6-35B-A3B"): {"family": "qwen3.6-35b-a3b"},
        (str(branch), "sandbox/main"): {"family": "sandbox", "reference": "sandbox/main"},
        (str(branch), "base"): {"reference": "./base"},
        ("Org/Model", "Org/Base@v1"): {"reference": "Org/Base@v1"},
    }
    for named, body in wanted.items():
        q36eval("init", *named, state=state, code=0)
        assert yaml.safe_load(file.read_text()) == body, named
        assert code_of(q36eval("init", *named, state=state)) == "file-exists"
        file.unlink()
    refused = {
        ("Org/Model",): "reference-required",
        ("fp8-head",): "name-ambiguous",
        ("./nowhere", "./base"): "branch-unknown",
        (str(branch), "./nowhere"): "branch-unknown",
    }
    assert {named: code_of(q36eval("init", *named, state=state)) for named in refused} == refused
    assert not file.exists()


def test_a_project_without_a_family_gates_and_resumes_with_no_other_option(
    project: Path, llamas: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A derived family and a policy of one's own; the run is killed, and goes on in another folder."""
    state, (reference, branch) = project.parent / "state", llamas
    (project / "mine.yaml").write_text(POLICY)
    (project / "base").symlink_to(reference)
    corpus = REPOSITORY / "data" / "corpus" / "general.yaml"
    assert q36eval("init", str(branch), "./base", state=state).returncode == 0
    with (project / "q36eval.yaml").open("a") as file:
        file.write("policy: mine.yaml\nsuite: sandbox\n")
    options = ("--corpus", str(corpus), "--skip", "canaries", "--skip", "evals", "--lane", "freeform")
    with monkeypatch.context() as patched:
        patched.setattr("q36eval.run.branch.run_probes", failing(KeyboardInterrupt()))
        ended = q36eval("gate", "--branch", str(branch), *options, state=state, code=130)
    assert f"Branch: {branch}\n" in ended.stderr
    (run,) = json.loads(q36eval("history", "list", "--json", state=state).stdout)["runs"]
    assert (run["family"], run["branch"], run["state"]) == ("base", str(branch), "interrupted")
    (project / "mine.yaml").unlink()  # the run keeps its policy
    monkeypatch.chdir(project.parent)
    Path("other.yaml").write_text(POLICY.replace("9.0", "8.0"))
    other = project.parent / "corpus.yaml"
    lines = corpus.with_suffix(".jsonl").read_text(encoding="utf-8").splitlines()[:-1]
    other.with_suffix(".jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    other.write_text("name: general\njson_lines: [{path: corpus.jsonl}]\non_policy: null\n")
    for contradicting, code in (
        (("--branch", str(reference)), "run-of-another-request"),
        (("--family", "sandbox"), "run-of-another-request"),
        (("--policy", "other.yaml"), "run-of-another-request"),
        (("--lane", "structured"), "lane-not-judged"),
        (("--corpus", str(other)), "run-of-another-request"),
    ):
        ended = q36eval("gate", "--resume", run["id"], *contradicting, state=state)
        assert (ended.returncode, code_of(ended)) == (2, code), ended.stderr
    archive = state.parent / "moved"
    assert q36eval("history", "export", run["id"], "--out", str(archive), state=state).returncode == 0
    assert q36eval("history", "import", str(archive), state=state.parent / "other").returncode == 0
    ended = q36eval("gate", "--resume", run["id"], state=state.parent / "other")
    assert (ended.returncode, code_of(ended)) == (2, "run-of-another-request"), ended.stderr  # no archive's options
    ended = q36eval("gate", "--resume", run["id"], "--json", state=state)
    assert ended.returncode in (0, 3), ended.stderr
    report = json.loads(ended.stdout)
    (project / "base").unlink()  # to decide again nothing of it is read
    out = state.parent / "reports"  # as where it was killed between verdict and reports
    again = q36eval("gate", "--resume", run["id"], "--out", str(out), state=state)
    assert (again.returncode, json.loads((out / "report.json").read_bytes())) == (ended.returncode, report)
    ended = q36eval("gate", "--resume", run["id"], "--require-sign-off", "--json", state=state)
    assert (ended.returncode, json.loads(ended.stdout)["run"]["id"]) == (3, run["id"])
    assert (report["run"]["id"], report["run"]["family"]) == (run["id"], "base")
    assert [lane["lane"] for lane in report["report"]["lanes"]] == ["freeform"]
    assert OPTIONS not in report["run"]["provenance"], "it names folders of this machine"
    assert str(reference.parent) not in json.dumps(report["run"]["provenance"])
    until = str(datetime.now(UTC).date() + timedelta(days=30))
    named = ("--branch", str(branch), "--owner", "eva", "--reason", "why", "--expires", until, "--ahead")
    waived = json.loads(q36eval("review", "waive", *named, "--criterion", "close", "--json", state=state).stdout)
    assert (waived["family"], waived["branch"]) == ("base", str(branch))
    assert q36eval("drift", "--branch", str(branch), "--json", state=state).returncode == 3
