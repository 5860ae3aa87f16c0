"""A view can be passed on: its address holds what was chosen."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from written_history import worst_token, write_history

from q36eval.config import Paths
from q36eval.history import History
from q36eval.records import Answer, ItemOutcome, ProbeName
from q36eval.token_files import WORST, write_worst

Written = tuple[Path, dict[str, Any]]


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A history whose ruined run has flips of the evals and its worst tokens, more than one page of each."""
    path = tmp_path_factory.mktemp("links") / "history.sqlite"
    runs = write_history(path)
    history = History.open(path)
    history.add_items(runs["ruined"].id, [flip(number) for number in range(12)])
    history.close()
    folder = Paths.tokens_beside(path, runs["ruined"].id)
    folder.mkdir(parents=True)
    write_worst(
        folder / WORST, [worst_token(n, kind=("word", "number")[n % 2], forward_kl=9.0 - n / 10) for n in range(20)]
    )
    return path, runs


def flip(number: int) -> ItemOutcome:
    sides = {"reference": Answer(score=1.0, text="A"), "branch": Answer(score=0.0, text="B")}
    key = f"{number:02d}".ljust(64, "f")
    group = ("mmlu", "other")[number > 7]
    return ItemOutcome(probe=ProbeName.EVALS, group=group, item_key=key, cluster=str(number), prompt="Which?", **sides)


@pytest.mark.long
@pytest.mark.parametrize(
    ("page", "name", "value", "listed"),
    [
        ("canaries", "canary", "tool-calls", "11 of 32"),
        ("canaries", "outcome", "regression", "5 of 32"),
        ("canaries", "standing", "confirmed", "3 of 32"),
        ("canaries", "standing", "fixed", "9 of 32"),
        ("kl", "kind", "word", "10 of 20"),
        ("kl", "slice", "czech", "20 of 20"),
        ("evals", "group", "mmlu", "8 of 12"),
        ("evals", "direction", "gained", "0 of 12"),
        ("canaries", "lane", "<b>nope</b>", "0 of 32"),
        ("kl", "kind", "nope", "0 of 20"),
        ("evals", "group", "<b>nope</b>", "0 of 12"),
    ],
)
def test_an_address_chooses_what_is_listed(
    visit: Callable[..., Any], full: Written, page: str, name: str, value: str, listed: str
) -> None:
    app = visit(full[0], page, run=full[1]["ruined"].id, **{name: value})
    assert any(one.value.startswith(f"{listed} ") or one.value.startswith(f"{listed},") for one in app.caption)
    assert app.query_params[name] in (value, [value])
