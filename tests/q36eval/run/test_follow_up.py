"""What is asked in a second step of reference and branch, and what a branch is asked again before it is believed."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from q36eval.engines import ScoreRequest
from q36eval.engines.base import GenerationRequest
from q36eval.errors import UsageError
from q36eval.probes import Digest, FollowUp, ItemResults, WorkItem
from q36eval.records import Answer, ItemOutcome, ProbeName
from tests.q36eval.run.runner import CountingEngine, LengthProbe, MemorySink, kept, outcome
from tests.q36eval.run.runner import run as run_with
from tests.raising import raises


class Speaker(CountingEngine):
    """Says something right; in the groups `wrong` something else."""

    def __init__(self, wrong: Collection[str] = (), broken: Collection[str] = ()) -> None:
        super().__init__(broken=broken)
        self.wrong = wrong

    def text_of(self, request: GenerationRequest) -> str:
        return "wrong" if request.group in self.wrong else "right"


class Steps(LengthProbe):
    """Three questions; each answer of the reference is scored too, and a wrong one of the branch asked again."""

    name = ProbeName.CANARIES

    def __init__(self) -> None:
        super().__init__()
        self.compared: dict[str, Digest] = {}
        self.results: dict[str, ItemResults] = {}

    def plan(self, tokenizer: Any) -> list[WorkItem]:
        return [WorkItem(f"q{n}", generations=(GenerationRequest(f"q{n}", tuple(range(n + 1)), 9),)) for n in range(3)]

    def digest(self, engine: Any, item: WorkItem, results: ItemResults) -> Digest:
        return Digest(values={"answer": list(results.generated[item.key].token_ids)})

    def follow_up(self, item: WorkItem, first: Digest) -> FollowUp:
        asked = item.generations[0]
        answer = tuple(first.values["answer"])
        score = ScoreRequest(item.key + "/score", asked.token_ids + answer, first=len(asked.token_ids))
        repeat = GenerationRequest(item.key + "/repeat", asked.token_ids, 9, group="alone")
        return FollowUp(scores=(score,), repeats=(repeat,))

    def digest_follow_up(self, engine: Any, item: WorkItem, first: Digest, results: ItemResults) -> Digest:
        states = results.scored[item.key + "/score"].hidden_states
        return Digest(values={"scored": float(states[0, 0]), "repeat": results.generated[item.key + "/repeat"].text})

    def compare(self, engine: Any, item: WorkItem, results: ItemResults, reference: Digest) -> list[ItemOutcome]:
        self.compared[item.key], self.results[item.key] = reference, results
        error = results.error or reference.error
        score = None if error is not None else float(results.generated[item.key].text == "right")
        return [outcome(self.name, item.key, Answer(score=score, error=error))]

    def doubtful(self, outcomes: Sequence[ItemOutcome]) -> list[WorkItem]:
        return [
            WorkItem(o.item_key, generations=(GenerationRequest(o.item_key + "/again", (1,), 9, group="alone"),))
            for o in outcomes
            if o.branch.score == 0.0 and "again" not in o.branch.detail
        ]

    def confirmed(self, item: WorkItem, results: ItemResults, outcome: ItemOutcome) -> ItemOutcome:
        again = results.generated[item.key + "/again"]
        branch = outcome.branch.model_copy(update={"detail": {"again": again.text}, "error": again.error})
        return outcome.model_copy(update={"branch": branch})


class Parts(Steps):
    """The three questions, and one of a person's own beside them; `shipped` stands for what the three ask."""

    def __init__(self, own: bool, shipped: str = "three") -> None:
        super().__init__()
        self.own = own
        self.suite_fields = {"shipped": shipped, "own": "one" if own else ""}
        self.suite_sha256 = f"{shipped}{own}"

    def plan(self, tokenizer: Any) -> list[WorkItem]:
        mine = WorkItem("mine", generations=(GenerationRequest("mine", (5, 5), 9, group="own"),))
        return [*super().plan(tokenizer), *([mine] if self.own else [])]

    def part_of(self, key: str) -> str:
        return "own" if key == "mine" else "shipped"


def run(
    tmp_path: Path, branch: Any, reference: Any, sink: MemorySink | None = None, probe: Steps | None = None
) -> tuple[Steps, MemorySink]:
    """One run of `Steps`; `reference` None: only what was captured is at hand."""
    probe = probe or Steps()
    ran = run_with(tmp_path, probe, branch, reference, sink, pack_alone=reference is None)
    assert not ran.sink.failures
    return probe, ran.sink


def test_both_are_scored_on_the_references_answer_which_is_captured_with_it(tmp_path: Path) -> None:
    reference, branch = Speaker(), Speaker()
    probe, _ = run(tmp_path, branch, reference)
    assert reference.asked == [f"q{number}{step}" for step in ("", "/score", "/repeat") for number in range(3)]
    assert branch.asked == ["q0/score", "q1/score", "q2/score", "q0", "q1", "q2"]
    # a prompt of three tokens and an answer of three: both deployments read six
    assert probe.compared["q2"].values == {"answer": [0, 1, 2], "scored": 6.0, "repeat": "right"}
    assert float(probe.results["q2"].scored["q2/score"].hidden_states[0, 0]) == 6.0
    capture = kept(tmp_path, ProbeName.CANARIES)
    assert capture.manifest is not None
    assert sorted(capture) == ["q0", "q0/then", "q1", "q1/then", "q2", "q2/then"]
    probe, _ = run(tmp_path, Speaker(), None)
    assert probe.compared["q1"].values["scored"] == 4.0


def test_a_second_step_that_errored_is_asked_again_and_nothing_else(tmp_path: Path) -> None:
    run(tmp_path, Speaker(), Speaker(broken={"q1/repeat"}))
    assert kept(tmp_path, ProbeName.CANARIES).manifest is None
    with raises(UsageError, "pack-lacks-items", "1 of", "3 items"):
        run(tmp_path, Speaker(), None)
    whole = Speaker()
    probe, _ = run(tmp_path, Speaker(), whole)
    assert whole.asked == ["q1/score", "q1/repeat"]
    assert probe.compared["q1"].values["repeat"] == "right"


def test_a_second_step_of_another_answer_is_refused(tmp_path: Path) -> None:
    run(tmp_path, Speaker(), Speaker())
    again = kept(tmp_path, ProbeName.CANARIES)
    again.add("q1", Digest(values={"answer": [7, 7]}), again.asked("q1"))
    again.finish(list(again))
    with raises(UsageError, "capture-tokens-differ"):
        run(tmp_path, Speaker(), None)


def test_what_the_branch_got_wrong_is_asked_again_once_also_after_a_kill(tmp_path: Path) -> None:
    branch = Speaker(wrong={"canaries"})
    _, sink = run(tmp_path, branch, Speaker())
    assert branch.asked[-3:] == ["q0/again", "q1/again", "q2/again"]
    assert [item.branch.detail["again"] for item in sink.items[-3:]] == ["right"] * 3
    resumed = Speaker()
    run(tmp_path, resumed, None, MemorySink(sink.items[:3]))  # what was written before anything was asked again
    assert resumed.asked == ["q0/again", "q1/again", "q2/again"]
    done = Speaker()
    run(tmp_path, done, None, MemorySink(sink.items[3:]))
    assert done.asked == []


def test_a_question_of_ones_own_costs_the_reference_its_own_answer_alone(tmp_path: Path) -> None:
    first, second, third = Speaker(), Speaker(), Speaker()
    before, _ = run(tmp_path, Speaker(), first, probe=Parts(own=False))
    assert len(first.asked) == 9
    after, _ = run(tmp_path, Speaker(), second, probe=Parts(own=True))
    assert second.asked == ["mine", "mine/score", "mine/repeat"]
    assert {key: digest.values for key, digest in after.compared.items() if key != "mine"} == {
        key: digest.values for key, digest in before.compared.items()
    }
    assert after.compared["mine"].values["scored"] == 4.0
    run(tmp_path, Speaker(), third, probe=Parts(own=True, shipped="others of the same keys"))
    assert len(third.asked) == 9  # the part that changed is asked anew; one's own is taken over
    assert "mine" not in third.asked
