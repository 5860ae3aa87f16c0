"""What people read of KL measurements: which group a slice name is, layers of an attribution, intervals in words."""

import math
from pathlib import Path

from q36eval.app.dashboard.drawing.charts import histogram_figure
from q36eval.app.figures.kl import KLFigures, attribution_of, grouping_of
from q36eval.history import History, RunRecord
from q36eval.records import Measurement, ProbeName
from tests.q36eval.gate.evidence import measurement
from tests.q36eval.stats.evidence import items


def mean(metric: str, slice_name: str, per_document: list[float]) -> Measurement:
    clusters = items([10 * v for v in per_document], units=[10] * len(per_document), bounds=None)
    return measurement(ProbeName.KL, metric, clusters, "mean", slice=slice_name)


SPREAD = [0.01 * (1 + n % 5) for n in range(20)]


def test_slice_names_fall_into_groupings() -> None:
    assert grouping_of("kind=tool_call") == ("kind", "tool_call")
    assert grouping_of("position=64-127") == ("position", "64-127")
    assert grouping_of("czech_legal") == ("slice", "czech_legal")
    names = ("all", "czech", "position=0-63", "position=64-127")
    figures = KLFigures([mean("kl_divergence", name, SPREAD) for name in names])
    assert figures.groups("slice") == ["czech"]
    assert [next(iter(row.values())) for row in figures.rows("position")] == ["0-63", "64-127"]


def test_layers_are_in_their_own_order_by_direction() -> None:
    suspects = ("alone/layers 10-11", "alone/layer 2", "alone/routed experts", "alone/routed experts, layer 2")
    others = ("restored/layer 2", "vllm/whole")
    rows = KLFigures([mean("attributed_kl", name, SPREAD) for name in (*suspects, *others)]).attributed()
    classes = ["routed experts, alone", "routed experts, layer 2, alone"]
    assert [row.name for row in rows] == [*classes, "layer 2, alone", "layers 10-11, alone", "layer 2, restored"]


def test_the_newest_attribution_of_the_same_branch_is_taken(tmp_path: Path) -> None:
    history = History.open(tmp_path / "history.sqlite")

    def run(branch: str, suite: str, *, finished: bool = True) -> RunRecord:
        known = {"family": "sandbox", "branch": branch, "suites": {suite: "0" * 64}}
        begun = history.start_run(identity=None, reference_identity=None, **known)
        return history.finish_run(begun.id, None) if finished else begun

    judged = run("one", "kl")
    run("one", "attribute")
    newest = run("one", "attribute")
    run("two", "attribute")
    run("one", "attribute", finished=False)
    assert attribution_of(history.series_runs(judged.branch, judged.family)).id == newest.id
    run("three", "kl")
    assert attribution_of(history.series_runs("three", judged.family)) is None


def test_the_histogram_holds_every_finite_token() -> None:
    import numpy as np

    divergences = np.array([0.0, 1e-14, 1e-5, 0.02, 0.02, 900.0, math.inf, math.nan])
    figure = histogram_figure(divergences, {"mean": 0.02, "noise floor": 1e-5, "margin": None})
    (bars,) = figure.data
    assert sum(count or 0 for count in bars.y) == 6
    assert bars.y[0] == 2
    assert [line.x0 for line in figure.layout.shapes] == [0.02, 1e-5]
