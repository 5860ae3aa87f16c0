"""Two runs side by side, and lists of many: what is paired, what is not, and the sentence that says why."""

import json
from pathlib import Path
from typing import Any

import pytest

from q36eval.gate import Policy
from q36eval.history import History, RunRecord
from q36eval.history.run_comparison import compare
from q36eval.records import Measurement
from tests import commands
from tests.app.history.filled import DAY, outcome
from tests.app.judged_runs import IDENTITY, judge_run, open_history
from tests.q36eval.gate.evidence import accuracy, named, small_policy

ITEMS = 200


def answers(right: int) -> Measurement:
    """The first `right` of 200 questions; the reference gets 180."""
    found = accuracy([1] * right + [0] * (ITEMS - right), [1] * 180 + [0] * 20)
    return named(found, [f"q{number}" for number in range(ITEMS)])


def measured_run(history: History, right: int, **started: Any) -> RunRecord:
    given = {"identity": IDENTITY, "reference_identity": IDENTITY, "suites": {"evals": "s1"}, **started}
    run = history.start_run(family="sandbox", branch=given.pop("branch", "main"), **given)
    history.add_measurement(run.id, answers(right))
    return history.finish_run(run.id)


def test_the_same_questions_are_paired_one_by_one(history: History) -> None:
    a, b, same = (measured_run(history, right) for right in (180, 150, 180))
    (worse,) = compare(history, a, b).measurements
    assert worse.difference.effect == pytest.approx(-30 / ITEMS)
    assert (worse.difference.movement, worse.difference.clusters) == ("worse", ITEMS)
    (back,) = compare(history, b, a).measurements
    assert back.difference.movement == "better"
    interval, mirrored = worse.difference.effect_interval, back.difference.effect_interval
    assert (interval.lower, interval.upper) == pytest.approx((-mirrored.upper, -mirrored.lower))
    (none,) = compare(history, a, same).measurements
    assert (none.difference.effect, none.difference.movement) == (0.0, "unclear")
    assert compare(history, a, same).differing == ()


@pytest.mark.long
@pytest.mark.parametrize(
    ("started", "why", "field"),
    [
        ({"suites": {"evals": "s2"}}, "different suites of evals", "suite.evals"),
        ({"identity": IDENTITY.model_copy(update={"kv_cache_dtype": "fp8_e4m3"})}, "", "kv_cache_dtype"),
        ({"identity": IDENTITY.model_copy(update={"settings": {"device": "x"}})}, "", "settings.device"),
        ({"reference_identity": IDENTITY.model_copy(update={"engine": "y"})}, "", "reference.engine"),
        ({"branch": "fp8-head"}, "", "branch"),
    ],
)
def test_what_differs_is_named_and_only_what_was_asked_otherwise_is_not_paired(
    tmp_path: Path, started: dict[str, Any], why: str, field: str
) -> None:
    history = open_history(tmp_path)
    found = compare(history, measured_run(history, 180), measured_run(history, 150, **started))
    assert [difference.field for difference in found.differing] == [field]
    assert (found.measurements[0].difference is None) == bool(why)
    assert why in found.measurements[0].why


def test_a_divergence_from_another_reference_is_another_figure(history: History) -> None:
    a, b = judge_run(history, 0, DAY), judge_run(history, 0, DAY)
    other = IDENTITY.model_copy(update={"settings": {"code": "2"}})
    history.update_run(b.id, reference_identity=other)
    found = compare(history, a, history.get_run(b.id))
    assert {criterion.id: criterion.why for criterion in found.criteria if criterion.why} == {
        "intact": "the two runs were measured against different references (settings.code)",
        "tools": "the two runs were measured against different references (settings.code)",
    }


def test_criteria_stand_side_by_side_also_those_of_one_policy_alone(history: History) -> None:
    rules = small_policy()
    renamed = rules.criteria[0].model_copy(update={"id": "another"})
    other = Policy(name="other", criteria=(renamed, *rules.criteria[1:]))
    a, b = judge_run(history, 80, DAY), judge_run(history, 0, DAY, policy=other)
    found = {c.id: c for c in compare(history, a, b).criteria}
    assert [(c.a is None, c.b is None) for c in (found["another"], found[rules.criteria[0].id])] == [
        (True, False),
        (False, True),
    ]
    tools = found["tools"]
    assert (tools.a and tools.a.verdict, tools.b and tools.b.verdict) == ("FAIL", "PASS")
    assert (tools.turned, tools.movement) == (True, "better")


def test_flips_go_both_ways_and_count_only_what_both_answered(history: History, tmp_path: Path) -> None:
    a, b = measured_run(history, 180), measured_run(history, 180)
    for run, scores in ((a, (1.0, 0.0, 1.0, 1.0, 0.5)), (b, (0.0, 1.0, 1.0, None, 0.2))):
        items = [outcome(f"{place}", score, text=run.id) for place, score in enumerate(scores)]
        history.add_items(run.id, items)
    history.add_items(b.id, [outcome("only b", 1.0)])
    done = commands.q36eval("history", "compare", a.id, b.id, "--json", state=tmp_path)
    found = json.loads(done.stdout)
    (counts,) = found["flips"]
    assert [counts[name] for name in ("both", "lost", "gained", "only_a", "only_b")] == [4, 1, 1, 1, 1]
    assert [(flip["item_key"], flip["way"], flip["a"]["text"]) for flip in found["flipped"]] == [
        ("0", "lost", a.id),
        ("1", "gained", a.id),
    ]


@pytest.mark.long
def test_lists_are_filtered_paged_and_say_what_is_left(history: History, tmp_path: Path) -> None:
    runs = [judge_run(history, 80 if number % 2 else 0, DAY) for number in range(5)]
    other = judge_run(history, 0, DAY, branch="fp8-head")

    def listed(*arguments: str) -> dict[str, Any]:
        return dict(json.loads(commands.q36eval("history", "list", "--json", *arguments, state=tmp_path).stdout))

    first = listed("--branch", "main", "--limit", "2")
    assert ([run["id"] for run in first["runs"]], first["total"], first["more"]) == ([runs[4].id, runs[3].id], 5, 3)
    last = listed("--branch", "main", "--limit", "2", "--page", "3")
    assert ([run["id"] for run in last["runs"]], last["more"]) == ([runs[0].id], 0)
    assert {run["id"] for run in listed("--verdict", "fail")["runs"]} == {runs[1].id, runs[3].id}
    today = runs[0].started.date().isoformat()
    assert listed("--since", today, "--until", today)["total"] in (5, 6)  # a day may end meanwhile
    assert listed("--until", "2020-01-01")["total"] == 0
    assert [run["id"] for run in listed("--limit", "1")["runs"]] == [other.id]
