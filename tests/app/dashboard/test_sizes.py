"""KL against size: which branches are drawn together, which are best for their size, and where the plot stands."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from driving import tables_of
from written_history import POLICY, write_run

from q36eval.app.cli.report_formats import document_of
from q36eval.app.figures.sizes import family_sizes
from q36eval.gate.policy_file import read_policy
from q36eval.history import History, RunRecord
from q36eval.provenance import STORED
from q36eval.records import Verdict
from q36eval.reports.html_report import to_html
from q36eval.reports.size_plot import SizedBranch, front, size_plot


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunRecord]:
    """Two branches that compare with `w4a16`; one under another policy, on another corpus, and of unknown size each."""
    path = tmp_path_factory.mktemp("sizes") / "history.sqlite"
    history = History.open(path)
    other = read_policy(POLICY).model_copy(update={"lineage": ("older",)})
    apart = {"policy": {"policy": other}, "corpus": {"suites": {"kl": "other"}}}
    for gib, name in enumerate(("unknown", "policy", "corpus", "int2", "fp8", "w4a16")):
        stored = {STORED: {"bytes": gib * 2**30, "values": 2**32}} if gib else {}
        run = write_run(history, name, 0.4, 7, provenance=stored, **apart.get(name, {}))
    write_run(history, "stopped", 4.0, 8, stopped=True)
    history.close()
    return path, run


def test_only_branches_that_compare_are_drawn_together(family: tuple[Path, RunRecord]) -> None:
    history = History.open(family[0])
    sizes = family_sizes(history, family[1])
    page = to_html(document_of(family[1], history))
    history.close()
    assert [each.name for each in sizes.branches] == ["fp8", "int2", "w4a16"]
    assert [each.size("GiB") for each in sizes.branches] == [4, 3, 5]
    assert sizes.branches[0].size("bits") == 8
    assert {name: why.split()[0] for name, why in sizes.left_out.items()} == {
        "corpus": "another",
        "policy": "judged",
        "stopped": "no",
        "unknown": "its",
    }
    assert page.count('class="half"') == 2
    assert "corpus" not in page.partition("KL against size")[2].partition("</figure>")[0]


def test_the_page_lists_them_by_size(visit: Callable[..., Any], family: tuple[Path, RunRecord]) -> None:
    app = visit(family[0], "sizes", family="sandbox")
    assert tables_of(app)[0]["branch"].tolist() == ["int2", "fp8", "w4a16"]
    assert any(one.value.startswith("unknown: ") for one in app.text)


def test_the_front_is_what_no_other_branch_beats() -> None:
    def sized(name: str, size: int, kl: float, verdict: Verdict = Verdict.PASS) -> SizedBranch:
        return SizedBranch(name, name, verdict, kl, kl / 2, kl * 2, size * 2**30, 2**33)

    branches = [sized("c", 3, 0.02, Verdict.FAIL), sized("a", 1, 0.1), sized("b", 2, 0.01), sized("d", 4, 0.0)]
    assert [each.name for each in front(branches, "GiB")] == ["a", "b", "d"]
    svg = size_plot(branches, "bits")
    assert svg.count("font-weight") == 3
    assert {"bits per weight", "PASS", "FAIL"} <= {part.partition("<")[0] for part in svg.split(">")}
