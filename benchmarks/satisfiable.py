"""Can every shipped policy be passed, and does each blocking criterion fail by its own fault? As many items as ship.

`python -m benchmarks.satisfiable [POLICY …]`: the test of `tests/app/satisfiable` with as many draws and items as the
suites ask, and faults of three margins. It takes tens of minutes on two cores.
"""

import sys
import tempfile
import time
from pathlib import Path

from q36eval.config import Paths
from q36eval.gate import CriterionVerdict, decide
from tests.app.satisfiable.evidence import Evidence, Sizes, of_sandbox

WHOLE = Sizes(
    draws={"extended": 200, "quick": 60, "sandbox": 60},
    items={
        "extended": {"mmlu": 14_042, "wikitext": 62, "ruler": 7_800, "mmlu_pro": 12_032, "gpqa_diamond": 198}
        | {"math_500": 500, "gsm8k": 1_319, "ifeval": 541, "mmlu_czech": 14_042},
        "quick": {"mmlu": 1_425, "wikitext": 30, "ruler": 260},
        "sandbox": of_sandbox(subjects=35, ruler=89, texts=20),
    },
    documents=400,
    subjects=57,
    margins=3.0,
)


def main() -> None:
    repository = Path(__file__).parents[1]
    with tempfile.TemporaryDirectory() as folder:
        evidence = Evidence(Path(folder), Paths(repository, Path(folder) / "state"), WHOLE)
        for name in sys.argv[1:] or sorted(evidence.shipped):
            began = time.monotonic()
            policy = evidence.policy(name)
            clean = decide(policy, evidence.clean(name))
            print(f"{name}: {clean.headline} {', '.join(clean.decisive)}", flush=True)
            for criterion in policy.criteria:
                if criterion.tier == "blocking":
                    report = decide(policy, evidence.faulty(name, criterion.id))
                    failed = [
                        c.id for c in report.criteria if c.tier == "blocking" and c.verdict is CriterionVerdict.FAIL
                    ]
                    print(f"  fault of {criterion.id}: FAIL by {', '.join(failed) or 'nothing'}", flush=True)
            print(f"  {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
