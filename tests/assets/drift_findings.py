"""What drift says of synthetic series, recorded beside `FINDINGS_VERSION` and compared by a test.

python -m tests.assets.drift_findings     records it anew, after the version was raised with a line on what changed
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from q36eval.drift import branch_drift, drift
from q36eval.drift.records import FINDINGS_VERSION
from tests.q36eval.drift.series import line, point

RECORDED = Path(__file__).with_name(f"drift-{FINDINGS_VERSION}.json")
RUNS = 14
DIGITS = 9


def findings() -> dict[str, Any]:
    """Of series that hold, shift, drift away, come back, break off and change their deployment."""
    noise = np.random.default_rng(20261122).normal(0.0, 0.004, (6, RUNS)).round(6)
    late = np.arange(RUNS) >= RUNS // 2
    series = {
        "holds": line(noise[0].tolist()),
        "shifts": line((noise[1] + 0.03 * late).tolist()),
        "creeps": line((noise[2] + 0.004 * np.arange(RUNS)).tolist()),
        "comes back": line((noise[3] + 0.05 * (np.arange(RUNS) == 6)).tolist()),
        "another suite": [*line(noise[4].tolist()), *(point(RUNS + d, 0.0, suite="t") for d in range(4))],
        "another checkpoint": [
            *line(noise[5].tolist(), higher=True),
            *(point(RUNS + d, 0.05, checkpoint_sha256="zz", higher=True) for d in range(4)),
        ],
        "too few": line([0.0, 0.1]),
    }
    found: dict[str, Any] = {}
    for name, points in series.items():
        for blessed in (None, "r01"):
            found[f"{name}, blessed {blessed}"] = [each.model_dump(mode="json") for each in drift(points, blessed)]
    runs = [each.run for each in series["shifts"]]
    branch = branch_drift("sandbox", "main", series["shifts"], "r01", None, runs, None)
    found["a branch"] = branch.model_dump(mode="json")
    return rounded(found)


def rounded(value: Any) -> Any:
    """Numbers to so many digits as every machine agrees on."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(findings(), ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
    print(f"{RECORDED.name}: {RECORDED.stat().st_size:,} bytes")
