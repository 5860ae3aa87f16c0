"""What `q36eval evals` prints, its JSON, the Markdown report and the page, over one small run of known outcomes."""

import json
from pathlib import Path
from typing import Any

import pytest

from q36eval.app.cli.evals_report import evals_body, print_summary
from q36eval.app.figures.answers import MOST_PROMPT, shortened
from q36eval.app.figures.evals import flip_size, flips_of, largest, select
from q36eval.evals.paired_clusters import PlannedItem
from q36eval.evals.summaries import suite_measurements
from q36eval.gate import decide
from q36eval.history import History, RunRecord
from q36eval.records import Answer, ItemOutcome, ProbeName
from q36eval.reports import Document, to_json
from q36eval.reports.markdown_report import to_markdown
from tests.app.dashboard.written_history import record
from tests.evals.test_summaries import MMLU, PERPLEXITY, RULER
from tests.outcomes import outcome
from tests.q36eval.gate.evidence import only

HOSTILE = "[red]<script>alert(1)</script>\x1b[31m\u202e ![x](http://x/y)"

TEXT = PERPLEXITY.model_copy(update={"slice_fields": ()})


def choice(number: int, margins: tuple[float, float], subject: str) -> ItemOutcome:
    """A question that is right where the margin is above zero."""
    sides = [
        Answer(
            score=float(margin > 0),
            text="A" if margin > 0 else "B",
            detail={"log_likelihoods": {"A": -1.0, "B": -1.0 - margin}, "margin_nats": margin, "seconds": 0.5},
        )
        for margin in margins
    ]
    prompt = f"Question {number}? {HOSTILE}\nAnswer:"
    return item(number, "mmlu", subject, *sides, prompt=prompt, expected="A")


def item(number: int, group: str, stratum: str, branch: Answer, reference: Answer, **fields: Any) -> ItemOutcome:
    known = {"group": group, "item_key": f"{group}{number:060}", "stratum": stratum}
    return outcome(ProbeName.EVALS, f"{group} {number}", branch, reference, **known, **fields)


PLANNED = [
    PlannedItem(f"{group}{i}", group, f"{group}{i}", "planned/0", 0)
    for group, items in (("mmlu", 500), ("ruler", 12))
    for i in range(items)
]


def outcomes() -> list[ItemOutcome]:
    """40 questions (3 lost, 1 gained, 1 errored), 4 needles at each of three lengths (1 lost half), one document."""
    found = [choice(i, (1.0, 2.0), "law" if i % 2 else "music") for i in range(35)]
    found += [choice(35, (-0.5, 0.5), "law"), choice(36, (-9.0, 0.25), "law"), choice(37, (-1.0, 1.0), "music")]
    found += [choice(38, (0.5, -0.5), "music")]
    gone = Answer(score=None, error="out of memory")
    found.append(item(39, "mmlu", "law", gone, Answer(score=1.0, text="A")))
    for number in range(12):
        lost = number == 7
        length = (512, 1024, 16384)[number // 4]
        branch = Answer(score=0.5 if lost else 1.0, text=HOSTILE if lost else "here")
        stratum = f"{'vt' if number % 2 else 'qa'}/{length}"
        prompt = f"Find it. {'x ' * 3000}Where?"
        found.append(
            item(number, "ruler", stratum, branch, Answer(score=1.0, text="here"), prompt=prompt, expected="here")
        )
    counted = {"tokens": 10, "words": 4}
    nll = [Answer(score=nats / 10, detail=counted | {"nll_nats": nats}) for nats in (10.0, 9.0)]
    return [*found, item(0, "perplexity", "all", *nll)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunRecord]:
    path = tmp_path_factory.mktemp("evals") / "history.sqlite"
    return path, record(path, outcomes(), list(suite_measurements([MMLU, RULER, TEXT], outcomes(), PLANNED)))


Run = tuple[Path, RunRecord]


def test_the_text_of_a_flip_is_printed_as_text(run: Run, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    print_summary(run[1], History.open(run[0]))
    text = str(capsys.readouterr().out)
    assert "[red]<script>" in text
    assert "\x1b" not in text


def test_flips_are_those_of_answers_and_the_largest_margins_lead() -> None:
    flips = flips_of([*outcomes(), *(o.model_copy(update={"probe": ProbeName.CANARIES}) for o in outcomes())])
    assert [f.flip for f in flips] == ["regression"] * 4 + ["improvement"]
    losses = [flip_size(f) for f in flips[:3]]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] == (1.0, 9.25)
    perplexity = item(1, "perplexity", "all", *(Answer(score=s, detail={"nll_nats": s}) for s in (0.5, 1.0)))
    assert flips_of([perplexity]) == [], "nats are no marks"
    assert [f.group for f in largest(flips, 3)] == ["mmlu", "ruler", "mmlu", "mmlu"]
    assert select(flips, "ruler", "lost") == [f for f in flips if f.group == "ruler"]
    assert select(flips, "all", "gained") == flips[4:]


def test_json_holds_every_flip_with_prompt_answers_and_margins(run: Run) -> None:
    history = History.open(run[0])
    body = evals_body(run[1], history)
    json.dumps(body, allow_nan=False)
    assert len(body["flips"]) == 5
    first = body["flips"][0]
    assert first["prompt"].startswith("Question 36?")
    assert first["reference"]["detail"]["margin_nats"] == 0.25
    assert first["branch"]["detail"]["log_likelihoods"] == {"A": -1.0, "B": 8.0}
    mmlu = body["evals"]["groups"]["mmlu"]
    assert {name: mmlu[name] for name in ("items_lost", "items_gained", "scored", "errored", "planned")} == {
        "items_lost": 3,
        "items_gained": 1,
        "scored": 39,
        "errored": 1,
        "planned": 500,
    }
    assert mmlu["recovery_interval"] == ["NaN", "NaN"], "more than 1 % errored"
    assert body["evals"]["effective_length"]["ruler"]["by_value"] == 512
    assert body["evals"]["seconds"] == {"mmlu": 19.5, "suite": 19.5}


def test_reports_show_recovery_flips_and_counts_and_ask_what_the_policy_asks(run: Run) -> None:
    history = History.open(run[0])
    found = history.measurements(run[1].id)
    of = {"id": "ruler", "probe": "evals", "metric": "accuracy", "slice": "ruler"}
    strict = decide(only("min_recovery", 0.99, **of), found, (), (), on=run[1].started.date())
    assert "| 39 of 500 | 1 |" in to_markdown(Document(strict, run[1], found))
    assert "## Evals" not in to_markdown(Document(strict, run[1]))
    document = json.loads(to_json(Document(strict, run[1], found)))
    assert document["evals"]["groups"]["ruler"]["items_lost"] == 1
    assert document["evals"]["effective_length"]["ruler"]["at_least"] == 0.99
    assert json.loads(to_json(Document(strict, run[1])))["evals"] is None


def test_long_prompts_keep_their_beginning_and_end() -> None:
    text = "start" + "x" * 10_000 + "end"
    short = shortened(text)
    assert short.startswith("start")
    assert short.endswith("end")
    assert f"{len(text) - MOST_PROMPT:,} characters" in short
    assert shortened("whole") == "whole"
