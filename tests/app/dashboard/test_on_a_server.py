"""The pages over a history in PostgreSQL: what a team shares."""

from collections.abc import Callable
from typing import Any

import pytest
from driving import button
from written_history import write_history

from q36eval.history import History
from q36eval.run.drift import standing_drift
from tests.q36eval.history.conftest import fresh, postgresql

pytestmark = pytest.mark.long

__all__ = ["postgresql"]  # a fixture


def test_pages_are_drawn_and_a_reviewer_s_word_is_written(visit: Callable[..., Any], postgresql: str) -> None:
    url = fresh(postgresql, template="head")
    runs = write_history(url)
    history = History.open(url)
    for page in ("overview", "compare", "branch", "run"):
        assert not visit(url, page).error
    app = visit(url, "review", run=runs["pass"].id)
    app.text_input(key="reviewer").set_value("Eva")
    app.text_area(key="bless_reason").set_value("the level to hold")
    button(app, "Bless this run").click().run()
    assert history.blessings("fp8-head", "sandbox")[0].owner == "Eva"
    assert standing_drift(history, "sandbox", "fp8-head").blessed_run_id == runs["pass"].id
    history.close()
