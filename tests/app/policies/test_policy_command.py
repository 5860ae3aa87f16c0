"""`q36eval policy` as a person meets it: what is printed, the JSON, and the exit codes."""

import json
from pathlib import Path

import pytest
import yaml

from q36eval.gate import Policy
from q36eval.gate.policy_file import read_policy
from tests import commands


def own(folder: Path, **says: object) -> str:
    path = folder / "own.yaml"
    path.write_text(yaml.safe_dump({"name": "own", "extends": "sandbox"} | says), encoding="utf-8")
    return str(path)


def test_show_prints_the_whole_policy(tmp_path: Path) -> None:
    printed = commands.q36eval("policy", "explain", own(tmp_path, drop=["ruler"]), "--full", state=tmp_path)
    (tmp_path / "whole.yaml").write_text(printed.stdout, encoding="utf-8")
    own_policy, whole = read_policy(tmp_path / "own.yaml"), read_policy(tmp_path / "whole.yaml")
    assert whole == own_policy.model_copy(update={"lineage": ()})
    kept = commands.q36eval("policy", "explain", str(tmp_path / "own.yaml"), "--full", "--json", state=tmp_path)
    assert Policy.model_validate_json(kept.stdout) == own_policy


def test_explain_says_what_blocks_and_what_only_warns(tmp_path: Path) -> None:
    strictly = {"id": "kl", "on_inconclusive": "fail"}
    printed = commands.q36eval("policy", "explain", own(tmp_path, criteria=[strictly]), state=tmp_path).stdout
    blocks, _, warns = printed.partition("never blocking:")
    rows = " ".join(blocks.split())
    for rule in (
        "≤ 0.014 nats/token; at least",
        "undecided: FAIL (exit 1)",
        "(mmlu) freeform recovery ≥ 92 %",
        "retention ≥ 97.9 %",
    ):
        assert rule in rows
    assert "The reference must solve" in warns
    assert [name in warns for name in ("(unstable-prompts)", "(margins-freeform)", "(kl-czech)")] == [True] * 3
    assert "(kl-czech)" not in blocks
    release = commands.q36eval("policy", "explain", "release", state=tmp_path).stdout
    assert "368 sources, taken as independent, may miss what fewer than 1.00 %" in " ".join(release.split())


def test_check_names_every_problem_and_exits_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    margin = {"kind": "max_increase", "value": 0.001, "source": "x"}
    wrong = [
        {"id": "kl-slovak", "probe": "kl", "metric": "kl_divergence", "slice": "slovak", "lanes": ["freeform"]}
        | {"margin": {"kind": "max_value", "value": 0.01, "source": "x"}},
        {"id": "too-tight", "probe": "canaries", "metric": "failure_rate", "lanes": ["freeform"], "margin": margin},
        {"id": "required-freeform", "min_scored": 30},
    ]
    done = commands.q36eval("policy", "check", own(tmp_path, criteria=wrong), "--json", state=tmp_path)
    found = json.loads(done.stdout)
    assert (done.returncode, found["sound"]) == (2, False)
    named = [problem.rpartition(": ")[0].rpartition(" ")[2] for problem in found["problems"]]
    assert sorted(named) == ["kl-slovak", "required-freeform", "too-tight"]
    monkeypatch.chdir(tmp_path)  # where no project file names a family
    done = commands.q36eval("policy", "check", own(tmp_path, extends="standard"), "--json", state=tmp_path, code=0)
    assert json.loads(done.stdout)["checked_for"] == "family any model, suite standard"


def test_check_says_what_a_lane_is_not_guarded_by(tmp_path: Path) -> None:
    margin = {"kind": "max_value", "value": 0.014, "source": "x"}
    kl = {"id": "kl", "probe": "kl", "metric": "kl_divergence", "margin": margin, "lanes": ["structured"]}
    done = commands.q36eval("policy", "check", own(tmp_path, extends=None, criteria=[kl]), state=tmp_path, code=0)
    assert "Lane structured is unguarded by evals" in done.stdout
    assert "note: Lane freeform is not judged" in done.stdout


def test_hostile_text_of_a_policy_stays_one_line(tmp_path: Path) -> None:
    hostile = "\x1b[31m::error::\u202e\nsecond line"
    margin = {"value": 0.02, "source": hostile}
    policy = own(tmp_path, description=hostile, criteria=[{"id": "kl", "margin": margin, "note": hostile}])
    printed = commands.q36eval("policy", "explain", policy, state=tmp_path).stdout
    assert "\x1b" not in printed
    assert "\u202e" not in printed
    assert not any(line.startswith(("::", "second")) for line in printed.splitlines())


# -- lanes


REPOSITORY = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("named", "options", "judged"),
    [
        (["structured", "freeform"], [], ["structured", "freeform"]),
        (["freeform"], [], ["freeform"]),
        (["freeform"], ["--lane", "structured"], ["structured"]),
        (["freeform"], ["--lane", "structured", "--lane", "freeform"], ["structured", "freeform"]),
    ],
)
def test_a_gate_judges_the_lanes_of_the_branch_or_those_named(
    tmp_path: Path, weights: tuple[str, ...], named: list[str], options: list[str], judged: list[str]
) -> None:
    """Of the sandbox's family, whose `bf16` is meant for the named lanes alone."""
    family = yaml.safe_load((REPOSITORY / "data" / "families" / "sandbox.yaml").read_text(encoding="utf-8"))
    source = {"path": str(REPOSITORY / "data" / "sandbox" / "bf16")}
    family["branches"] = {"bf16": family["branches"]["bf16"] | {"lanes": named, "source": source}}
    path = tmp_path / "family.yaml"
    path.write_text(yaml.safe_dump(family), encoding="utf-8")
    options = ["--branch", "bf16", "--family", str(path), *weights, *options, "--json"]
    done = commands.q36eval("gate", *options, state=tmp_path, code=0)
    assert [lane["lane"] for lane in json.loads(done.stdout)["report"]["lanes"]] == judged
