"""Everything that a person types or reads has words of its own: commands, options, sentences."""

import csv
import re
from pathlib import Path

import pytest

from benchmarks import words

COMMANDS = dict(words.command_tree())


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_says_what_it_does(name: str) -> None:
    text = COMMANDS[name].help or ""
    assert text[:1].isupper(), name
    assert text.rstrip().endswith("."), name


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_what_it_is_for(name: str) -> None:
    for option, text in words.options_of(COMMANDS[name]):
        assert text[:1].isalnum(), f"{name} {option}: {text!r}"
        assert text.endswith("."), f"{name} {option}: {text!r}"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_speaks_the_fields_words(name: str) -> None:
    """Evaluated, not asked; reported, not told; remaining, not left; resolved early, not settled."""
    texts = [COMMANDS[name].help or "", *(text for _, text in words.options_of(COMMANDS[name]))]
    assert [text for text in texts if re.search(r"\b(asks?|asked|told|settled|left)\b", text)] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_shows_a_whole_sentence(name: str) -> None:
    """It cuts what is longer."""
    first = (COMMANDS[name].help or "").split("\n\n")[0].split(". ")[0]
    assert len(first) <= 60 or name == "q36eval", first


def test_every_metric_has_a_title_and_a_sentence() -> None:
    metrics = [sentence for sentence in words.judged_sentences() if sentence.kind == "metric"]
    assert metrics
    for sentence in metrics:
        title, _, meaning = sentence.text.partition(": ")
        assert title[:1].isupper() or title[:1].isdigit(), sentence
        assert meaning[:1].isupper(), sentence
        assert meaning.endswith("."), sentence


def test_every_criterion_of_the_shipped_policies_has_a_title() -> None:
    criteria = [sentence for sentence in words.judged_sentences() if sentence.kind == "criterion"]
    assert criteria
    untitled = [sentence for sentence in criteria if not sentence.text or sentence.text == sentence.where.split()[1]]
    assert untitled == []


def test_the_extraction_finds_each_kind_of_sentence() -> None:
    source = '''
"""A docstring is read by programmers."""
class MissingError(Q36Error): ...
def check(name, progress):
    progress.stage(f"reading {name.text}", 1)
    raise MissingError(f"There is no {name}; " + "name another one.") from error
'''
    texts = {
        "kl/some.py": source,
        "q36eval/errors.py": "class Q36Error(Exception): ...",
        "tests/test_x.py": "say('no')",
    }
    assert set(words.source_sentences(texts)) == {
        words.Sentence("stage", "reading {text}", "q36eval.kl.some"),
        words.Sentence("error", "There is no {name}; name another one.", "q36eval.kl.some"),
    }


def test_the_table_keeps_what_stood_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "words.tsv"

    def written(texts: tuple[str, ...], restart: bool) -> list[tuple[str, str]]:
        monkeypatch.setattr(words, "all_sentences", lambda: iter([words.Sentence("page", text, "m") for text in texts]))
        words.write(table, restart=restart)
        with table.open(encoding="utf-8", newline="") as file:
            return [(row["state"], row["text"]) for row in csv.DictReader(file, delimiter="\t")]

    assert written(("kept", "old"), True) == [("both", "kept"), ("both", "old")]
    expected = [("both", "kept"), ("now", "new"), ("before", "old")]
    assert written(("kept", "new"), False) == expected
    assert written(("kept", "new"), False) == expected


def test_the_table_of_sentences_is_current() -> None:
    """So that a reviewer sees every sentence that changes, in one place."""
    with (Path(__file__).parents[2] / "docs" / "words.tsv").open(encoding="utf-8", newline="") as file:
        table = {(row["kind"], row["text"]) for row in csv.DictReader(file, delimiter="\t") if row["state"] != "before"}
    now = set(words.rows(words.all_sentences()))
    differing = sorted(table ^ now)
    assert not differing, f"write it anew: python -m benchmarks.words docs/words.tsv ({differing[:3]} …)"
