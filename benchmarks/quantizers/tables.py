"""The study's tables: `python -m benchmarks.quantizers.tables FOLDER [--set-aside]` prints them as Markdown.

Reads FOLDER/records. What was set aside by seed is shown only with --set-aside, and then alone.
"""

import argparse
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from scipy.stats import spearmanr

REFERENCE = "reference"


@dataclass(frozen=True)
class Entry:
    """One branch or damage: its record, and how it was drawn."""

    name: str
    kind: str  # reference, branches or damages
    set_aside: bool
    record: dict[str, Any]

    @property
    def report(self) -> dict[str, Any]:
        """The gate's report; empty where the gate refused the folder."""
        report: dict[str, Any] = self.record["gate"]["printed"].get("report", {})
        return report

    @property
    def criteria(self) -> dict[str, dict[str, Any]]:
        """The gate's criteria by id."""
        return {each["id"]: each for each in self.report.get("criteria", [])}

    @property
    def verdict(self) -> str:
        """The headline, or the exit code of a gate that gave none."""
        return str(self.report.get("headline", f"exit {self.record['gate']['exit']}"))

    def lane(self, name: str) -> str:
        """The verdict of a lane."""
        return next((each["headline"] for each in self.report.get("lanes", []) if each["lane"] == name), self.verdict)

    def figure(self, part: str, metric: str, slice_name: str = "all", column: str = "effect") -> float:
        """One measurement of a part of the record; NaN where there is none."""
        for each in self.record[part]["printed"].get("measurements", []):
            if each["metric"] == metric and each["slice"] == slice_name:
                value = each[column]
                return math.nan if value is None else float(value)
        return math.nan

    @property
    def unseen_loss(self) -> float:
        """By how much the perplexity of unseen texts rises, as a share."""
        reference = self.figure("perplexity", "perplexity", column="reference_value")
        return self.figure("perplexity", "perplexity", column="value") / reference - 1

    def accuracy_lost(self, group: str) -> float:
        """Points of accuracy lost on unseen items."""
        reference = self.figure("accuracy", "accuracy", group, "reference_value")
        return 100 * (reference - self.figure("accuracy", "accuracy", group, "value"))

    @property
    def failing(self) -> list[str]:
        """Blocking criteria that the gate failed."""
        return [
            name for name, each in self.criteria.items() if each["verdict"] == "FAIL" and each["tier"] == "blocking"
        ]


def entries(folder: Path) -> Iterator[Entry]:
    """Every record, in the order of `set-aside.yaml`."""
    drawn = yaml.safe_load((Path(__file__).parent / "set-aside.yaml").read_text(encoding="utf-8"))
    order = [(REFERENCE, REFERENCE, False)]
    order += [(name, kind, part == "set_aside") for kind in drawn for part in drawn[kind] for name in drawn[kind][part]]
    for name, kind, aside in order:
        file = folder / "records" / f"{name}.json"
        if file.exists():
            yield Entry(name, kind, aside, json.loads(file.read_text(encoding="utf-8")))


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = ["|" + "|".join(heads) + "|", "|" + "---|" * len(heads)]
    return "\n".join([*lines, *("|" + "|".join(str(cell) for cell in row) + "|" for row in rows)]) + "\n"


def branches(shown: Sequence[Entry]) -> str:
    """What each branch costs, by what gates see and by what users would."""
    heads = ("entry", "MB", "KL", "KL, weights alone", "PPL, gate", "PPL, unseen", "PIQA", "HellaSwag", "lost s, f")
    heads += ("structured", "freeform", "fails by", "seconds")
    rows = []
    for each in shown:
        kl, lost = each.criteria.get("kl", {}), each.criteria
        counts = [lost.get(f"failures-{lane}", {}) for lane in ("structured", "freeform")]
        rows.append(
            (
                each.name,
                round(each.record["bytes"] / 1e6),
                number(kl.get("value")),
                number(each.figure("weights_only", "kl_divergence", column="value")),
                percent(lost.get("perplexity", {}).get("loss"), exponential=True),
                percent(each.unseen_loss),
                f"{-each.accuracy_lost('piqa'):+.1f}",
                f"{-each.accuracy_lost('hellaswag'):+.1f}",
                ", ".join(percent(one.get("loss")) for one in counts),
                each.lane("structured"),
                each.lane("freeform"),
                " ".join(each.failing),
                f"{each.record['gate']['seconds']:.0f}",
            )
        )
    return table(heads, rows)


def number(value: float | None) -> str:
    """A divergence."""
    return "-" if value is None or math.isnan(value) else f"{value:.3g}"


def percent(value: float | None, exponential: bool = False) -> str:
    """A share; a loss of log perplexity as the rise of perplexity."""
    if value is None or math.isnan(value):
        return "-"
    return f"{100 * (math.expm1(value) if exponential else value):+.1f} %"


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
    """Spearman's rank correlation of what gates see with the truth, over branches."""
    seen = {
        "KL": lambda each: each.criteria.get("kl", {}).get("value", math.nan),
        "KL, weights alone": lambda each: each.figure("weights_only", "kl_divergence", column="value"),
        "perplexity": lambda each: each.criteria.get("perplexity", {}).get("loss", math.nan),
        "prompts lost, structured": lambda each: each.criteria.get("failures-structured", {}).get("loss", math.nan),
        "prompts lost, freeform": lambda each: each.criteria.get("failures-freeform", {}).get("loss", math.nan),
        "HellaSwag": lambda each: each.accuracy_lost("hellaswag"),
    }
    truths = {"unseen perplexity": lambda each: each.unseen_loss, "PIQA": lambda each: each.accuracy_lost("piqa")}
    rows = []
    for name, value in seen.items():
        cells = []
        for truth in truths.values():
            pairs = [(value(each), truth(each)) for each in shown]
            pairs = [pair for pair in pairs if not any(map(math.isnan, pair))]
            cells.append(f"{spearmanr(*zip(*pairs, strict=True)).statistic:.2f} ({len(pairs)})")
        rows.append((name, *cells))
    return table(("seen by a gate", *truths), rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print every table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--set-aside", action="store_true")
    asked = parser.parse_args(arguments)
    shown = [each for each in entries(asked.folder) if each.set_aside == asked.set_aside]
    print(branches(shown), catches(shown), sep="\n")
    print(ranks([each for each in shown if each.kind != "damages"]))


if __name__ == "__main__":
    main()
