"""Cheap evidence first, and nothing asked once the verdict stands: which items, which figures, what is said."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from q36eval.engines import Engine, ScoreRequest
from q36eval.engines.base import GenerationRequest, Scored
from q36eval.errors import EngineError, UsageError
from q36eval.gate import StageState
from q36eval.probes import Digest, FollowUp, ItemResults, Probe, Progress, WorkItem
from q36eval.records import Answer, ItemOutcome, Measurement, ProbeName, Schedule
from q36eval.run.capture import ReferenceAnswers
from q36eval.run.items import Work
from q36eval.run.progress import Estimate
from tests.q36eval.run.runner import CountingEngine, LengthProbe, MemorySink, kept, measured, outcome, run, scoring
from tests.q36eval.stats.evidence import items
from tests.raising import raises


class Staged(LengthProbe):
    """Items of two stages, or of blocks; its one figure is how many were asked."""

    suite_sha256 = "staged"

    def __init__(self, name: ProbeName, stages: Sequence[str], laid_out: bool = False) -> None:
        super().__init__(0)
        self.name, self.stages, self.laid_out = name, stages, laid_out

    def plan(self, tokenizer: Any) -> list[WorkItem]:
        keys = [f"{self.name}/{stage or 'all'}/{i}" for stage in self.stages for i in range(2)]
        return [
            scoring(
                key,
                stage=self.stages[number // 2],
                task="t" if self.laid_out else "",
                block=number % 2 if self.laid_out else 0,
            )
            for number, key in enumerate(keys)
        ]

    def summarize(self, outcomes: Sequence[ItemOutcome]) -> Iterator[Measurement]:
        count = len(outcomes)
        yield measured("a", count, self.name)
        if self.laid_out:
            schedule = Schedule(largest=1, blocks=tuple(range(count)))
            clusters = items([1] * count, bounds=None, schedule=schedule)
            yield measured("b", count, self.name).model_copy(update={"clusters": clusters})

    def look(self, outcomes: Sequence[ItemOutcome], keys: Collection[str]) -> list[Measurement]:
        return [each for each in self.summarize(outcomes) if each.clusters is not None]

    def tasks_of(self, key: str) -> frozenset[str]:
        return frozenset({"t"})


@dataclass
class StandsAt:
    """The verdict stands when the figures hold so many items, and its looks at them are remembered."""

    items: int
    seen: list[tuple[float, frozenset[ProbeName]]] = field(default_factory=list)

    def judged(self, probe: ProbeName) -> frozenset[str]:
        return frozenset({f"{probe}.count[b]"})

    def resolved_early(self, measurements: Sequence[Measurement]) -> frozenset[str]:
        return frozenset()

    def decided(self, measurements: Sequence[Measurement], complete: Collection[ProbeName]) -> tuple[str, ...]:
        count = sum(each.value for each in measurements)
        self.seen.append((count, frozenset(complete)))
        return ("enough",) if count >= self.items else ()


def canaries_then_kl() -> list[Probe]:
    return [Staged(ProbeName.CANARIES, ["first", "second"]), Staged(ProbeName.KL, [""])]


def test_without_a_rule_all_stages_are_asked_in_the_order_planned(tmp_path: Path) -> None:
    ran = run(tmp_path, canaries_then_kl())
    order = ["canaries/first", "canaries/first", "canaries/second", "canaries/second", "kl/all", "kl/all"]
    assert [key.rpartition("/")[0] for key in ran.branch.asked] == order
    assert [(stage.name, stage.state, stage.items) for stage in ran.evaluated.stages] == [
        (name, StageState.MEASURED, 2) for name in ("first", "second", "kl")
    ]
    assert set(ran.evaluated.seconds) == {"reference", "first", "second", "kl"}
    assert not ran.sink.failures


def test_a_verdict_that_stands_after_a_stage_ends_the_asking_and_keeps_the_stage_s_figures(tmp_path: Path) -> None:
    rule = StandsAt(2)
    ran = run(tmp_path, canaries_then_kl(), rule=rule)
    sink = ran.sink
    assert {key.rpartition("/")[0] for key in ran.branch.asked} == {"canaries/first"}
    assert rule.seen == [(2, frozenset())], "a probe asked in part is not complete"
    assert [(stage.name, stage.state, stage.items, stage.planned, stage.settled) for stage in ran.evaluated.stages] == [
        ("first", StageState.MEASURED, 2, 2, ("enough",)),
        ("second", StageState.NOT_EVALUATED, 0, 2, ()),
        ("kl", StageState.NOT_EVALUATED, 0, 2, ()),
    ]
    assert [each.key for each in sink.measurements] == ["canaries.count[a]"]
    assert {(each.probe, each.kind) for each in sink.failures} == {
        (ProbeName.CANARIES, "skipped"),
        (ProbeName.KL, "skipped"),
    }
    assert "the verdict was already certain after first (enough)" in sink.failures[0].reason
    # a probe is complete after its last stage
    rule = StandsAt(4)
    ran = run(tmp_path, canaries_then_kl(), rule=rule)
    assert len(ran.branch.asked) == 4
    assert rule.seen[-1] == (4, frozenset({ProbeName.CANARIES}))
    assert {each.probe for each in ran.sink.failures} == {ProbeName.KL}, "what was asked whole was not skipped"


def test_within_a_stage_only_what_was_laid_out_for_early_looks_is_kept(tmp_path: Path) -> None:
    probe = Staged(ProbeName.EVALS, [""], laid_out=True)
    ran = run(tmp_path, probe, rule=StandsAt(1))
    assert ran.branch.asked == ["evals/all/0"]
    assert [each.key for each in ran.sink.measurements] == ["evals.count[b]"]
    assert (ran.evaluated.stages[0].items, ran.evaluated.stages[0].planned) == (1, 2)
    assert "evaluated no further" in ran.sink.failures[0].reason


class Sampled(Staged):
    """Needs the first block of the reference alone before the branch is asked."""

    def __init__(self, blocks: int) -> None:
        super().__init__(ProbeName.EVALS, [""], laid_out=True)
        self.blocks = blocks
        self.known: list[list[str]] = []

    def plan(self, tokenizer: Any) -> list[WorkItem]:
        return [scoring(f"item{number}", task="t", block=number) for number in range(self.blocks)]

    def answered_first(self, items: Sequence[WorkItem]) -> Sequence[WorkItem]:
        return [item for item in items if item.block == 0]

    def know_reference(self, items: Sequence[WorkItem], digests: Mapping[str, Digest]) -> Sequence[WorkItem]:
        self.known.append(list(digests))
        return items


class Dying(CountingEngine):
    """Ends before it scores `item3`."""

    def score(self, requests: Sequence[ScoreRequest], known: Collection[str] = ()) -> Iterator[Scored]:
        if "item3" in [request.key for request in requests]:
            raise EngineError("server-silent", "It is gone.")
        return super().score(requests, known)


def test_the_reference_answers_only_what_the_branch_is_asked(tmp_path: Path) -> None:
    """And each probe's first stage, which shows what is impossible; the next run goes on, a whole capture changes
    nothing."""
    scoring_at_once = CountingEngine()  # which reads all its weights for every call, where it is run layer by layer
    first = run(tmp_path / "parts", canaries_then_kl(), reference=scoring_at_once, rule=StandsAt(2))
    assert first.branch.asked == ["canaries/first/0", "canaries/first/1"]
    assert scoring_at_once.passes == [[*first.branch.asked, "kl/all/0", "kl/all/1"]]
    reference, probe = CountingEngine(), Sampled(6)
    part = run(tmp_path / "parts", probe, reference=reference, rule=StandsAt(3))
    assert reference.asked == part.branch.asked == ["item0", "item1", "item2"]
    assert kept(tmp_path / "parts", ProbeName.EVALS, "staged").manifest is None
    more = run(tmp_path / "parts", Sampled(6), reference=reference)
    assert reference.asked == more.branch.asked == [f"item{number}" for number in range(6)]
    assert kept(tmp_path / "parts", ProbeName.EVALS, "staged").manifest is not None
    again = Sampled(6)
    whole = run(tmp_path / "parts", again, rule=StandsAt(3), pack_alone=True)
    assert (whole.sink.items, whole.sink.measurements) == (part.sink.items, part.sink.measurements)
    assert again.known == probe.known == [["item0"]], "what is known first does not depend on what is captured"


def test_a_reference_that_dies_in_a_later_round_costs_its_probe_alone(tmp_path: Path) -> None:
    ran = run(tmp_path, [Sampled(6), Staged(ProbeName.KL, [""])], reference=Dying())
    assert ran.branch.asked == ["item0", "item1", "item2", "kl/all/0", "kl/all/1"]
    assert [(each.probe, each.kind) for each in ran.sink.failures] == [(ProbeName.EVALS, "crashed")]
    assert [each.key for each in ran.sink.measurements] == ["kl.count[a]"]
    assert [stage.state for stage in ran.evaluated.stages] == [StageState.PARTLY, StageState.MEASURED]


def test_what_the_reference_shows_to_be_impossible_is_refused_before_the_branch_is_asked(tmp_path: Path) -> None:
    branch, known = CountingEngine(), list[ProbeName]()

    def refuse_kl(work: Work) -> None:
        known.append(work.probe.name)
        if work.probe.name is ProbeName.KL:
            raise UsageError("margin-below-floor", "No branch passes.")

    with raises(UsageError, "margin-below-floor"):
        run(tmp_path, canaries_then_kl(), branch, answered=refuse_kl)
    assert known == [ProbeName.CANARIES, ProbeName.KL]
    assert branch.asked == []


@pytest.mark.parametrize(("one_at_a_time", "turns"), [(False, 9), (True, 5)])
def test_where_one_model_fits_the_reference_answers_ahead(tmp_path: Path, one_at_a_time: bool, turns: int) -> None:
    """Its blocks 0, 1, 2 and 3, 4 to 6, 7 and 8: a change of models costs minutes. Nothing else differs."""
    opened, reference = list[str](), CountingEngine()

    def opening(name: str, engine: Engine) -> Engine:
        opened.append(name)
        return engine

    ran = run(tmp_path, Sampled(9), None, reference, one_at_a_time=one_at_a_time, opening=opening)
    alive = [name for name, before in zip(opened, ["", *opened], strict=False) if name != before]
    assert opened.count("reference") == turns == alive.count("reference")
    assert reference.asked == ran.branch.asked
    assert [item.branch.score for item in ran.sink.items] == [1.0] * 9


class Lost(Staged):
    """Its looks show a verdict, and its figures cannot be made."""

    def summarize(self, outcomes: Sequence[ItemOutcome]) -> Iterator[Measurement]:
        raise ValueError("no figures")

    def look(self, outcomes: Sequence[ItemOutcome], keys: Collection[str]) -> list[Measurement]:
        return [each for each in super().summarize(outcomes) if each.clusters is not None]


def test_a_verdict_whose_figures_were_lost_in_a_crash_stops_no_other_probe(tmp_path: Path) -> None:
    probes = [Lost(ProbeName.EVALS, [""], laid_out=True), Staged(ProbeName.KL, [""])]
    ran = run(tmp_path, probes, rule=StandsAt(1))
    assert ran.branch.asked == ["evals/all/0", "kl/all/0", "kl/all/1"]
    assert [(stage.state, stage.settled) for stage in ran.evaluated.stages] == [
        (StageState.PARTLY, ()),
        (StageState.MEASURED, ("enough",)),
    ]
    assert [each.key for each in ran.sink.measurements] == ["kl.count[a]"]
    assert "crashed" in {failure.kind for failure in ran.sink.failures}


def test_a_resumed_run_stops_where_the_first_one_would_have(tmp_path: Path) -> None:
    whole = run(tmp_path, canaries_then_kl(), rule=StandsAt(4)).sink
    ran = run(tmp_path, canaries_then_kl(), sink=MemorySink(whole.items[:1]), rule=StandsAt(4))
    assert len(ran.branch.asked) == 3
    assert ran.sink.items == whole.items
    assert [stage.items for stage in ran.evaluated.stages] == [2, 2, 0]


class Doubting(Staged):
    """Does not believe the answers of its first stage at once."""

    def doubtful(self, outcomes: Sequence[ItemOutcome]) -> list[WorkItem]:
        first = [each for each in outcomes if "/first/" in each.item_key and each.branch.text is None]
        return [WorkItem(each.item_key, scores=(ScoreRequest(each.item_key + "/again", (1,)),)) for each in first]

    def confirmed(self, item: WorkItem, results: Any, outcome: ItemOutcome) -> ItemOutcome:
        return outcome.model_copy(update={"branch": outcome.branch.model_copy(update={"text": "confirmed"})})


class Timed(Estimate, Progress):
    """Progress that says how long it will take, and forgets that at every new stage, as a terminal's does."""

    def stage(self, title: str, total: int) -> None:
        self._tasks.clear()


def test_what_is_doubted_is_asked_again_once_and_no_more_than_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = Timed()
    ran = run(tmp_path, Doubting(ProbeName.CANARIES, ["first", "second"]), rule=StandsAt(99), progress=timed)
    assert [key for key in ran.branch.asked if "again" in key] == ["canaries/first/0/again", "canaries/first/1/again"]
    assert [each.branch.text for each in ran.sink.items if each.item_key.endswith("first/0")] == [None, "confirmed"]
    assert not ran.sink.failures
    assert timed.unfinished() == []
    monkeypatch.setattr("q36eval.run.rounds.PORTION", 1)
    probe = Doubting(ProbeName.CANARIES, ["first", "second"])
    asked = run(tmp_path, probe, rule=StandsAt(2)).branch.asked
    assert [key for key in asked if "again" in key] == ["canaries/first/0/again"]
    asked = run(tmp_path, probe).branch.asked
    assert len([key for key in asked if "again" in key]) == 2, "without a rule all of it"


def test_the_reference_answers_several_stages_of_a_probe_in_one_pass(tmp_path: Path) -> None:
    probe, reference = Staged(ProbeName.CANARIES, ["first", "second"]), CountingEngine()
    work = Work(probe, probe.plan(None))
    place = partial(kept, tmp_path, probe.name, probe.suite_sha256)
    answers = ReferenceAnswers([work], lambda _: place(), lambda: reference, Progress())
    answers.answer([(work, work.of_stage(stage)) for stage in work.stages])
    assert reference.asked == [item.key for item in work.items]
    assert place().manifest is not None


# -- what is asked in a second step, and what a branch is asked again before it is believed


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


def in_steps(
    tmp_path: Path, branch: Any, reference: Any, sink: MemorySink | None = None, probe: Steps | None = None
) -> tuple[Steps, MemorySink]:
    """One run of `Steps`; `reference` None: only what was captured is at hand."""
    probe = probe or Steps()
    ran = run(tmp_path, probe, branch, reference, sink, pack_alone=reference is None)
    assert not ran.sink.failures
    return probe, ran.sink


def test_both_are_scored_on_the_references_answer_which_is_captured_with_it(tmp_path: Path) -> None:
    reference, branch = Speaker(), Speaker()
    probe, _ = in_steps(tmp_path, branch, reference)
    assert reference.asked == [f"q{number}{step}" for step in ("", "/score", "/repeat") for number in range(3)]
    assert branch.asked == ["q0/score", "q1/score", "q2/score", "q0", "q1", "q2"]
    # a prompt of three tokens and an answer of three: both deployments read six
    assert probe.compared["q2"].values == {"answer": [0, 1, 2], "scored": 6.0, "repeat": "right"}
    assert float(probe.results["q2"].scored["q2/score"].hidden_states[0, 0]) == 6.0
    capture = kept(tmp_path, ProbeName.CANARIES)
    assert capture.manifest is not None
    assert sorted(capture) == ["q0", "q0/then", "q1", "q1/then", "q2", "q2/then"]
    probe, _ = in_steps(tmp_path, Speaker(), None)
    assert probe.compared["q1"].values["scored"] == 4.0


def test_a_second_step_that_errored_is_asked_again_and_nothing_else(tmp_path: Path) -> None:
    in_steps(tmp_path, Speaker(), Speaker(broken={"q1/repeat"}))
    assert kept(tmp_path, ProbeName.CANARIES).manifest is None
    with raises(UsageError, "pack-lacks-items", "1 of", "3 items"):
        in_steps(tmp_path, Speaker(), None)
    whole = Speaker()
    probe, _ = in_steps(tmp_path, Speaker(), whole)
    assert whole.asked == ["q1/score", "q1/repeat"]
    assert probe.compared["q1"].values["repeat"] == "right"


def test_a_second_step_of_another_answer_is_refused(tmp_path: Path) -> None:
    in_steps(tmp_path, Speaker(), Speaker())
    again = kept(tmp_path, ProbeName.CANARIES)
    again.add("q1", Digest(values={"answer": [7, 7]}), again.asked("q1"))
    again.finish(list(again))
    with raises(UsageError, "capture-tokens-differ"):
        in_steps(tmp_path, Speaker(), None)


def test_what_the_branch_got_wrong_is_asked_again_once_also_after_a_kill(tmp_path: Path) -> None:
    branch = Speaker(wrong={"canaries"})
    _, sink = in_steps(tmp_path, branch, Speaker())
    assert branch.asked[-3:] == ["q0/again", "q1/again", "q2/again"]
    assert [item.branch.detail["again"] for item in sink.items[-3:]] == ["right"] * 3
    resumed = Speaker()
    in_steps(tmp_path, resumed, None, MemorySink(sink.items[:3]))  # what was written before anything was asked again
    assert resumed.asked == ["q0/again", "q1/again", "q2/again"]
    done = Speaker()
    in_steps(tmp_path, done, None, MemorySink(sink.items[3:]))
    assert done.asked == []


def test_a_question_of_ones_own_costs_the_reference_its_own_answer_alone(tmp_path: Path) -> None:
    first, second, third = Speaker(), Speaker(), Speaker()
    before, _ = in_steps(tmp_path, Speaker(), first, probe=Parts(own=False))
    assert len(first.asked) == 9
    after, _ = in_steps(tmp_path, Speaker(), second, probe=Parts(own=True))
    assert second.asked == ["mine", "mine/score", "mine/repeat"]
    assert {key: digest.values for key, digest in after.compared.items() if key != "mine"} == {
        key: digest.values for key, digest in before.compared.items()
    }
    assert after.compared["mine"].values["scored"] == 4.0
    in_steps(tmp_path, Speaker(), third, probe=Parts(own=True, shipped="others of the same keys"))
    assert len(third.asked) == 9  # the part that changed is asked anew; one's own is taken over
    assert "mine" not in third.asked
