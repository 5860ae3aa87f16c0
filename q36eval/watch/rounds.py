"""One round: its queries, their order, and the losses relative to the endpoint's own first rounds.

A required prompt or a fresh variant of a family is lost if its answer is wrong; a text if its log-probabilities changed
beyond the tolerance; a differential if the same prompt is answered differently, streamed or repeated.
"""

import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any

from q36eval.canaries.answers import judged_answer
from q36eval.canaries.cases import Case, cases_of, in_format
from q36eval.canaries.checks import CHECKS_VERSION
from q36eval.canaries.details import Details
from q36eval.canaries.probe import rendered
from q36eval.canaries.specification import CanarySpec, for_family, load_specs
from q36eval.config import Family
from q36eval.engines.openai.endpoint import Continuation, fresh_salt
from q36eval.errors import EngineError, UsageError
from q36eval.files import json_sha256
from q36eval.records import Answer, ItemOutcome, ProbeName
from q36eval.served.comparison import difference
from q36eval.watch.endpoint_sampling import OPENING_REQUESTS, OPENING_TOKENS, Asker, Row, coarse_kl
from q36eval.watch.incidents import DIFFERENTIALS, FAMILIES, KL, REQUIRED, Item, Phase, State, tolerance
from q36eval.watch.settings import Deployment
from q36eval.watch.store import Store

POSITIONS = 96
"""The number of last tokens of a text to compare."""
SILENT = 3
"""The number of consecutive missing answers that ends a round."""
ROUND_VERSION = 1
"""Raised when the queries of a round change: the baseline then belongs to another version."""


@dataclass(frozen=True)
class Planned:
    """One item to query: the prompt's tokens, and for an answer its case and its maximum length."""

    slice: str
    name: str
    ids: tuple[int, ...]
    budget: int
    case: Case | None = None
    suspect: bool = False
    first: int = 0

    @property
    def cost(self) -> int:
        """Tokens at most."""
        return len(self.ids) + self.budget


@dataclass
class Round:
    """The result of a round."""

    items: list[Item]
    outcomes: list[ItemOutcome]
    anchors: dict[str, str]
    """Rows of texts that the calibration stores, as JSON by name."""
    unmeasured: dict[str, str]
    """By slice, why it was not measured."""
    server: str = ""


class Rounds:
    """Plans and runs the rounds of one deployment. `seed` makes its draws different from any other's."""

    def __init__(self, deployment: Deployment, family: Family, store: Store, seed: str) -> None:
        self._deployment, self._store, self._seed = deployment, store, seed
        self._in_format = partial(in_format, tool_format=family.tool_format, system=family.template.system)
        named = load_specs(only=list(deployment.canaries) or None, skills=family.skills)
        specs = for_family(named, family)
        greedy = [spec for spec in specs if spec.generation.sampling is None]
        self._families = [spec for spec in greedy if spec.family is not None]
        fixed = [case for spec in greedy if spec.must_pass is not None for case in cases_of(spec)]
        self._required = {case.name: self._in_format(case) for case in fixed}
        self.too_long: set[str] = set()
        """Required prompts that exceed every round's budget, as far as tried."""
        self._order = sorted(self._required, key=lambda name: hashlib.sha256(f"{seed}/{name}".encode()).digest())
        if (not self._required and deployment.amounts.required) or not self._families:
            raise UsageError(
                "prompts-too-few",
                f"The canaries of {deployment.name} have no required prompts, or no family to draw from; name others.",
            )
        contents = sorted(case.content for case in self._required.values())
        drawn = [spec.model_dump(mode="json") for spec in self._families]
        self.suite_sha256 = json_sha256([ROUND_VERSION, CHECKS_VERSION, contents, drawn])

    @property
    def required(self) -> Sequence[str]:
        """Names of all required prompts that a round has room for."""
        return [name for name in self._order if name not in self.too_long]

    def worst(self) -> tuple[int, int]:
        """The maximum requests and tokens of a round."""
        budget, amounts = self._deployment.budget, self._deployment.amounts
        items = sum(amounts.model_dump().values())
        requests = min(budget.requests_per_round, OPENING_REQUESTS + 2 * items)
        longest = max((case.generation.max_new_tokens for case in self._required.values()), default=256) + 1_024
        return requests, min(budget.tokens_per_round, OPENING_TOKENS + 2 * items * longest)

    def ask(self, asker: Asker, state: State, number: int) -> Round:
        """Ask round `number` of a deployment in that state.

        Raises:
            UsageError, EngineError: the server cannot be used, or does not answer.
            PutOffError: the server is to be let alone.
        """
        result = Round([], [], {}, {})
        result.server = asker.look()
        plan = list(self._plan(asker, state, number))
        if not asker.scores:
            result.unmeasured[KL] = "the server gives no log-probabilities of a prompt's tokens"
            plan = [one for one in plan if one.slice != KL]
        answered: list[tuple[Planned, Continuation, str]] = []
        silent = 0
        for one in plan:
            if not self._has_room(asker, one):
                if 2 * one.cost > self._deployment.budget.tokens_per_round and one.slice == REQUIRED:
                    self.too_long.add(one.name)
                continue
            salt = fresh_salt()
            error = self._asked(asker, state, one, salt, result, answered)
            silent = silent + 1 if error is not None else 0
            if silent >= SILENT:
                raise EngineError(
                    "server-silent", f"The server does not answer: {silent} times in a row; the last: {error}."
                )
        self._differentials(asker, number, answered, result)
        return result

    def _has_room(self, asker: Asker, one: Planned) -> bool:
        requests, tokens = asker.room()
        return requests >= 2 and tokens >= 2 * one.cost

    def _asked(
        self,
        asker: Asker,
        state: State,
        one: Planned,
        salt: str,
        result: Round,
        answered: list[tuple[Planned, Continuation, str]],
    ) -> str | None:
        """Ask one item; why no answer came, if none did."""
        fresh = state.incident is not None
        common: dict[str, Any] = {"slice": one.slice, "name": one.name, "suspect": one.suspect, "fresh": fresh}
        if one.slice == KL:
            rows = asker.prompt_rows(one.ids, one.first)
            if isinstance(rows, str):
                result.items.append(Item(**common, lost=None, reason=rows))
                return rows
            self._compared(state, one, rows, common, result)
            return None
        case = one.case
        assert case is not None, "only a text has none"
        said = asker.complete(one.ids, one.budget, salt=salt)
        if isinstance(said, str):
            result.items.append(Item(**common, lost=None, reason=said))
            return said
        answered.append((one, said, salt))
        tokens = len(said.token_ids or ()) or said.completion_tokens or 0
        answer = judged_answer(case, said.text, said.finish, tokens)
        lost = None if answer.score is None else answer.score < 1.0
        failures = Details.of(answer).failures
        reason = answer.error or answer.unreadable or (failures[0].message if failures else "")
        result.items.append(Item(**common, lost=lost, reason=reason))
        if lost:
            result.outcomes.append(_outcome(one, answer))
        return None

    def _compared(self, state: State, one: Planned, rows: list[Row], common: dict[str, Any], result: Round) -> None:
        kept = self._store.kept(f"anchor/{one.name}")
        if kept is None:
            assert state.phase is Phase.CALIBRATING, "later only texts that are kept are planned"
            result.anchors[one.name] = json.dumps(rows)
            return
        baseline = [{int(token): value for token, value in row.items()} for row in json.loads(kept)]
        if len(rows) != len(baseline):
            words = f"log-probabilities of {len(rows)} tokens, where the baseline has {len(baseline)}"
            result.items.append(Item(**common, lost=None, reason=words))
            return
        moved = [coarse_kl(then, now) for then, now in zip(baseline, rows, strict=True)]
        divergence = sum(moved) / max(1, len(moved))
        limit = tolerance(state, self._deployment.alarm)
        lost = state.phase is not Phase.CALIBRATING and divergence > limit
        words = f"{divergence:.2g} nats a token from the baseline, where {limit:.2g} are tolerated"
        result.items.append(Item(**common, lost=lost, divergence=divergence, reason=words if lost else ""))
        if lost:
            result.outcomes.append(_outcome(one, Answer(score=0.0, text=words)))

    def _differentials(
        self, asker: Asker, number: int, answered: list[tuple[Planned, Continuation, str]], result: Round
    ) -> None:
        """Some of the families' prompts once more: streamed in even rounds, in odd ones under the same salt."""
        stream = number % 2 == 0
        variants = [each for each in answered if each[0].slice == FAMILIES]
        for one, first, salt in variants[: self._deployment.amounts.differentials]:
            if not self._has_room(asker, one):
                continue
            again = asker.complete(one.ids, one.budget, salt=salt, stream=stream)
            name = f"{one.name} {'streamed' if stream else 'once more'}"
            if isinstance(again, str):
                result.items.append(Item(slice=DIFFERENTIALS, name=name, lost=None, reason=again))
                continue
            words = difference(first, again)
            result.items.append(
                Item(slice=DIFFERENTIALS, name=name, lost=words is not None, fresh=True, reason=words or "")
            )
            if words is not None:
                result.outcomes.append(_outcome(one, Answer(score=0.0, text=words), DIFFERENTIALS))

    # -- what is asked

    def _plan(self, asker: Asker, state: State, number: int) -> Iterator[Planned]:
        """Suspects first, then one of each slice in turn, so that a tight budget cuts all equally."""
        tokenizer, amounts = asker.endpoint.tokenizer, self._deployment.amounts
        incident = state.incident
        first = [*state.suspects, *(() if incident is None else incident.prompts)]
        suspects = [name for name in dict.fromkeys(first) if name in self._required][: amounts.suspects]
        yield from (self._case(tokenizer, REQUIRED, self._required[name], suspect=True) for name in suspects)
        order = [name for name in self.required if name not in suspects]
        if state.phase is not Phase.CALIBRATING:
            order = [name for name in order if name in state.watched]
        start = state.rounds * amounts.required
        turn = [order[(start + n) % len(order)] for n in range(min(amounts.required, len(order)))]
        if state.phase is Phase.CALIBRATING:  # items cut by a tight budget come first, so that all have their turn
            unseen = [name for name in order if name not in state.prompts]
            turn = [*unseen, *(name for name in turn if name not in unseen)][: amounts.required]
        required = [self._case(tokenizer, REQUIRED, self._required[name]) for name in turn]
        families = [self._case(tokenizer, FAMILIES, case) for case in self._variants(number)]
        texts = [self._anchor(tokenizer, index) for index in self._anchors(state)]
        for group in zip_longest(required, families, texts):
            yield from (one for one in group if one is not None)

    def _variants(self, number: int) -> Iterator[Case]:
        """Draws that no earlier round used."""
        rng = random.Random(f"{self._seed}/{number}")
        count = self._deployment.amounts.families
        chosen = rng.sample(self._families, k=min(count, len(self._families)))
        chosen += rng.choices(self._families, k=count - len(chosen)) if count > len(chosen) else []
        for place, spec in enumerate(chosen):
            yield self._drawn(spec, f"{self._seed}/{number}/{place}", f"{number}-{place}")

    def _drawn(self, spec: CanarySpec, seed: str, name: str) -> Case:
        assert spec.family is not None, "it is one of the families"
        own = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "big") >> 1
        (case,) = cases_of(spec.model_copy(update={"family": spec.family.model_copy(update={"seed": own, "n": 1})}))
        renamed = self._in_format(case)
        return Case(**{**vars(renamed), "name": f"{spec.id}/{name}"})

    def _anchors(self, state: State) -> list[int]:
        """Texts of this round: in a calibration first those not stored yet; then one half, or the other.

        Texts missed by a calibration are never stored later: the model might have changed by then.
        """
        alarm, count = self._deployment.alarm, self._deployment.amounts.kl
        places = range(alarm.anchors)
        missing = [place for place in places if self._store.kept(f"anchor/{_anchor_name(place)}") is None]
        rest = [place for place in places if place not in missing]
        start = state.rounds * count
        if state.phase is Phase.CALIBRATING:
            turn = [rest[(start + n) % len(rest)] for n in range(min(count, len(rest)))]
            return [*missing[:count], *turn][:count]
        half = [place for place in rest if place % 2 == (state.incident is not None)]
        return [half[(start + n) % len(half)] for n in range(min(count, len(half)))]

    def _anchor(self, tokenizer: Any, place: int) -> Planned:
        spec = self._families[place % len(self._families)]
        case = self._drawn(spec, f"{self._seed}/anchor/{place}", f"text-{place}")
        prompt = rendered(case, tokenizer)
        ids = tuple(tokenizer.encode(prompt + case.answer, add_special_tokens=False))
        return Planned(KL, _anchor_name(place), ids, 1, first=max(1, len(ids) - POSITIONS))

    def _case(self, tokenizer: Any, name: str, case: Case, *, suspect: bool = False) -> Planned:
        ids = tuple(tokenizer.encode(rendered(case, tokenizer), add_special_tokens=False))
        return Planned(name, case.name, ids, case.generation.max_new_tokens, case, suspect)


def _anchor_name(place: int) -> str:
    return f"text-{place}"


def _outcome(one: Planned, answer: Answer, group: str | None = None) -> ItemOutcome:
    """A lost item as history keeps it: the right answer stands on the reference's side."""
    case = one.case
    prompt = None if case is None else str(case.messages[-1].get("content", ""))
    expected = None if case is None else case.answer
    return ItemOutcome(
        probe=ProbeName.SERVED,
        group=group or one.slice,
        item_key=json_sha256([group or one.slice, one.name, list(one.ids)]),
        cluster=one.name,
        prompt=prompt,
        expected=expected,
        must_pass=one.slice == REQUIRED,
        branch=answer,
        reference=Answer(score=1.0, text=expected),
    )
