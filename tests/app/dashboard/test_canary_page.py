"""The canary page over outcomes with everything that a run keeps, and over those of older runs."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from driving import Visit, answers_of, markup_of, tables_of
from written_history import HOSTILE, POLICY, measured, record

from q36eval.app.cli.report_formats import document_of
from q36eval.app.figures.answers import Held, diff_pieces
from q36eval.app.figures.canaries import CanaryRun, must_pass_rows
from q36eval.app.figures.canary_items import Filter, asked_for, choices, risk_rows, select
from q36eval.app.figures.canary_lanes import CanaryLanes
from q36eval.app.figures.deciding_answers import deciding_items, item_name, largest_loss
from q36eval.app.figures.evals import answer_choices, flips_of
from q36eval.canaries.outcomes import question_name
from q36eval.gate import decide
from q36eval.gate.policy_file import read_policy
from q36eval.history import History
from q36eval.records import Answer, Clusters, ItemOutcome, Measurement, ProbeName
from tests.app.canary_records import answer, item, outcomes
from tests.outcomes import outcome
from tests.q36eval.gate.evidence import accuracy


def test_both_models_choices_are_side_by_side_and_what_was_said_is_marked() -> None:
    flip = next(one for one in outcomes() if one.cluster == "fixed/flip")
    found = {choice.token: choice for choice in choices(flip)}
    reference, branch = found["' B'"].reference, found["' B'"].branch
    assert reference == Held(pytest.approx(math.exp(-0.1)), "90.5 % (-0.1 nats)", said=True)
    assert branch == Held(pytest.approx(math.exp(-1.9)), "15 % (-1.9 nats)", said=False)
    assert found["' A'"].branch is None
    assert choices(outcomes()[0]) == []
    odd = {"position": 0, "said": "b", "top": [["a", "NaN"], ["b", 0.3], ["c", "-Infinity"]]}
    found = {choice.token: choice for choice in choices(item("d/1", answer(1.0, divergence=odd), answer(0.0)))}
    assert [found[token].reference.share for token in ("'b'", "'c'")] == [1.0, 0.0]
    assert item_name(item("d-must-pass/cs", answer(1.0), answer(0.0))) == "d: cs"


@pytest.mark.parametrize(
    ("reference", "branch", "marked"),
    [
        ("Zaplatíme 90 Kč.", "Zaplatíme 80 Kč, ano.", (["90"], ["80", ", ano"])),
        ("a, b; c", "x, y; c", (["a, b"], ["x, y"])),
        ("one\ntwo", "one two", (["⏎\n"], [" "])),
        ("same", "same", ([], [])),
        ("", "new", ([], ["new"])),
    ],
)
def test_what_differs_is_marked_and_nothing_is_lost(
    reference: str, branch: str, marked: tuple[list[str], list[str]]
) -> None:
    sides = diff_pieces(reference, branch)
    assert tuple([text for text, mark in side if mark] for side in sides) == marked
    whole = ["".join(text for text, _ in side).replace("⏎", "") for side in sides]
    assert whole == [reference, branch]


def test_the_difference_of_long_texts_is_not_out_of_sight() -> None:
    shared = "x" * 30_000
    sides = diff_pieces(f"{shared}A{shared}", f"{shared}BC{shared}")
    for side, told in zip(sides, ("A", "BC"), strict=True):
        before, (text, marked), _ = side
        assert (text, marked) == (told, True)
        assert len(before[0]) < 1_100
        assert "29,000 characters that are the same" in before[0]


def test_filters_find_what_is_unstable_and_what_is_at_risk() -> None:
    items = outcomes()
    assert [one.cluster for one in select(items, Filter(outcome="unstable"))] == ["fixed/unstable"]
    assert [one.cluster for one in select(items, Filter(outcome="at risk"))] == ["discount/2"]
    assert [row["question"] for row in risk_rows(items)] == ["discount/2"]
    standings = {row["prompt"]: row["outcome"] for row in must_pass_rows(CanaryRun((), tuple(items)))}
    assert standings == {
        "fixed/flip": "confirmed flips",
        "fixed/unstable": "unstable",
        "fixed/none": "the reference itself fails",
        "fixed/errored": "not known",
    }


def flips_counted(lane: str, flipped: Sequence[str], steady: Sequence[str]) -> Measurement:
    """Required prompts of a lane by name: those that count as flipped, and others."""
    counted = [one for one in outcomes() if one.cluster in (*flipped, *steady)]
    names = tuple(question_name(one) for one in counted)
    flips = tuple(float(one.cluster in flipped) for one in counted)
    clusters = Clusters(units=(1,) * len(names), branch=flips, errored=(0,) * len(names), names=names)
    return measured(ProbeName.CANARIES, "must_pass_flips", lane, clusters, "census", "count")


def test_a_confirmed_flip_is_one_that_the_gate_counts_in_that_lane() -> None:
    """`discount/3` flipped too, and is judged as a rate: it is in no list behind a count of required prompts."""
    lanes = CanaryLanes.of(
        [flips_counted("structured", [], ["discount/2"]), flips_counted("freeform", ["fixed/flip"], [])]
    )
    listed = {
        lane: [one.cluster for one in select(outcomes(), Filter(lane=lane, prompts="confirmed"), lanes)]
        for lane in ("structured", "freeform", "all")
    }
    assert listed == {"structured": [], "freeform": ["fixed/flip"], "all": ["fixed/flip"]}
    of_lane = {one.group for one in select(outcomes(), Filter(lane="freeform"), lanes)}
    assert of_lane == {"fixed"}
    assert select(outcomes(), Filter(prompts="confirmed")) == [], "unknown is not confirmed"


@pytest.mark.long
def test_the_page_shows_them_and_no_text_acts(tmp_path: Path, visit: Visit) -> None:
    """A link leads to one question, and a choice ends it."""
    path = tmp_path / "history.sqlite"
    run = record(path, outcomes()).id
    app = visit(path, "canaries", run=run)
    texts = "\n".join(element.value for element in app.text)
    shown = answers_of(app)
    flip = shown[0]
    assert flip["sides"][1]["pieces"][0][0].startswith("<script>")
    assert any("<script>" in choice["token"] for choice in flip["choices"])
    frames = tables_of(app)
    cells = "".join(str(value) for frame in frames for value in frame.to_numpy().ravel())
    assert not {"\x1b", "\x07", "\u202e"} & set(cells + texts + json.dumps(shown, ensure_ascii=False))
    assert not any("script" in text for text in markup_of(app))
    app = visit(path, "canaries", run=run, item="discount/3")
    assert len(answers_of(app)) == 1
    app = app.button(key="canary_all").click().run()
    assert "item" not in app.query_params
    assert "10 of 10" in app.caption[0].value
    app = visit(path, "canaries", run=run, item="<b>none</b>")
    assert any("no question of that name" in warning.value for warning in app.warning)
    key = outcomes()[0].item_key
    assert [one.item_key for one in asked_for(outcomes(), key)] == [key]
    assert asked_for(outcomes(), key[:4]) == []


def test_the_prompts_that_are_counted_are_shown_before_others_that_flipped(history: History) -> None:
    """`early` is of another canary and flipped in every batch as well, and is judged as a rate."""
    policy = read_policy(POLICY)
    run = history.start_run(family="sandbox", branch="main", identity=None, reference_identity=None, policy=policy)
    flip = next(one for one in outcomes() if one.cluster == "fixed/flip")
    again = flip.model_copy(update={"cluster": "fixed/again", "item_key": "again".rjust(64, "0")})
    early = flip.model_copy(update={"cluster": "early/1", "group": "early", "item_key": "early".rjust(64, "0")})
    names = tuple(map(question_name, (flip, again)))
    clusters = Clusters(units=(1, 1), branch=(1.0, 1.0), errored=(0, 0), names=names)
    found = [measured(ProbeName.CANARIES, "must_pass_flips", "freeform", clusters, "census", "count")]
    history.add_measurement(run.id, found[0])
    history.add_items(run.id, [early, flip, again])
    done = history.finish_run(run.id, decide(policy, found))
    by_kl = done.model_copy(update={"report": done.report.model_copy(update={"decisive": ("kl",)})})
    for decided in (done, by_kl):  # whatever decided
        assert [one.cluster for one in deciding_items(history, decided)] == ["fixed/flip", "fixed/again", "early/1"]
        assert largest_loss(history, decided) == "2 fixed prompts lost, most often: wrong conclusion"
    assert [answer.required for answer in document_of(done, history).answers] == [True, True, False]


# -- the page of evals


def eval_answer(score: float, text: str, *log_likelihoods: float) -> Answer:
    choices = dict(zip("ABCD", log_likelihoods, strict=False))
    return Answer(score=score, text=text, detail={"log_likelihoods": choices} if choices else {})


def eval_item(number: int, reference: Answer, branch: Answer) -> ItemOutcome:
    key, prompt = f"{number:02d}".ljust(64, "f"), f"Question {number} {HOSTILE}"
    of_law = {"group": "mmlu", "item_key": key, "stratum": "law", "prompt": prompt, "expected": "A"}
    return outcome(ProbeName.EVALS, str(number), branch, reference, **of_law)


ITEMS = [
    eval_item(1, eval_answer(1.0, "A", -0.1, -3.0), eval_answer(0.0, "B", -2.0, -0.2)),
    eval_item(2, eval_answer(0.0, "B", -2.0, -0.2), eval_answer(1.0, "A", -0.1, -3.0)),
    eval_item(3, eval_answer(1.0, "A"), eval_answer(0.0, HOSTILE)),
    eval_item(4, eval_answer(1.0, "A", -0.1, -3.0), eval_answer(1.0, "A", -0.1, -3.0)),
]


@pytest.mark.long
def test_flips_show_both_answers_and_their_choices(tmp_path: Path, visit: Visit) -> None:
    path = tmp_path / "history.sqlite"
    found = [accuracy([0, 1, 0, 1], [1, 0, 1, 1], name) for name in ("mmlu", "mmlu/law")]
    run = record(path, ITEMS, found).id
    app = visit(path, "evals", run=run, group="mmlu", direction="lost")
    shown = answers_of(app)
    assert len(shown) == 2
    assert any("2 of 3 flips" in caption.value for caption in app.caption)
    choices = {choice["token"]: choice for side in shown for choice in side["choices"]}
    assert choices["A"]["reference"]["said"]
    assert choices["B"]["branch"]["said"]
    assert choices["A"]["branch"]["share"] + choices["B"]["branch"]["share"] == pytest.approx(1.0, abs=0.01)
    app = app.selectbox(key="direction").set_value("gained").run()
    assert len(answers_of(app)) == 1
    app = visit(path, "evals", run=run, item=ITEMS[2].item_key[:16])
    (side,) = answers_of(app)
    assert side["sides"][1]["pieces"][0][0].startswith("<script>")
    assert side["choices"] == []
    assert not any("script" in text for text in markup_of(app))


def test_odd_likelihoods_are_no_choices() -> None:
    (flip,) = flips_of([ITEMS[0]])
    odd = {"log_likelihoods": {"A": "-Infinity", "B": 0.0}}
    known = flip.model_copy(update={"branch": Answer(score=0.0, text="B", detail=odd)})
    assert [choice.branch.share for choice in answer_choices(known)] == [0.0, 1.0]
    for detail in ({"log_likelihoods": {}}, {"log_likelihoods": {"A": "NaN"}}, {"log_likelihoods": 3}, {}):
        bare = Answer(score=0.0, text="B", detail=detail)
        assert all(choice.branch is None for choice in answer_choices(flip.model_copy(update={"branch": bare})))
