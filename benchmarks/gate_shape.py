"""How much a gate of the sandbox asks and what the reference answers, for the simulated gates.

    q36eval gate --branch fp8-head --exhaustive
    python -m benchmarks.gate_shape RUN > benchmarks/gate_shape.json

`RUN` is a run of everything (`--exhaustive`) in the working state, as `q36eval history list` names it.
"""

import argparse
import json
from collections import Counter
from collections.abc import Mapping

from q36eval.app.cli.options import open_history
from q36eval.config import Paths
from q36eval.records import Clusters, Measurement

GROUPS = ("mmlu", "short_answers", "ruler")
LANES = ("structured", "freeform")


def shape_of(measurements: Mapping[str, Measurement]) -> dict[str, object]:
    """What `benchmarks.simulated_evidence.Shape` holds, from a run's measurements by key."""

    def clusters(key: str) -> Clusters:
        evidence = measurements[key].clusters
        assert evidence is not None
        return evidence

    def scores(group: str) -> list[tuple[float, int]]:
        of_group = clusters(f"evals.accuracy[{group}]")
        assert of_group.reference is not None
        each = (round(score / units, 6) for score, units in zip(of_group.reference, of_group.units, strict=True))
        return sorted(Counter(each).items())

    def failing(metric: str, lane: str) -> tuple[int, int]:
        of_lane = clusters(f"canaries.{metric}[{lane}]")
        assert of_lane.reference is not None
        return sum(of_lane.units), round(sum(of_lane.reference))

    texts, documents = clusters("evals.perplexity[all]"), clusters("kl.kl_divergence[all]")
    return {
        "accuracy": {group: scores(group) for group in GROUPS},
        "failure_rate": {lane: failing("failure_rate", lane) for lane in LANES},
        "must_pass": {lane: measurements[f"canaries.must_pass_flips[{lane}]"].counts.scored for lane in LANES},
        "fixed_prompts": {lane: failing("fixed_prompt_failure_rate", lane) for lane in LANES},
        "perplexity_tokens": sorted(texts.units, reverse=True),
        "documents": sorted(
            (
                (units, float(f"{total / units:.3g}"))
                for units, total in zip(documents.units, documents.branch, strict=True)
            ),
            key=lambda document: (-document[0], -document[1]),
        ),
    }


def main() -> None:
    """Print the shape of a run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    arguments = parser.parse_args()
    shape = shape_of(
        {measurement.key: measurement for measurement in open_history(Paths.default()).measurements(arguments.run)}
    )
    print(
        "{"
        + ",\n".join(f"{json.dumps(key)}:{json.dumps(value, separators=(',', ':'))}" for key, value in shape.items())
        + "}"
    )


if __name__ == "__main__":
    main()
