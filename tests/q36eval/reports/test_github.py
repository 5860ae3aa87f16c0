"""What a GitHub runner would read: an independent reading of its commands, and its limits."""

import re

import pytest
from markdown_it import MarkdownIt

from q36eval.gate import Policy, decide
from q36eval.inert_text import fenced, plain
from q36eval.reports import Document, to_annotations
from q36eval.reports.deciding_answers import DecidingAnswer
from q36eval.reports.github_report import SUMMARY_LIMIT_BYTES, to_summary, unjudged_annotation, unjudged_summary
from tests.q36eval.reports.report_samples import (
    HOSTILE,
    clean_report,
    criterion,
    hostile_report,
    measured,
    run_of,
    with_distances,
)


def commands(log: str) -> list[tuple[str, dict[str, str], str]]:
    """Level, properties and message of each command, as the runner documents them."""
    found = []
    for line in re.split(r"\r\n|\r|\n", log):
        if match := re.fullmatch(r"\s*::([a-z-]+)(?: ([^:]*))?::(.*)", line):
            pairs = (pair.split("=", 1) for pair in (match[2] or "").split(",") if pair)
            found.append((match[1], {name: unescaped(value) for name, value in pairs}, unescaped(match[3])))
    return found


def unescaped(text: str) -> str:
    for code, character in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(code, character)
    return text


def test_annotations_say_the_verdict_and_what_decided() -> None:
    found = commands("\n".join(to_annotations(Document(with_distances(hostile_report()), run_of("int2")))))
    assert found[0] == ("error", {"title": "q36eval of sandbox/int2"}, found[0][2])
    assert found[0][2].startswith("FAIL (policy p ")
    errors = {title["title"]: message for level, title, message in found[1:] if level == "error"}
    assert set(errors) == {"Bad (bad)", "Accuracy (facts) (facts)", "KL divergence from the reference (kl)"}
    assert "outside the margin by at least 1.25 points" in errors["Accuracy (facts) (facts)"]
    warnings = {title["title"]: message for level, title, message in found if level == "warning"}
    assert set(warnings) == {"Gone (gone)", "Hint (hint)"}
    assert warnings["Hint (hint)"].startswith("FAIL (advisory)")
    assert commands("\n".join(to_annotations(Document(clean_report())))) == [
        ("notice", {"title": "q36eval"}, "PASS (policy p)")
    ]


def test_no_text_is_a_command_of_its_own() -> None:
    lines = to_annotations(Document(hostile_report(waive=True), run_of()))
    log = "\n".join(lines)
    assert len(commands(log)) == len(lines) == len(re.split(r"[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]", log))
    assert {level for level, _, _ in commands(log)} <= {"error", "warning"}
    assert any("%0A {{x}}" in message for _, _, message in commands(log))  # a percent sign stays one
    assert not re.search(r"##\w*\[", log)
    assert max(map(len, lines)) < 4096


@pytest.mark.parametrize("per_level", [1, 2, 5, 10])
def test_of_a_level_so_many_are_shown_and_the_last_says_how_many_more(per_level: int) -> None:
    """GitHub counts a step's annotations, not a branch's: the last branches' verdicts were dropped without a word."""
    blocking = tuple(criterion(f"c{i}") for i in range(30))
    advisory = tuple(criterion(f"a{i}", "advisory") for i in range(30))
    judged = decide(Policy(name="p", criteria=(*blocking, *advisory)), [])
    found = commands("\n".join(to_annotations(Document(judged), per_level=per_level)))
    errors = [message for level, _, message in found if level == "error"]
    assert (len(errors), len(found)) == (per_level, 2 * per_level)
    assert errors[0].startswith("INCONCLUSIVE")
    assert per_level == 1 or errors[-1].startswith(f"and {31 - (per_level - 1)} more")
    shown = to_annotations(Document(judged))
    assert len(shown) == 20, "by default ten of each"


def test_a_branch_without_a_report_is_an_error_and_a_line_of_the_summary() -> None:
    (found,) = commands(unjudged_annotation(HOSTILE, HOSTILE))
    assert found[0] == "error"
    assert found[2].startswith("not judged: ")
    summary = unjudged_summary(HOSTILE, HOSTILE)
    assert summary.startswith("# Not judged: ")
    assert "<script" not in summary
    assert summary.count("\n") == 3
    assert unjudged_summary("main", HOSTILE, limit_bytes=30) == ""


@pytest.mark.parametrize(
    "text", [":::error file=a:::x", "a ::::stop-commands x::::y", "###[error]x", ":::add-mask y:::z", "##vso[task]x"]
)
def test_no_line_of_a_broken_text_is_a_command(text: str) -> None:
    """A terminal breaks lines at spaces, so that any word of it may begin one."""
    words = plain(text).split(" ")
    for first in range(len(words)):
        assert commands(" ".join(words[first:])) == []
    assert not re.search(r"##\w*\[", plain(text))


def test_no_line_of_an_answer_is_a_command() -> None:
    """Answers stand in Markdown line by line, and `report` prints them into a log; code keeps its colons."""
    said = fenced("a\n  ::stop-commands::x\n:::error::y\nstd::move ##[add-mask]z\n\U000e0041")
    assert commands("\n".join(said)) == []
    assert not re.search(r"##\w*\[", "\n".join(said))
    assert "std::move # #[add-mask]z" in said
    assert said[-2] == "\ufffd"


ANSWER = DecidingAnswer("a-canary", "What?\n```\n<details>\n", "this", "</details>\n" * 40, required=True)


def test_a_summary_that_is_too_long_is_the_verdict_alone_or_nothing() -> None:
    document = Document(hostile_report(), run_of(), measured(), (ANSWER, ANSWER))
    whole = to_summary(document)
    brief = to_summary(document, limit_bytes=len(whole.encode()) - 1)
    assert "## Decided by" in brief
    assert "Shortened: " in brief
    assert "a-canary" not in brief
    assert "<details" not in brief
    assert to_summary(document, limit_bytes=len(brief.encode())) == brief
    assert to_summary(document, limit_bytes=len(brief.encode()) - 1) == ""
    assert SUMMARY_LIMIT_BYTES == 2**20


def test_a_summary_shows_the_verdict_and_the_prompts_and_folds_the_tables() -> None:
    summary = to_summary(Document(with_distances(hostile_report()), run_of(), measured(), (ANSWER,)))
    # as GitHub reads it, nothing is left open: code blocks and folded parts end before the text does
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(summary)
    blocks = "".join(token.content for token in tokens if token.type in ("html_block", "html_inline"))
    assert blocks.count("<details") == blocks.count("</details>")
    shown = re.sub(r"<details>.*?</details>", "", summary, flags=re.DOTALL)
    assert next(line for line in shown.splitlines() if line.startswith("#")).startswith("# FAIL")
    order = [shown.index(words) for words in ("| structured |", "## Decided by", "a-canary")]
    assert order == sorted(order)
    assert "| criterion |" not in shown
    assert "| criterion |" in summary
    assert "<details><summary>Criteria</summary>" in summary
