"""The study's tables: `python -m benchmarks.quantizers.tables FOLDER [--set-aside]`, as Markdown.

Reads FOLDER/records. What was set aside by seed is shown only with --set-aside, and then alone.

The truth about a branch is the perplexity of unseen texts: *good* where its rise is shown to be below a limit of harm
(--harm), *bad* where it is shown to be above, else *between*. A damage is bad whatever texts show, since its files are
not the branch that was made: it is *felt* where that perplexity lies further than the limit above the branch's, else
*hidden*; one whose files we refuse is *refused*. 500 questions of PIQA are too few to classify anything.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from scipy.stats import spearmanr

from benchmarks.quantizers import peers
from benchmarks.quantizers.damages import DAMAGES
from benchmarks.quantizers.names import drawn
from benchmarks.quantizers.producers import OF_TESTS

HARM = 1 / 0.95 - 1
"""A rise of perplexity that a user may notice, as the policy `standard` has it; --harm asks what another would show."""
SAME_ITEMS = {"foreign-template": "w8a8-llmcompressor", "split-chat-tokens": "fp8-dynamic"}
"""Entries that we refuse to evaluate, whose answers to prompts without a chat template are those of another."""
UNREADABLE = ("truncated-shard",)
Kind = Literal["good", "between", "bad", "damage, felt", "damage, hidden", "damage, refused"]


@dataclass(frozen=True)
class Entry:
    """One branch or damage: its record, and how it was drawn."""

    name: str
    kind: str  # reference, branches or damages
    set_aside: bool
    record: dict[str, Any]

    @property
    def report(self) -> dict[str, Any]:
        """The gate's report; empty where there is none."""
        report: dict[str, Any] = self.record.get("gate", {}).get("printed", {}).get("report", {})
        return report

    @property
    def criteria(self) -> dict[str, dict[str, Any]]:
        """The gate's criteria by id."""
        return {each["id"]: each for each in self.report.get("criteria", [])}

    def lane(self, name: str) -> str:
        """The verdict of a lane."""
        return next((each["headline"] for each in self.report.get("lanes", []) if each["lane"] == name), "-")

    def measurement(self, part: str, metric: str, slice_name: str = "all") -> dict[str, Any]:
        """One measurement of a part of the record; empty where there is none."""
        listed = self.record.get(part, {}).get("printed", {}).get("measurements", [])
        return next((each for each in listed if (each["metric"], each["slice"]) == (metric, slice_name)), {})

    def figure(self, part: str, metric: str, slice_name: str = "all") -> float:
        """Its value; NaN where there is none."""
        value = self.measurement(part, metric, slice_name).get("value")
        return math.nan if value is None else float(value)

    @property
    def rise(self) -> tuple[float, float, float]:
        """By which share the perplexity of unseen texts rises, with its 95 % interval; NaN where it is not known."""
        found = self.measurement("perplexity", "perplexity")
        if not found:
            return (math.nan,) * 3
        interval = found["effect_interval"]
        return found["effect"] - 1, interval["lower"] - 1, interval["upper"] - 1

    def items(self, group: str) -> tuple[list[bool], list[bool]] | None:
        """Which of a group's items the reference and the branch got right, in some order."""
        scored = self.record.get("accuracy", {}).get("printed", {}).get("evals", {}).get("groups", {}).get(group)
        if not scored:
            return None
        lost, gained, right = (
            scored["items_lost"],
            scored["items_gained"],
            round(scored["reference_score"] * scored["scored"]),
        )
        wrong = scored["scored"] - right - gained
        pairs = [(True, True)] * (right - lost) + [(True, False)] * lost + [(False, True)] * gained
        first, second = zip(*pairs, *[(False, False)] * wrong, strict=True)
        return list(first), list(second)

    def points_lost(self, group: str) -> float:
        """Points of accuracy that the branch lost."""
        items = self.items(group)
        return math.nan if items is None else 100 * (sum(items[0]) - sum(items[1])) / len(items[0])

    @property
    def failing(self) -> list[str]:
        """Blocking criteria that the gate failed."""
        return [
            name for name, each in self.criteria.items() if each["verdict"] == "FAIL" and each["tier"] == "blocking"
        ]


def entries(folder: Path) -> Iterator[Entry]:
    """Every entry that has a record, in the order of `set-aside.yaml`."""
    for name, (kind, aside) in drawn().items():
        files = sorted((folder / "records").glob(f"{name}.*.json"))
        if files:
            parts = {file.name.split(".")[-2]: json.loads(file.read_text(encoding="utf-8")) for file in files}
            yield Entry(name, kind, aside, parts)


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = ["|" + "|".join(heads) + "|", "|" + "---|" * len(heads)]
    return "\n".join([*lines, *("|" + "|".join(str(cell) for cell in row) + "|" for row in rows)]) + "\n"


def costs(shown: Sequence[Entry]) -> str:
    """What each entry costs, by what gates see and by what users would."""
    heads = "entry, MB, KL, KL of weights alone, perplexity, unseen perplexity (95 %), PIQA, HellaSwag, lost structured"
    heads += ", lost freeform, structured, freeform, fails by, seconds"
    rows = []
    for each in shown:
        found = each.criteria
        lost = [found.get(f"failures-{lane}", {}).get("loss") for lane in ("structured", "freeform")]
        rise, lower, upper = each.rise
        rows.append(
            (
                each.name,
                round(next(iter(each.record.values()))["bytes"] / 1e6),
                number(found.get("kl", {}).get("value")),
                number(each.figure("weights_only", "kl_divergence")),
                percent(expm1(found.get("perplexity", {}).get("loss"))),
                f"{percent(rise)} ({percent(lower)}, {percent(upper)})",
                signed(-each.points_lost("piqa")),
                signed(-each.points_lost("hellaswag")),
                *map(percent, lost),
                each.lane("structured"),
                each.lane("freeform"),
                " ".join(each.failing) or "-",
                round(each.record.get("gate", {}).get("seconds", 0)),
            )
        )
    return table(heads.split(", "), rows)


def number(value: float | None) -> str:
    """A divergence."""
    return "-" if value is None or math.isnan(value) else f"{value:.3g}"


def percent(value: float | None) -> str:
    """A share."""
    return "-" if value is None or math.isnan(value) else f"{100 * value:+.3g} %"


def signed(value: float) -> str:
    """Points."""
    return "-" if math.isnan(value) else f"{value:+.1f}"


def expm1(value: float | None) -> float | None:
    """A loss of log perplexity as the rise of perplexity."""
    return None if value is None else math.expm1(value)


def catches(shown: Sequence[Entry]) -> str:
    """How often each blocking criterion fails, and for which entries it is the only one."""
    ids = list(dict.fromkeys(name for each in shown for name in each.criteria))
    rows = []
    for name in ids:
        failed = [each for each in shown if name in each.failing]
        alone = [each.name for each in failed if each.failing == [name]]
        rows.append((name, len(failed), ", ".join(alone) or "-"))
    return table(("criterion", "fails", "alone for"), rows)


def ranks(shown: Sequence[Entry]) -> str:
    """Spearman's rank correlation of what gates see with the truth."""
    seen: dict[str, Callable[[Entry], float | None]] = {
        "KL": lambda each: each.criteria.get("kl", {}).get("value"),
        "KL, weights alone": lambda each: each.figure("weights_only", "kl_divergence"),
        "perplexity": lambda each: each.criteria.get("perplexity", {}).get("loss"),
        "prompts lost, structured": lambda each: each.criteria.get("failures-structured", {}).get("loss"),
        "prompts lost, freeform": lambda each: each.criteria.get("failures-freeform", {}).get("loss"),
        "HellaSwag": lambda each: each.points_lost("hellaswag"),
    }
    truths: dict[str, Callable[[Entry], float]] = {
        "unseen perplexity": lambda each: each.rise[0],
        "PIQA": lambda each: each.points_lost("piqa"),
    }
    rows = []
    for name, value in seen.items():
        cells = []
        for truth in truths.values():
            pairs = [(value(each), truth(each)) for each in shown]
            known = [(x, y) for x, y in pairs if x is not None and not math.isnan(x) and not math.isnan(y)]
            few = len(known) < 5
            cells.append("-" if few else f"{spearmanr(*zip(*known, strict=True)).statistic:.2f} ({len(known)})")
        rows.append((name, *cells))
    return table(("seen by a gate", *truths), rows)


def said(shown: Sequence[Entry], everything: Mapping[str, Entry]) -> dict[str, dict[str, str]]:
    """What each gate says of each entry: ours by lanes and as a whole, and the peers by HellaSwag."""
    verdicts: dict[str, dict[str, str]] = {}
    for each in shown:
        of_items = everything.get(SAME_ITEMS.get(each.name, each.name), each)
        if each.report:
            headline = each.report["headline"].split(",")[0]
            verdicts.setdefault("q36eval", {})[each.name] = headline if headline in ("PASS", "FAIL") else "undecided"
        items = of_items.items("hellaswag")
        if items is not None:
            for name, verdict in peers.verdicts(*items).items():
                verdicts.setdefault(name, {})[each.name] = verdict
        elif each.name in UNREADABLE:
            for name in peers.RULES:
                verdicts.setdefault(name, {})[each.name] = "FAIL"
    return verdicts


def truth(each: Entry, everything: Mapping[str, Entry], harm: float) -> Kind | None:
    """What an entry is in truth; None where that is not known."""
    rise, lower, upper = each.rise
    if each.kind == "damages" and "perplexity" in each.record:
        made_of = DAMAGES[each.name].branch
        base = everything.get(next((own for own, theirs in OF_TESTS.items() if theirs == made_of), made_of))
        if math.isnan(rise) or base is None:
            return "damage, refused"
        return "damage, felt" if (1 + rise) / (1 + base.rise[0]) > 1 + harm else "damage, hidden"
    if math.isnan(lower):
        return None
    return "good" if upper < harm else "bad" if lower > harm else "between"


def errors(shown: Sequence[Entry], everything: Mapping[str, Entry], harm: float) -> str:
    """Wrong passes and wrong alarms of each gate: of the entries that it judged, how many passed, failed, were open."""
    kinds = get_args(Kind)
    true, rows = {each.name: truth(each, everything, harm) for each in shown}, []
    for gate, verdicts in said(shown, everything).items():
        cells = []
        for kind in kinds:
            of_kind = [verdicts[each.name] for each in shown if true[each.name] == kind and each.name in verdicts]
            cells.append(" / ".join(str(of_kind.count(verdict)) for verdict in ("PASS", "undecided", "FAIL")))
        rows.append((gate, *cells))
    return table(("PASS / undecided / FAIL", *kinds), rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print every table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--set-aside", action="store_true")
    parser.add_argument("--harm", type=float, default=HARM, help="rise of perplexity from which a branch is bad")
    asked = parser.parse_args(arguments)
    everything = {each.name: each for each in entries(asked.folder)}
    shown = [each for each in everything.values() if each.set_aside == asked.set_aside]
    print(costs(shown), catches(shown), errors(shown, everything, asked.harm), sep="\n")
    print(ranks([each for each in shown if each.kind != "damages"]))
    verdicts = said(shown, everything)
    print(table(("entry", *verdicts), [(e.name, *(v.get(e.name, "-") for v in verdicts.values())) for e in shown]))


if __name__ == "__main__":
    main()
