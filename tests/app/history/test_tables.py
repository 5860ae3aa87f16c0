"""Tables for analysis: figures that are no number, texts of models, many runs."""

import math
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from q36eval.records import Direction, Interval, ProbeName
from tests import commands
from tests.app.history.filled import DAY, ODD, fill
from tests.app.judged_runs import judge_run
from tests.q36eval.gate.evidence import census

pytestmark = pytest.mark.long


def test_the_tables_join_and_keep_every_figure(tmp_path: Path) -> None:
    history, run = fill(tmp_path)
    second = judge_run(history, 0, DAY)
    nothing = Interval(lower=math.nan, upper=math.inf, level=0.95, method="none")
    odd = census(ProbeName.KL, "odd", 0).model_copy(update={"value": math.nan, "effect_interval": nothing})
    assert odd.direction is Direction.LOWER_IS_BETTER
    history.add_measurement(run.id, odd)
    found = {}
    for table in ("runs", "measurements", "items"):
        file = tmp_path / f"{table}.parquet"
        done = commands.q36eval("history", "export", "--table", table, "--out", str(file), state=tmp_path)
        assert done.returncode == 0, done.stderr
        found[table] = pq.read_table(file).to_pylist()
    assert [(row["run"], row["verdict"], row["waived"]) for row in found["runs"]] == [
        (run.id, "PASS", True),
        (second.id, "PASS", False),
    ]
    assert len(found["measurements"]) == 7
    (one,) = [row for row in found["measurements"] if row["metric"] == "odd"]
    assert (math.isnan(one["value"]), one["upper"], one["probe"]) == (True, math.inf, "kl")
    assert [row["branch_score"] for row in found["items"][:3]] == [1.0, 0.0, None]
    assert found["items"][0]["branch_text"] == ODD
    assert found["items"][0]["started"] == run.started
    done = commands.q36eval("history", "export", "--table", "runs", "--out", str(tmp_path / "no" / "x"), state=tmp_path)
    assert (done.returncode, commands.code_of(done)) == (4, "file-unwritable")
