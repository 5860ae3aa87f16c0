"""What a rehearsal showed: its verdict, the longest silence, peaks, rates, and what a full release gate would take."""

import json
import statistics
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.rehearsal.material import BRANCH, Amount
from benchmarks.rehearsal.running import SILENCE, TOLERANCE, files_of, last_run, silences
from q36eval.engines.base import IN_PROCESS

GIB = 2**30
INCONCLUSIVE = 3
DRAWS = 200
"""Of each canary family in the suite `release`."""
MMLU_ITEMS = 14_042
WIKITEXT_TOKENS = 300_000
"""About: wikitext-2's test split has 245,569 words."""
RULER_SAMPLES, RULER_LENGTHS = 1_300, (4096, 8192, 16384, 32768, 65536, 131072)
"""Of each length: 13 tasks of 100."""
KL_TEXTS = 1_148 + 210 + 92
"""Documents of the release corpus, its prompts' answers, and four answers of each of 23 canaries."""

Figures = dict[str, Any]


def report(folder: Path, how: Amount, engine: str = IN_PROCESS) -> bool:
    """Write `rehearsal.json` and `.md` (or `rehearsal-vllm`); whether verdict and log are as they should be."""
    figures = collect(folder, how, engine)
    name = "rehearsal" if engine == IN_PROCESS else f"rehearsal-{engine}"
    (folder / f"{name}.json").write_text(json.dumps(figures, indent=1))
    text = markdown(figures)
    (folder / f"{name}.md").write_text(text)
    print(text)
    for sentence in figures["problems"]:
        print(f"NOT AS IT SHOULD BE: {sentence}")
    return not figures["problems"]


def collect(folder: Path, how: Amount, engine: str = IN_PROCESS) -> Figures:
    """All figures of the gate by that engine, from the files that the stages left."""
    log, ended, busy, kept = files_of(folder, engine)
    gates = _lines(ended)
    pauses = silences(log)
    records = [json.loads(path.read_text()) for path in sorted(kept.glob("records-*.json"))]
    memory = [each for path in sorted(kept.glob("memory-*.jsonl")) for each in _lines(path)]
    usage = _lines(busy)
    work = [each for record in records for each in record["work"]]
    run = last_run(folder, engine)
    timings = {} if run is None else dict(run.timings)
    verdict = None if run is None or run.verdict is None else str(run.verdict)
    problems = []
    if not gates or gates[-1]["exit_code"] != INCONCLUSIVE:
        problems.append(f"the gate ended with {gates[-1]['exit_code'] if gates else 'nothing'}, verdict {verdict}")
    if pauses and pauses[0]["seconds"] > SILENCE + TOLERANCE:
        problems.append(f"it said nothing for {pauses[0]['seconds']:.1f} s after: {pauses[0]['after']}")
    written: Figures = {}
    for path in sorted(folder.glob("written-*.json")):
        written |= json.loads(path.read_text())
    return {
        "problems": problems,
        "verdict": verdict,
        "exit_codes": [gate["exit_code"] for gate in gates],
        "gate_seconds": sum(gate["ended"] - gate["begun"] for gate in gates),
        "stage_seconds": timings,
        "longest_silences": pauses[:5],
        "lines": sum(1 for _ in log.open()) if log.is_file() else 0,
        "loads": [load for record in records for load in record["loads"]],
        "written_seconds": written,
        "peaks_gib": _peaks(memory),
        "gpu_busy_percent": statistics.fmean(each["busy_percent"] for each in usage) if usage else None,
        "rates": _rates(work),
        "release": release(work, how, timings),
        "amount": {name: getattr(how, name) for name in how.__dataclass_fields__},
    }


def _lines(path: Path) -> list[Figures]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def _peaks(memory: list[Figures]) -> Figures:
    names = ("allocated_peak", "reserved_peak", "driver", "host_peak", "host", "machine_shared")
    peaks = {name: max((each[name] for each in memory if name in each), default=None) for name in names}
    free = min((each["machine_available"] for each in memory), default=None)
    return {name: None if value is None else value / GIB for name, value in (peaks | {"machine_free": free}).items()}


def _rates(work: list[Figures]) -> list[Figures]:
    """By deployment and group: requests, tokens, the engine's seconds, tokens a second."""
    rows = []
    for each in work:
        seconds = each["seconds"]
        read = each["tokens"] if each["how"] == "scored" else each["prompt_tokens"]
        new = 0 if each["how"] == "scored" else each["tokens"]
        rows.append(
            {"deployment": each["deployment"], "how": each["how"], "group": each["group"], "seconds": seconds}
            | {"requests": each["requests"], "errored": each["errored"], "tokens_read": read, "tokens_written": new}
            | {"read_per_second": read / seconds if seconds else None}
            | {"written_per_second": new / seconds if seconds and new else None}
            | {"rows": each["rows"] / each["requests"] if "rows" in each else None}
        )
    return rows


def release(work: list[Figures], how: Amount, timings: Figures) -> Figures:
    """Seconds of a release gate of one branch whose reference is captured, from the branch's own rates.

    All items of the suite `release`, none spared by stopping early. The engine's seconds of each part grow with its
    items or tokens; RULER's with length and its square, through the two lengths that were measured; what the gate took
    beside the engine grows alike.
    """
    own = [each for each in work if each["deployment"] == BRANCH]
    parts: dict[str, float] = {}

    def seconds(group: str) -> float:
        return float(sum(each["seconds"] for each in own if each["group"].startswith(group)))

    parts["kl"] = seconds("kl") * KL_TEXTS / max(1.0, sum(e["requests"] for e in own if e["group"] == "kl"))
    asked = sum(each["requests"] for each in own if each["group"].startswith("evals/mmlu"))  # some are asked again
    parts["mmlu"] = seconds("evals/mmlu") * MMLU_ITEMS / max(1.0, asked)
    tokens = sum(each["tokens"] for each in own if each["group"].startswith("evals/wikitext"))
    parts["wikitext"] = seconds("evals/wikitext") * WIKITEXT_TOKENS / max(1.0, tokens)
    lengths = [length for length, _ in how.ruler]
    parts |= _ruler([e for e in own if e["group"].startswith("evals/ruler") and e["length"] in lengths])
    parts |= _canaries([each for each in own if each["group"].startswith("canaries")], how)
    known = ("evals/gsm8k", "evals/ifeval")
    engine = sum(each["seconds"] for each in own)
    stages = sum(value for name, value in timings.items() if name not in ("weights", "set-up"))
    beside = max(1.0, stages / engine) if engine else 1.0
    computed = sum(parts.values())
    return {
        "engine_seconds": parts,
        "not_part_of_release": {group: seconds(group) for group in known},
        "weights_seconds": timings.get("weights"),
        "wall_per_engine_second": beside,
        "seconds": computed * beside + timings.get("weights", 0.0),
        "hours": (computed * beside + timings.get("weights", 0.0)) / 3600,
    }


def _ruler(work: list[Figures]) -> dict[str, float]:
    """Seconds at every length of the suite: a L + b L² an item, through the shortest and the longest measured."""
    of_length: dict[float, list[float]] = {}
    for each in work:
        place = of_length.setdefault(each["length"], [0.0, 0.0])
        place[0] += each["seconds"]
        place[1] += each["requests"]
    if not of_length:
        return {}
    points = [(length, seconds / items) for length, (seconds, items) in sorted(of_length.items())]
    (short, of_short), (long, of_long) = points[0], points[-1]
    square = max(0.0, (of_long / long - of_short / short) / (long - short)) if long > short else 0.0
    linear = of_short / short - square * short
    return {f"ruler/{n}": RULER_SAMPLES * (linear * n + square * n * n) for n in RULER_LENGTHS}


def _canaries(work: list[Figures], how: Amount) -> dict[str, float]:
    """Seconds by budget, grown as the number of questions with that budget does; fixed prompts do not grow."""
    few, many = _cases(how.draws), _cases(DRAWS)
    parts: dict[str, float] = {}
    for each in work:
        budget = int(each.get("answer", 0))
        grown = many[budget] / few[budget] if few[budget] else sum(many.values()) / max(1, sum(few.values()))
        name = f"canaries, answers to {budget:,}" if budget else "canaries, margins"
        parts[name] = parts.get(name, 0.0) + each["seconds"] * grown
    return parts


def _cases(draws: int) -> Counter[int]:
    """How many questions the family's canaries ask, by budget."""
    from q36eval.canaries.cases import cases_of
    from q36eval.canaries.specification import for_family, load_specs
    from q36eval.config import Family, Paths

    family = Family.load(Paths.default().families / "qwen3.6-35b-a3b.yaml")
    specs = for_family(load_specs(n=draws, skills=family.skills), family)
    return Counter(case.generation.max_new_tokens for spec in specs for case in cases_of(spec))


# ---- Markdown ----


def markdown(figures: Figures) -> str:
    """The figures as tables."""
    peaks, ahead = figures["peaks_gib"], figures["release"]
    pauses: list[Figures] = figures["longest_silences"]
    silence: Figures = pauses[0] if pauses else {"seconds": 0.0, "after": ""}
    rows: list[tuple[str, str]] = [
        ("verdict", f"{figures['verdict']}, exit codes {figures['exit_codes']}"),
        ("the gate", f"{figures['gate_seconds']:.0f} s, {figures['lines']} lines"),
        ("longest silence", f"{silence['seconds']:.1f} s, after: {silence['after'][:80]}"),
        ("device memory, GiB", " · ".join(_named(peaks, "allocated_peak", "reserved_peak", "driver"))),
        ("host memory, GiB", " · ".join(_named(peaks, "host_peak", "machine_shared", "machine_free"))),
        ("GPU busy", "not told" if figures["gpu_busy_percent"] is None else f"{figures['gpu_busy_percent']:.0f} %"),
        *((f"loading {load['deployment']}", f"{load['seconds']:.1f} s") for load in figures["loads"]),
        *((f"writing: {name}", f"{value:.0f} s") for name, value in figures["written_seconds"].items()),
        *((f"stage {name}", f"{value:.1f} s") for name, value in figures["stage_seconds"].items()),
    ]
    rates = [
        (
            each["deployment"], each["group"], f"{each['requests']:,.0f}", f"{each['tokens_read']:,.0f}",
            f"{each['tokens_written']:,.0f}", f"{each['seconds']:.1f}", _rate(each["read_per_second"]),
            _rate(each["written_per_second"]), "" if each["rows"] is None else f"{each['rows']:.0f}",
        )
        for each in sorted(figures["rates"], key=lambda each: (each["deployment"], each["group"]))
    ]  # fmt: skip
    hours = [(name, f"{value:,.0f}") for name, value in ahead["engine_seconds"].items()]
    hours += [("weights stage", f"{ahead['weights_seconds'] or 0:.0f}")]
    hours += [("waiting per second of the engine", f"{ahead['wall_per_engine_second']:.2f}")]
    hours += [("**all**", f"**{ahead['seconds']:,.0f} s = {ahead['hours']:.1f} hours**")]
    titles = (
        "deployment",
        "requests of",
        "requests",
        "tokens read",
        "written",
        "engine s",
        "read/s",
        "written/s",
        "rows",
    )
    return "\n\n".join(
        (
            _table(("what", "figure"), rows),
            _table(titles, rates),
            "One branch, its reference captured, every item of the suite `release` (seconds of the engine; answers as "
            "long as this gate's):",
            _table(("part", "seconds"), hours),
        )
    )


def _named(values: Figures, *names: str) -> list[str]:
    return [f"{name.replace('_', ' ')} {values[name]:.1f}" for name in names if values.get(name) is not None]


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(titles)
    lines = [heads, ["---"] * len(heads), *(list(row) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
