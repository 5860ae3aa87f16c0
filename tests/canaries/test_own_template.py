"""A branch whose chat template is declared to be its own is asked by that one, and compared prompt by prompt."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from q36eval.canaries.cases import Case, cases_of
from q36eval.canaries.probe import CanaryProbe
from q36eval.canaries.specification import load_specs
from q36eval.checkpoints import load_tokenizer
from q36eval.probes import OwnPrompts
from q36eval.records import ProbeName
from tests.canaries.runs import BF16, Said, Scripted, Told, right, run_of

SPECS = load_specs(only=["json-flat", "tool-call", "enum-select-must-pass"], n=3, skills=None)
CASES = [case for spec in SPECS for case in cases_of(spec)]
WITHOUT_TOOLS, TOOLS = [case for case in CASES if not case.tools], {case.question for case in CASES if case.tools}
REPAIR = "<|im_start|>system\nAnswer as you are asked.<|im_end|>"
RAISES = "{%- if tools -%}{{ raise_exception('No tools here.') }}{%- endif -%}\n"


def templated(before: str = "") -> Any:
    """The sandbox's, its template changed: that text comes first."""
    own = load_tokenizer(BF16)
    own.chat_template = before + own.chat_template
    return own


def gated(
    place: Path, reference: Scripted, branch: Scripted, *, declared: bool = True
) -> tuple[Told, Mapping[ProbeName, OwnPrompts]]:
    kept = dict[ProbeName, OwnPrompts]()
    return run_of(CanaryProbe(SPECS), branch, place, reference, own_template=kept.update if declared else None), kept


def asked(own: Any, said: Said = right, cases: Sequence[Case] = CASES) -> Scripted:
    """Knows answers to its own template's prompts alone."""
    return Scripted(own, cases, said)


def test_both_are_asked_by_their_own_template_and_paired_by_prompt(tmp_path: Path) -> None:
    """The branch is taught the reference's answer after its own prompt."""
    plain, repaired = templated(), templated(REPAIR)
    reference, branch = asked(plain), asked(repaired)
    sink, kept = gated(tmp_path, reference, branch)
    assert sink.items.keys() == {item.key for item in CanaryProbe(SPECS).plan(plain)}
    assert all((each.branch.score, each.reference.score) == (1.0, 1.0) for each in sink.items.values())
    begin = tuple(repaired.encode(REPAIR, add_special_tokens=False))
    assert all(request.token_ids[: len(begin)] == begin for request in branch.asked)
    assert not any(request.token_ids[: len(begin)] == begin for request in reference.asked)
    of = kept[ProbeName.CANARIES]
    assert (of.prompts, of.differing, of.unwritten) == (len(sink.items), len(sink.items), 0)
    assert of.first[2] == REPAIR + of.first[1]

    theirs = {request.key: request.token_ids[request.first :] for request in reference.scored}
    assert theirs
    prompts = {request.key: request.token_ids for request in branch.asked}
    assert {request.key for request in branch.scored} == theirs.keys()
    for request in branch.scored:
        assert request.token_ids[request.first :] == theirs[request.key]
        assert request.token_ids[: request.first] == prompts[request.key.removesuffix("/taught")]


def test_flips_are_asked_again_by_the_branchs_own_template(tmp_path: Path) -> None:
    def wrong(case: Case) -> tuple[str, str]:
        return ("no answer", "stop") if case.must_pass else right(case)

    branch = asked(templated(REPAIR), wrong)  # which knows no other prompts
    sink, _ = gated(tmp_path, asked(templated()), branch)
    again = [request for request in branch.asked if request.key.endswith(("/four", "/alone"))]
    assert again
    assert [each.flip for each in sink.items.values() if each.must_pass] == ["regression"] * (len(again) // 2)


def test_what_the_branchs_template_does_not_write_is_errored_and_never_wrong(tmp_path: Path) -> None:
    branch = asked(templated(RAISES), cases=WITHOUT_TOOLS)
    sink, kept = gated(tmp_path, asked(templated()), branch)
    assert kept[ProbeName.CANARIES].unwritten == len(TOOLS) > 0
    assert len(sink.items) == kept[ProbeName.CANARIES].prompts, "none is dropped"
    for outcome in sink.items.values():
        assert outcome.reference.score == 1.0
        if outcome.cluster in TOOLS:
            assert outcome.branch.score is None
            assert "does not write this conversation: No tools here." in (outcome.branch.error or "")
        else:
            assert outcome.branch.score == 1.0
    errored = {key: figure.counts.errored for key, figure in sink.measurements.items()}
    assert len(TOOLS) in errored.values(), errored


def test_what_the_references_template_does_not_write_says_nothing(tmp_path: Path) -> None:
    for declared, branch in ((False, asked(templated(RAISES), cases=WITHOUT_TOOLS)), (True, asked(templated()))):
        sink, _ = gated(tmp_path, asked(templated(RAISES), cases=WITHOUT_TOOLS), branch, declared=declared)
        unwritten = [each for each in sink.items.values() if each.cluster in TOOLS]
        assert len(unwritten) == len(TOOLS)
        for outcome in unwritten:
            assert (outcome.branch.score, outcome.reference.score) == (None, None)
            assert outcome.flip not in ("regression", "gain")
            assert outcome.branch.error == outcome.reference.error
        assert all(each.branch.score == 1.0 for each in sink.items.values() if each.cluster not in TOOLS)
