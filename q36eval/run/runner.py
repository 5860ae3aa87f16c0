"""Runs probes: measures the branch anew beside what was captured of the reference, writes everything as it is made.

Nothing is decided here but, by a rule that is handed in, when enough was asked.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from q36eval.engines.base import Engine
from q36eval.errors import ExitCode, Q36Error
from q36eval.probes import Captures, Probe, Progress, Sink, in_group
from q36eval.records import Measurement
from q36eval.run.follow_up import BothSteps
from q36eval.run.items import Work
from q36eval.run.rounds import Asked, StoppingRule, fail_probe, measure_branch


def plan_probes(probes: Iterable[Probe], tokenizer: Any, sink: Sink) -> list[Work]:
    """Each probe with its items; a probe whose plan crashes is recorded as failed."""
    works = []
    for probe in probes:
        work = Work(probe, [])
        try:
            work.items = [in_group(item, probe.name) for item in probe.plan(tokenizer)]
            if not work.items:
                raise ValueError("it planned nothing")
        except Q36Error:
            raise
        except Exception as error:
            fail_probe(work, sink, error)
        works.append(work)
    return works


def asked(works: Sequence[Work]) -> dict[str, tuple[int, ...]]:
    """Every request's token ids by its key."""
    items = [item for work in works for item in work.items]
    scores = {request.key: request.token_ids for item in items for request in item.scores}
    return scores | {request.key: request.token_ids for item in items for request in item.generations}


def same_tokenizer(one: Any, other: Any) -> bool:
    """Whether two tokenizers surely turn every text and conversation into the same tokens: the same rules throughout.

    False only means that what they do must be compared.
    """
    if type(one) is not type(other) or not hasattr(one, "backend_tokenizer"):
        return False
    rules = [
        (tokenizer.backend_tokenizer.to_str(), tokenizer.chat_template, tokenizer.special_tokens_map)
        for tokenizer in (one, other)
    ]
    return bool(rules[0] == rules[1])


def _lay_out_by_reference(work: Work, captures: Captures, sink: Sink) -> None:
    """Tell a probe what the reference answered to all that is planned, and take over the blocks it makes of that."""
    probe = work.probe
    if work.failed is not None:
        return
    digests = BothSteps(captures[probe.name], [item.key for item in work.items])
    try:
        items = list(probe.know_reference(work.items, digests))
        if {item.key for item in items} != {item.key for item in work.items} or len(items) != len(work.items):
            raise ValueError("what the reference answered may change the order of the items, never which there are")
    except Q36Error:
        raise
    except Exception as error:
        fail_probe(work, sink, error)
    else:
        work.items = items


class AskedDifferentlyError(Q36Error):
    """The branch's tokenizer or chat template turns the same questions into other tokens than the reference's."""

    exit_code = ExitCode.FAIL


def run_probes(
    branch: Engine,
    reference_tokenizer: Any,
    captures_of: Callable[[Sequence[Work]], Captures],
    probes: Sequence[Probe],
    sink: Sink,
    progress: Progress,
    rule: StoppingRule | None = None,
    known: Sequence[Measurement] = (),
) -> Asked:
    """Measure `branch` against its reference with all `probes`; with a `rule`, until the verdict stands.

    `known` is what was measured before. Returns the stages, and the seconds of each and of the "reference" before them.

    `captures_of` gives the reference's digests of what is asked (see `q36eval.run.capture`) before the branch is asked
    anything; what it raises ends the run.

    Raises:
        AskedDifferentlyError: the branch's own tokenizer does not give the reference's tokens.
    """
    started = time.monotonic()
    theirs = None
    if not same_tokenizer(branch.tokenizer, reference_tokenizer):
        theirs = asked(plan_probes(probes, branch.tokenizer, Sink()))
    works = plan_probes(probes, reference_tokenizer, sink)
    ours = asked(works)
    differing = 0 if theirs is None else sum(theirs.get(key) != token_ids for key, token_ids in ours.items())
    if differing:
        raise AskedDifferentlyError(
            f"the branch's tokenizer or chat template asks {differing} of {len(ours)} questions in other tokens than "
            f"the reference's"
        )
    captures = captures_of(works)
    seconds = time.monotonic() - started
    done = {
        (outcome.probe, outcome.item_key)
        for outcome in sink.known_items()
        if outcome.branch.error is None and outcome.reference.error is None
    }
    for work in works:
        _lay_out_by_reference(work, captures, sink)
        work.done = frozenset(key for probe, key in done if probe == work.probe.name)
    found = measure_branch(branch, works, captures, sink, progress, rule, known)
    found.seconds["reference"] = seconds
    return found
