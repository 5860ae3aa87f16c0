"""What is caught of faults that exist only in what is served, and what is said of an engine without any.

    python -m benchmarks.serving_faults --python $(.ci/vllm-cpu) --probe kl
    python -m benchmarks.serving_faults --python $(.ci/vllm-cpu) --probe canaries --faults state-lost rows-mixed
    python -m benchmarks.serving_faults --python $(.ci/vllm-cpu) --probe kl --clean 7 --starts 3
    python -m benchmarks.serving_faults --python $(.ci/vllm-cpu) --probe kl --model $(python -m tests.smollm2)

Every fault is made in a real vLLM by the plug-in beside this file (`faults.py` is the list), and looked for by the
cheapest probe that has a criterion for it. Faults that can be switched share a start, and the engine without a fault is
judged before the first and after the last of them. `--clean N` judges only that, N times in each of `--starts`. Rows of
Markdown are printed as they come; the exit code is 1 where a fault was missed or the engine without one was failed.
Faults of what a model lacks are listed and not made.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import get_args

from benchmarks.serving_faults.faults import FAULTS, Fault, Probe
from benchmarks.serving_faults.judging import CHARACTERS, DOCUMENTS, AsDecoded, Divergences, Said, gated, opened
from benchmarks.serving_faults.served import Differentials
from benchmarks.serving_faults.server import EVERY_LOG_PROBABILITY, SANDBOX, Model
from benchmarks.serving_faults.switch import Switch, switch
from q36eval.engines import EngineSettings, open_engine
from q36eval.errors import EngineError
from q36eval.gate.report import UNMEASURED

HEAD = "| fault | caught by | figures | verdict | s |\n|---|---|---|---|---|"


@dataclass(frozen=True)
class Bench:
    """One model, how it is looked at, and what is compared with (`here`): the reference's side, or the branch's as it
    is decoded in this process, made once for all starts."""

    model: Model
    probe: Probe
    python: Path
    items: int
    texts: tuple[int, int]
    """How many documents, and how many characters of each."""

    @cached_property
    def here(self) -> AsDecoded | Divergences:
        return (
            AsDecoded(self.model, self.texts[1])
            if self.probe.endswith("apart")
            else Divergences(self.model, *self.texts)
        )

    @contextmanager
    def judge(self, state: Path, switched: Switch) -> Iterator[Callable[[Fault | None], Said]]:
        """An engine with that switch, and what the probe says of it while a fault is shown, or none."""
        with ExitStack() as stack:
            if self.probe in ("kl", "apart"):
                try:
                    engine = stack.enter_context(opened(self.model, self.python, switched))
                except EngineError as error:  # the start-up test of hidden states
                    refused = Said(error.code, sentence=str(error))
                    yield lambda _: refused
                    return
                yield lambda _: self.here.said_of(engine)
                return
            asked = self.probe.startswith("endpoint")
            options = EVERY_LOG_PROBABILITY if asked else ()
            address = stack.enter_context(self.model.served(self.python, switched, *options))
            if asked:
                endpoint = open_engine(EngineSettings(self.model.folder, kind="openai", base_url=address))
                yield lambda _: self.here.said_of(endpoint)
            elif self.probe == "canaries":
                yield lambda _: gated(self.model, address, state)
            else:
                differentials = Differentials(self.model, address, self.items)
                yield lambda fault: differentials.said_of([fault.part] if fault else list(differentials.parts))


def row(fault: Fault | None, said: Said, seconds: float) -> tuple[str, bool]:
    """A row of the table, and whether it is what must be said."""
    wanted = () if fault is None else fault.criteria
    caught = [each for each in said.failed if each.id in wanted]
    others = [each for each in said.failed if each.id not in wanted]
    refused = fault is not None and bool(fault.refusal) and fault.refusal == said.verdict
    judged = any(each.verdict not in UNMEASURED for each in said.criteria)
    good = judged and not said.failed if fault is None else bool(caught) or refused
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
    parser.add_argument("--model", type=Path, default=SANDBOX, metavar="FOLDER", help="by default the sandbox")
    parser.add_argument("--margin", type=float, metavar="NATS", help="of served-as-decoded, for this model")
    parser.add_argument("--items", type=int, default=64, metavar="N", help="prompts of each comparison of `served`")
    parser.add_argument("--documents", type=int, default=DOCUMENTS, metavar="N", help="texts of the KL")
    parser.add_argument("--characters", type=int, default=CHARACTERS, metavar="N", help="of each text's beginning")
    parser.add_argument("--state", type=Path, help="keeps the reference's answers between calls")
    chosen = parser.parse_args(arguments)
    faults = [fault for fault in FAULTS if fault.probe == chosen.probe]
    faults = [fault for fault in faults if not chosen.faults or fault.name in chosen.faults]
    model, texts = Model.of(chosen.model.resolve(), chosen.margin), (chosen.documents, chosen.characters)
    bench = Bench(model, chosen.probe, chosen.python, chosen.items, texts)
    possible = [fault for fault in faults if fault.needs is None or fault.needs in model.parts]
    plan = [("", [None] * chosen.clean)] * chosen.starts if chosen.clean else list(starts(possible))
    print(HEAD, flush=True)
    as_it_must_be = True
    for fault in faults if not chosen.clean else ():
        if fault not in possible:
            print(f"| `{fault.name}`: {fault.what} | - | the model has no {fault.needs} | - | 0 |", flush=True)
    for first, shown in plan:
        with switch(first) as switched:
            state = chosen.state or switched.folder / "state"
            with bench.judge(state, switched) as said:
                for fault in shown:
                    switched.show("" if fault is None else fault.name)
                    began = time.monotonic()
                    text, good = row(fault, said(fault), time.monotonic() - began)
                    as_it_must_be &= good
                    print(text, flush=True)
    return 0 if as_it_must_be else 1


if __name__ == "__main__":
    sys.exit(main())
