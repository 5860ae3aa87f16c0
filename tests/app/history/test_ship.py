"""`history status`: what the first page says, for a pipeline."""

import json
from datetime import date
from pathlib import Path

from tests.app.judged_runs import REFERENCE, judge_run, open_history
from tests.commands import q36eval
from tests.q36eval.gate.evidence import small_policy


def test_what_may_ship_is_listed_by_branch_and_lane(tmp_path: Path) -> None:
    history, policy = open_history(tmp_path), small_policy()
    about = {"family": "mine", "reference": REFERENCE}
    run = judge_run(history, 0, date(2026, 3, 1), **about)
    judge_run(history, 150, date(2026, 3, 1), branch="worse", **about)
    less = policy.model_copy(update={"name": "less", "criteria": policy.criteria[2:]})
    judge_run(history, 150, date(2026, 3, 1), branch="lax\nmay ship", policy=less, **about)
    history.close()
    done = q36eval("history", "status", state=tmp_path, code=0)
    family, *rows = done.stdout.splitlines()
    assert family == "mine"
    assert rows[0].startswith("  worse  ✗ BLOCKED structured  Structured: ")
    assert [row.split()[0] for row in rows] == ["worse", "lax␣may␣ship", "main"]
    body = json.loads(q36eval("history", "status", "--branch", "main", "--json", state=tmp_path).stdout)
    (branch,) = body["families"][0]["branches"]
    assert (branch["standing"], branch["lanes"]["structured"]["run"]) == ("SHIP", run.id)
    assert q36eval("history", "status", "--branch", "nope", state=tmp_path).returncode == 2
    about = ("history", "status", "--branch", "main", "--archive", "--owner", "eva", "--reason")
    assert "Archived by eva" in q36eval(*about, "superseded", state=tmp_path, code=0).stdout
    assert q36eval(*about, "superseded", state=tmp_path).returncode == 2
    listed = q36eval("history", "status", state=tmp_path).stdout
    assert "Not release candidates: main" in listed
    again = q36eval("history", "status", "--branch", "main", "--json", state=tmp_path).stdout
    assert json.loads(again)["families"][0]["branches"][0]["lanes"] == body["families"][0]["branches"][0]["lanes"]
