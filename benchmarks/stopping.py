"""Every sandbox branch gated twice, asked until the verdict stands and asked everything: do the verdicts agree?
from q36eval.probes import Progress

`python -m benchmarks.stopping --processes 2 --json stopping.json` gates the reference first, which captures it, then
every branch and every rung of damage in both ways, and prints for each both verdicts, after which stage and by which
criteria the asking stopped, how many items were asked, and the seconds of the stages (set-up apart). With several
processes side by side the seconds compare with each other, not with those of one gate alone.
"""

import argparse
import json
import multiprocessing
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from q36eval.probes import Progress

HEADER = "| branch | asked everything | until it stands | stopped after | by | items | seconds | ratio of seconds |"


@dataclass(frozen=True)
class Gated:
    """One gate: the verdict of each lane, and what it took."""

    branch: str
    exhaustive: bool
    verdicts: dict[str, str]
    exit_code: int
    stopped_after: str
    settled: tuple[str, ...]
    items: int
    set_up_seconds: float
    seconds: float


def gated(branch: str, folder: Path, exhaustive: bool) -> Gated:
    """Gate a branch of the sandbox, or a rung of damage."""
    from q36eval.app.cli.gate import load_policy
    from q36eval.app.cli.options import open_history
    from q36eval.app.targets import load_family, resolve
    from q36eval.config import Paths
    from q36eval.run.branch import SET_UP
    from q36eval.run.measure import measure
    from q36eval.run.request import Request, Target

    paths = Paths.default()
    family = load_family(None, paths)
    request = Request(
        family=family,
        branch=Target(branch, folder),
        reference=resolve(family.reference, family, paths),
        suite=family.suite,
        policy=load_policy(None, family, paths),
        exhaustive=exhaustive,
        fresh=True,  # seconds are counted
    )
    run = measure(request, paths, open_history(paths), Quiet())
    assert run.report is not None, "a policy was given"
    stopped = next((stage for stage in run.report.stages if stage.settled), None)
    return Gated(
        branch=branch,
        exhaustive=exhaustive,
        verdicts={lane.lane.value: lane.verdict.value for lane in run.report.lanes},
        exit_code=run.report.exit_code,
        stopped_after="" if stopped is None else stopped.name,
        settled=() if stopped is None else stopped.settled,
        items=sum(stage.items for stage in run.report.stages if stage.name != "weights"),
        set_up_seconds=run.timings.get(SET_UP, 0.0),
        seconds=sum(seconds for stage, seconds in run.timings.items() if stage != SET_UP),
    )


class Quiet(Progress):
    """No progress is shown."""

    def stage(self, title: str, total: int) -> None: ...

    def advance(self, count: int = 1) -> None: ...


def folders() -> dict[str, Path]:
    """Every branch and rung by its name; those that are built are built now, by one process."""
    from benchmarks.sandbox.measured import targets
    from q36eval.app.targets import load_family
    from q36eval.config import Paths

    paths = Paths.default()
    return {target.name: target.folder for target in targets(load_family(None, paths), paths)}


def rows(gates: list[Gated]) -> Iterator[str]:
    """A row for each branch, in Markdown."""
    for whole in (each for each in gates if each.exhaustive):
        until = next((each for each in gates if each.branch == whole.branch and not each.exhaustive), None)
        if until is None:
            continue
        cells = [
            f"`{whole.branch}`",
            _verdicts(whole),
            _verdicts(until),
            until.stopped_after or "–",
            ", ".join(until.settled) or "–",
            f"{whole.items} / {until.items}",
            f"{whole.seconds:.0f} / {until.seconds:.0f}",
            f"{until.seconds / whole.seconds:.2f}",
        ]
        yield "| " + " | ".join(cells) + " |"


def _verdicts(gate: Gated) -> str:
    return ", ".join(f"{lane} {verdict}" for lane, verdict in gate.verdicts.items())


def main() -> None:
    """Gate them all, print the table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--branch", action="append", help="only these")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    known = folders()
    chosen = given.branch or list(known)
    gates = [gated("bf16", known["bf16"], exhaustive=True)]  # captures the reference for all
    if given.processes > 1:
        os.environ["OMP_NUM_THREADS"] = "1"
    both = [(name, known[name], exhaustive) for name in chosen for exhaustive in (True, False)]
    jobs = [job for job in both if (job[0], job[2]) != ("bf16", True)]
    # a process a gate: what one has read stays in its memory
    with ProcessPoolExecutor(given.processes, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        for done in as_completed([pool.submit(gated, *job) for job in jobs]):
            gates.append(done.result())
            print(gates[-1].branch, _verdicts(gates[-1]), file=sys.stderr, flush=True)
            if given.json is not None:  # at once: a gate takes minutes
                given.json.write_text(json.dumps([asdict(each) for each in gates], indent=1) + "\n", encoding="utf-8")
    print(HEADER)
    print("|---" * 8 + "|")
    print("\n".join(rows(sorted(gates, key=lambda each: list(known).index(each.branch)))), flush=True)


if __name__ == "__main__":
    main()
