"""How few texts and prompts give the same verdicts: `python -m benchmarks.quantizers.sizes FOLDER [--set-aside]`.

Takes the evidence of each entry's gate from FOLDER/state-*, draws texts or prompts of each canary from it without
replacement, and lets the real gate decide by the policy `standard`. Printed is in how many draws a criterion has the
verdict that all of the evidence gives, decides nothing, decides what all of it leaves open, or says the opposite. What
was set aside confirms the sizes chosen on the others. With --coverage instead: how often each bound of a mean misses
it, where an entry's texts are the population and texts are drawn from them with replacement.
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.quantizers.names import REFERENCE, drawn
from q36eval.config import Paths
from q36eval.gate import Policy, decide
from q36eval.gate.policy_file import read_policy
from q36eval.history import History
from q36eval.metrics import METRICS
from q36eval.records import Clusters, FamilyCompetence, Measurement, ProbeName

DOCUMENTS, DRAWS = (60, 80, 100, 140, 200), (10, 20, 30)
DIVERGENCES = ("kl_divergence", "kl_document_max", "perplexity")
REPEATS, SIMULATIONS = 20, 400
SAID = {
    one: defaultdict(lambda: "open", {one: "same", other: "opposite"})
    for one, other in (("PASS", "FAIL"), ("FAIL", "PASS"))
} | {"INCONCLUSIVE": defaultdict(lambda: "open", {"INCONCLUSIVE": "same", "PASS": "decided", "FAIL": "decided"})}
"""What a draw's verdict is beside that of all the evidence."""


def rows_of(clusters: Clusters, rows: Sequence[int]) -> Clusters:
    """The clusters of those rows."""
    columns = {
        name: tuple(column[row] for row in rows)
        for name in ("units", "branch", "reference", "errored", "names", "families", "weights", "unreadable")
        if (column := getattr(clusters, name)) is not None
    }
    return clusters.model_copy(update={**columns, "schedule": None})


def fewer(measurement: Measurement, rows: Sequence[int]) -> Measurement:
    """The measurement as those clusters alone give it."""
    assert measurement.clusters is not None
    clusters = rows_of(measurement.clusters, rows)
    metric = METRICS[measurement.probe, measurement.metric]
    found = metric.summarized(clusters, measurement.slice)
    return found.model_copy(update={"competence": measurement.competence and tuple(competence(clusters))})


def competence(clusters: Clusters) -> Iterator[FamilyCompetence]:
    """What the reference gets right of each family's items, of which 1 is a failure."""
    assert clusters.reference is not None
    assert clusters.families is not None
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for family, units, failed in zip(clusters.families, clusters.units, clusters.reference, strict=True):
        counts[family][0] += units
        counts[family][1] += round(units - failed)
    for family, (items, right) in counts.items():
        yield FamilyCompetence(name=family, items=items, informative=right, causes={"wrong": items - right})


def texts_drawn(evidence: Sequence[Measurement], count: int, rng: np.random.Generator) -> list[Measurement]:
    """The evidence with `count` texts."""
    of_all = [m for m in evidence if m.probe is ProbeName.KL and m.metric in DIVERGENCES and m.slice == "all"]
    total = len(of_all[0].clusters.units) if of_all and of_all[0].clusters else 0
    rows = sorted(rng.permutation(total)[:count].tolist())
    return [fewer(m, rows) if m in of_all else m for m in evidence]


def prompts_drawn(evidence: Sequence[Measurement], count: int, rng: np.random.Generator) -> list[Measurement]:
    """The evidence with `count` prompts of each canary."""
    fewer_prompts = []
    for m in evidence:
        if m.probe is ProbeName.CANARIES and m.metric == "failure_rate" and m.clusters and m.clusters.families:
            order = rng.permutation(len(m.clusters.families)).tolist()
            families = defaultdict[str, list[int]](list)
            for row in order:
                families[m.clusters.families[row]].append(row)
            fewer_prompts.append(fewer(m, sorted(row for rows in families.values() for row in rows[:count])))
        else:
            fewer_prompts.append(m)
    return fewer_prompts


def verdicts(policy: Policy, evidence: Sequence[Measurement]) -> dict[str, str]:
    """By criterion."""
    return {each.id: str(each.verdict) for each in decide(policy, evidence).criteria}


def gates(folder: Path, set_aside: bool) -> Iterator[tuple[str, list[Measurement]]]:
    """The evidence of the newest finished gate of each entry."""
    names = drawn()
    for state in sorted(folder.glob("state-*/history.sqlite")):
        history = History.open(state)
        newest = {run.branch: run for run in reversed(history.list_runs()) if run.verdict}
        for branch, run in newest.items():
            name = Path(branch).name.removesuffix(".gguf")
            if name != REFERENCE and name in names and names[name].set_aside is set_aside:
                yield name, history.measurements(run.id)
        history.close()


def missed(evidence: Sequence[Measurement], rng: np.random.Generator) -> Iterator[tuple[str, int, bool, bool]]:
    """Of each drawn corpus: the metric, how many texts, and whether its upper and lower bound missed the mean."""
    for m in evidence:
        if (m.probe, m.slice) == (ProbeName.KL, "all") and m.metric in ("kl_divergence", "perplexity") and m.clusters:
            unnamed, total = m.clusters.model_copy(update={"names": None}), len(m.clusters.units)
            for size in (60, 140, 277):
                for _ in range(SIMULATIONS):
                    drawn_texts = rows_of(unnamed, rng.integers(0, total, size).tolist())
                    bounds = METRICS[m.probe, m.metric].summarized(drawn_texts, m.slice).effect_interval
                    yield m.metric, size, bounds.upper < m.effect, bounds.lower > m.effect


def main() -> None:
    """Print one table for texts, and one for prompts; or the coverage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--set-aside", action="store_true")
    parser.add_argument("--coverage", action="store_true")
    asked = parser.parse_args()
    policy, rng = read_policy(Paths.default().policies / "standard.yaml"), np.random.default_rng(0)
    said: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    for name, evidence in gates(asked.folder, asked.set_aside):
        if asked.coverage:
            for metric, size, above, below in missed(evidence, rng):
                said[metric, size].update(
                    {"drawn": 1, "upper bounds missed": int(above), "lower bounds missed": int(below)}
                )
            continue
        whole = verdicts(policy, evidence)
        for draw, sizes, ids in (
            (texts_drawn, DOCUMENTS, ("kl", "kl-worst-documents", "perplexity")),
            (prompts_drawn, DRAWS, ("failures-structured", "failures-freeform")),
        ):
            for size in sizes:
                for _ in range(REPEATS):
                    found = verdicts(policy, draw(evidence, size, rng))
                    for each in ids:
                        if whole[each] in SAID:
                            said[each, size][SAID[whole[each]][found[each]]] += 1
        print(f"{name}: drawn", flush=True)
    for (criterion, size), counts in said.items():
        print(f"{criterion} with {size}: {', '.join(f'{count} {name}' for name, count in sorted(counts.items()))}")


if __name__ == "__main__":
    main()
