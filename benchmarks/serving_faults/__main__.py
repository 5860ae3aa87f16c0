"""What is caught of faults that exist only in what is served, and what is said of an engine without any.

    python -m benchmarks.serving_faults --python $(.ci/vllm-cpu) --probe kl
    python -m benchmarks.serving_faults --python $(.ci/vllm-cpu) --probe canaries --faults state-lost rows-mixed
    python -m benchmarks.serving_faults --python $(.ci/vllm-cpu) --probe kl --clean 7 --starts 3

Every fault is made in a real vLLM by the plug-in beside this file (`faults.py` is the list), and looked for by the
cheapest probe that has a criterion for it. Faults that can be switched share a start, and the engine without a fault is
judged before the first and after the last of them. `--clean N` judges only that, N times in each of `--starts`. Rows of
Markdown are printed as they come; the exit code is 1 where a fault was missed or the engine without one was failed.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import get_args

from benchmarks.serving_faults.faults import FAULTS, Fault, Probe
from benchmarks.serving_faults.judging import AsDecoded, Divergences, Said, gated, opened
from benchmarks.serving_faults.served import Differentials
from benchmarks.serving_faults.server import EVERY_LOG_PROBABILITY, SANDBOX, serving
from benchmarks.serving_faults.switch import Switch, switch
from q36eval.engines import EngineSettings, open_engine
from q36eval.errors import EngineError

divergences, as_decoded = cache(Divergences), cache(AsDecoded)
"""The reference's side, and the branch's as it is decoded here, once for all starts."""

HEAD = "| fault | caught by | figures | verdict | s |\n|---|---|---|---|---|"


@contextmanager
def judge(probe: Probe, python: Path, state: Path, switched: Switch) -> Iterator[Callable[[Fault | None], Said]]:
    """An engine with that switch, and what the probe says of it while a fault is shown, or none."""
    with ExitStack() as stack:
        side = as_decoded if probe.endswith("apart") else divergences
        if probe in ("kl", "apart"):
            try:
                engine = stack.enter_context(opened(python, switched))
            except EngineError as error:  # the start-up test of hidden states
                refused = Said(f"exit {error.exit_code:d}", sentence=str(error))
                yield lambda _: refused
                return
            yield lambda _: side().said_of(engine)
            return
        if probe in ("endpoint", "endpoint-apart"):
            address = stack.enter_context(serving(python, switched, *EVERY_LOG_PROBABILITY))
            endpoint = open_engine(EngineSettings(SANDBOX, kind="openai", base_url=address))
            yield lambda _: side().said_of(endpoint)
            return
        address = stack.enter_context(serving(python, switched))
        if probe == "canaries":
            yield lambda _: gated(address, state)
        else:
            differentials = Differentials(address)
            yield lambda fault: differentials.said_of([fault.part] if fault else list(differentials.parts))


def row(fault: Fault | None, said: Said, seconds: float) -> tuple[str, bool]:
    """A row of the table, and whether it is what must be said."""
    wanted = () if fault is None else fault.criteria
    caught = [each for each in said.failed if each.id in wanted]
    others = [each for each in said.failed if each.id not in wanted]
    refused = fault is not None and bool(fault.refusal) and fault.refusal in said.sentence
    good = not said.failed and not said.sentence if fault is None else bool(caught) or refused or bool(fault.missed)
    by = ", ".join(f"`{each.id}`" for each in [*caught, *others]) or said.sentence or "-"
    shown = (caught or others or list(said.criteria))[:3]
    figures = "; ".join(f"{each.id} {each.figure}" for each in shown)
    name = "none" if fault is None else f"`{fault.name}`: {fault.what}"
    return f"| {name} | {by} | {figures} | {said.verdict} | {seconds:.0f} |", good


def starts(faults: Sequence[Fault]) -> Iterator[tuple[str, list[Fault | None]]]:
    """By start: the fault that it begins with, and what is shown one after the other."""
    switched: list[Fault | None] = [fault for fault in faults if not fault.at_start]
    if switched:
        yield "", [None, *switched, None]
    for fault in faults:
        if fault.at_start:
            yield fault.name, [fault]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 0 where all is as it must be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, required=True, help="of the environment with vLLM")
    parser.add_argument("--probe", choices=get_args(Probe), required=True)
    parser.add_argument("--faults", nargs="*", metavar="NAME", help="only these")
    parser.add_argument("--clean", type=int, default=0, metavar="N", help="no fault, N times in one start")
    parser.add_argument("--starts", type=int, default=1, metavar="N", help="with --clean, so many starts")
    parser.add_argument("--state", type=Path, help="keeps the reference's answers between calls")
    chosen = parser.parse_args(arguments)
    faults = [fault for fault in FAULTS if fault.probe == chosen.probe]
    faults = [fault for fault in faults if not chosen.faults or fault.name in chosen.faults]
    plan = [("", [None] * chosen.clean)] * chosen.starts if chosen.clean else list(starts(faults))
    print(HEAD, flush=True)
    as_it_must_be = True
    for first, shown in plan:
        with switch(first) as switched:
            state = chosen.state or switched.folder / "state"
            with judge(chosen.probe, chosen.python, state, switched) as said:
                for fault in shown:
                    switched.show("" if fault is None else fault.name)
                    began = time.monotonic()
                    text, good = row(fault, said(fault), time.monotonic() - began)
                    as_it_must_be &= good
                    print(text, flush=True)
    return 0 if as_it_must_be else 1


if __name__ == "__main__":
    sys.exit(main())
