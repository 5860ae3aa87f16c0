"""A reviewer's way: from a red verdict to the flipped token, waive it, and see the gate change."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from driving import answers_of, button

from q36eval.history import History
from q36eval.records import Verdict
from tests.app.judged_runs import judge_flips


def follow(visit: Callable[..., Any], path: Path, app: Any, label: str) -> Any:
    """The page that a link leads to."""
    (link,) = [one.proto for one in app.get("page_link") if one.proto.label.replace("\\", "") == label]
    return visit(path, link.page.rpartition("/")[2], **dict(parse_qsl(link.query_string)))


@pytest.mark.long
def test_from_a_red_verdict_to_the_flipped_token_to_a_pass(history: History, visit: Callable[..., Any]) -> None:
    path = Path(history.name)
    run = judge_flips(history, {"json": 0, "tools": 0, "shops": 1}, family="mine")

    app = visit(path)
    assert any("✗ BLOCKED" in one.value for one in app.markdown)
    app = follow(visit, path, app, "See why")
    assert any(one.value.startswith("1 of 60 questions") for one in app.caption)
    (shown,) = answers_of(app)
    assert shown["parting"] == "The answers part at token 8: the reference says ' A', the branch ' B'."
    assert [[text for text, mark in side["pieces"] if mark] for side in shown["sides"]] == [["A"], ["B"]]
    app = follow(visit, path, app, "Waive shops")
    assert "✗ FAIL" in app.title[0].value

    assert any("✓ PASS with waivers" in one.value for one in app.text), "what it would change is shown first"
    for key, typed, missing in (
        ("reviewer", "Jana", "Type your name first"),
        ("waive_reason", "a near tie; the shop names are alike", "needs a reason"),
    ):
        app = button(app, "Write the waiver and decide again").click().run()
        assert any(missing in one.value for one in app.text)
        field = app.text_input if key == "reviewer" else app.text_area
        field(key=key).set_value(typed)
    assert history.waivers("mine", "main") == {}
    app = button(app, "Write the waiver and decide again").click().run()
    assert app.title[0].value.startswith(":green[✓ PASS] with waivers · ")
    assert any("WAIVED until" in one.value for one in visit(path).markdown)
    assert history.get_run(run.id).verdict is Verdict.PASS
    assert [(one.canary, one.owner) for one in history.waivers("mine", "main").values()] == [("shops", "Jana")]
    assert [one.report.verdict for one in history.earlier_decisions(run.id)] == [Verdict.FAIL]
