"""A reviewer's way: from a red verdict to the flipped token, waive it, and see the gate change."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from driving import answers_of
from written_history import measured

from q36eval.canaries.outcomes import question_name
from q36eval.gate.declaration import DECLARED, declaration
from q36eval.history.decisions import circumstances_on, decided, evidence_of
from q36eval.records import Clusters, Lane, ProbeName, Verdict
from tests.app.canary_records import answer, item
from tests.app.judged_runs import IDENTITY, REFERENCE, open_history
from tests.q36eval.gate.evidence import census, only, small_policy

PARTING = {"position": 7, "said": " A", "top": [[" A", -0.05], [" B", -3.1]]}
OTHER = {"position": 7, "said": " B", "top": [[" B", -0.4], [" A", -1.2]]}


def follow(visit: Callable[..., Any], path: Path, app: Any, label: str) -> Any:
    """The page that a link leads to."""
    (link,) = [one.proto for one in app.get("page_link") if one.proto.label.replace("\\", "") == label]
    return visit(path, link.page.rpartition("/")[2], **dict(parse_qsl(link.query_string)))


@pytest.mark.long
def test_from_a_red_verdict_to_the_flipped_token_to_a_pass(visit: Callable[..., Any], tmp_path: Path) -> None:
    history = open_history(tmp_path)
    path = Path(history.name)
    rules = only("max_count", 0, id="flips", probe="canaries", metric="must_pass_flips", lanes=tuple(Lane))
    rules = rules.model_copy(update={"criteria": (*rules.criteria, small_policy().criteria[2])})
    declared = {DECLARED: declaration(rules).model_dump(mode="json")}
    sides = {"identity": IDENTITY, "reference_identity": REFERENCE}
    run = history.start_run(family="mine", branch="main", policy=rules, provenance=declared, **sides)
    right = answer(1.0, "Levnější je obchod A.", again=(1.0,), divergence=PARTING)
    wrong = answer(0.0, "Levnější je obchod B.", again=(0.0,), divergence=OTHER)
    asked = [item(f"json/{n}", right, right, must_pass=True) for n in range(59)]
    asked.append(item("shops/1", right, wrong, must_pass=True))
    flips, names = (0.0,) * 59 + (1.0,), tuple(map(question_name, asked))
    clusters = Clusters(units=(1,) * 60, branch=flips, errored=(0,) * 60, names=names)
    history.add_measurement(run.id, measured(ProbeName.CANARIES, "must_pass_flips", "all", clusters, "census", "count"))
    history.add_measurement(run.id, census(ProbeName.WEIGHTS, "integrity_faults", 0))
    history.add_items(run.id, asked)
    circumstances = circumstances_on(history, run, run.started.date())
    history.update_run(run.id, circumstances=circumstances)
    history.finish_run(run.id, decided(rules, evidence_of(history, run, circumstances), circumstances))

    app = visit(path)
    assert any("✗ BLOCKED" in one.value for one in app.markdown)
    app = follow(visit, path, app, "See the prompts it lost: main")
    assert any(one.value.startswith("1 of 60 questions") for one in app.caption)
    (shown,) = answers_of(app)
    assert shown["parting"] == "The answers part at token 8: the reference says ' A', the branch ' B'."
    assert [[text for text, mark in side["pieces"] if mark] for side in shown["sides"]] == [["A"], ["B"]]
    app = follow(visit, path, app, "Waive shops")
    assert "✗ FAIL" in app.header[0].value

    def write() -> Any:
        return next(one for one in app.button if one.label == "Write the waiver and decide again").click().run()

    assert any("✓ PASS with waivers" in one.value for one in app.text), "what it would change is shown first"
    for key, typed, missing in (
        ("reviewer", "Jana", "Type your name first"),
        ("waive_reason", "a near tie; the shop names are alike", "needs a reason"),
    ):
        app = write()
        assert any(missing in one.value for one in app.text)
        field = app.text_input if key == "reviewer" else app.text_area
        field(key=key).set_value(typed)
    assert history.waivers("mine", "main") == {}
    app = write()
    assert app.header[0].value == ":green[✓ PASS] with waivers"
    assert any("WAIVED until" in one.value for one in visit(path).markdown)
    assert history.get_run(run.id).verdict is Verdict.PASS
    assert [(one.canary, one.owner) for one in history.waivers("mine", "main").values()] == [("shops", "Jana")]
    assert [one.report.verdict for one in history.earlier_decisions(run.id)] == [Verdict.FAIL]
