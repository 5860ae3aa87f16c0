"""Which policies ask at least what the declared one does: each way to ask less, one at a time, is found."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from q36eval.gate import Policy, decide
from q36eval.gate.covering import DECLARED, Shortfall, declaration, policy_note, shortfall
from q36eval.gate.policy_file import read_policy
from q36eval.records import Lane

SHIPPED = Path(__file__).parents[3] / "data" / "policies"
BOTH = tuple(Lane)


def shipped(name: str) -> Policy:
    return read_policy(SHIPPED / f"{name}.yaml")


def lanes_covered(policy: Policy, declared: Policy) -> list[Lane]:
    return [lane for lane in Lane if shortfall(policy, declared, (lane,)) is None]


@pytest.mark.parametrize(
    ("name", "lanes"),
    [
        ("release", list(Lane)),
        ("strict", list(Lane)),
        ("release-structured", [Lane.STRUCTURED]),
        ("release-freeform", [Lane.FREEFORM]),
        ("pre-check", []),
        ("sandbox", []),
    ],
)
def test_which_shipped_policies_speak_for_release(name: str, lanes: list[Lane]) -> None:
    assert lanes_covered(shipped(name), shipped("release")) == lanes


def test_what_release_asks_less_than_strict() -> None:
    found = shortfall(shipped("release"), shipped("strict"), BOTH)
    assert found is not None
    assert found.missing == ("mmlu-czech", "mmlu-pro", "gsm8k", "ifeval", "math-500")
    assert {"kl", "perplexity", "ruler", "failures-structured", "failures-freeform"} <= set(found.looser)
    assert found.words.startswith("5 criteria are missing, ")


def changed(policy: Policy, place: int, **changes: Any) -> Policy:
    document = policy.model_dump(mode="json")
    document["criteria"][place] |= changes
    return Policy.model_validate(document)


def mutations(policy: Policy) -> Iterator[tuple[str, Policy, str]]:
    """Every blocking criterion asked less of in every way that it has: (which way, the policy, the criterion)."""
    for place, one in enumerate(policy.criteria):
        if one.tier != "blocking":
            continue
        document, margin = policy.model_dump(mode="json"), one.margin.model_dump(mode="json")
        named = {other.margin.of for other in policy.criteria}
        if one.id not in named:
            kept = [other for other in document["criteria"] if other["id"] != one.id]
            yield "dropped", Policy.model_validate({**document, "criteria": kept}), one.id
        yield "advisory", changed(policy, place, tier="advisory"), one.id
        looser = margin["value"] * 0.9 if one.margin.kind.startswith("min_") else margin["value"] * 1.1 + 0.001
        yield "margin", changed(policy, place, margin={**margin, "value": looser}), one.id
        if one.margin.schemes:
            yield "scheme dropped", changed(policy, place, margin={**margin, "schemes": ()}), one.id
            mixture = {"scheme": "W4A16 + NVFP4", "value": margin["value"], "source": "a trick"}
            tricked = {**margin, "schemes": [*margin["schemes"], mixture]}
            yield "mixture", changed(policy, place, margin=tricked), one.id
        if one.margin.beyond is not None:
            yield "threshold", changed(policy, place, margin={**margin, "beyond": margin["beyond"] * 2}), one.id
        if one.margin.beyond_margins is not None:
            farther = {**margin, "beyond_margins": margin["beyond_margins"] * 2}
            yield "threshold", changed(policy, place, margin=farther), one.id
        if one.min_scored > 1:
            yield "items", changed(policy, place, min_scored=one.min_scored - 1), one.id
        if one.min_clusters is not None:
            yield "clusters", changed(policy, place, min_clusters=one.min_clusters - 1), one.id
        if one.informative is not None:
            least = one.informative.model_dump()
            yield "reference", changed(policy, place, informative={**least, "min_weight": 0.1}), one.id
        if not one.waivable:
            yield "waivable", changed(policy, place, waivable=True), one.id
        yield "confidence", changed(policy, place, confidence=0.9), one.id
        yield "slice", changed(policy, place, slice=f"{one.slice}-other"), one.id
        if len(one.lanes) > 1:
            yield "lanes", changed(policy, place, lanes=["freeform"]), one.id


@pytest.mark.long
@pytest.mark.parametrize("name", ["release", "sandbox"])
def test_whatever_is_asked_less_is_found(name: str) -> None:
    declared, ways = shipped(name), set()
    assert shortfall(declared, declared, BOTH) is None
    for way, policy, criterion in mutations(declared):
        found = shortfall(policy, declared, BOTH)
        assert found is not None, (way, criterion)
        assert criterion in (*found.missing, *found.looser), (way, criterion)
        ways.add(way)
    assert len(ways) >= 10


def test_more_is_not_less() -> None:
    declared = shipped("release")
    kl = next(place for place, one in enumerate(declared.criteria) if one.id == "kl")
    margin = declared.criteria[kl].margin.model_dump(mode="json")
    stricter = changed(declared, kl, margin={**margin, "value": 0.09}, min_clusters=200, confidence=0.99, title="Mine")
    renamed = stricter.model_copy(update={"name": "ours", "description": "stricter", "max_attempts": 1})
    assert shortfall(renamed, declared, BOTH) is None
    assert shortfall(declared, renamed, BOTH) == Shortfall(
        looser=("kl", "kl-worst-documents"), besides=("it allows more attempts without a signature",)
    ), "what counts in margins of a wider one begins farther out"


def test_a_lane_that_the_declared_policy_does_not_judge_is_spoken_for_by_none() -> None:
    assert lanes_covered(shipped("release"), shipped("release-freeform")) == [Lane.FREEFORM]


def test_a_report_says_that_its_policy_asks_less_than_the_familys() -> None:
    """Not of a pre-check, which says itself that it releases nothing, nor of one lane alone that is asked in full."""
    declared = shipped("sandbox")
    less = declared.model_copy(update={"name": "small", "criteria": declared.criteria[:3]})
    freeform = declared.model_copy(
        update={
            "criteria": tuple(
                c.model_copy(update={"lanes": (Lane.FREEFORM,)}) for c in declared.criteria if Lane.FREEFORM in c.lanes
            )
        }
    )

    def note(policy: Policy) -> str | None:
        known = declaration(policy, declared, lanes=BOTH, size_bytes=None, is_reference=False)
        return policy_note(decide(policy, ()), {DECLARED: known.model_dump(mode="json")})

    blocking = [criterion for criterion in declared.criteria if criterion.tier == "blocking"]
    missing = len(blocking) - len({one.id for one in blocking} & {one.id for one in less.criteria})
    said = note(less)
    assert said is not None
    assert [one for one in ("`small`", "`sandbox`", f"{missing} criteria") if one not in said] == []
    assert note(less.model_copy(update={"purpose": "pre-check"})) is None
    assert note(freeform) is None
    assert note(declared) is None
    assert policy_note(decide(less, ()), {}) is None
