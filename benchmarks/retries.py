"""How often a branch just at its margin passes when it is gated until it does, by simulation.

`python -m benchmarks.retries` prints a Markdown table. A branch loses exactly what the margin allows. Of its flips a
share is persistent, a property of the item; the others are drawn anew in every retry. Every gate holds the paired
difference to the margin by a normal test, one-sided at 2.5 %; the error of one gate is shown beside the others, so that
what the test itself adds is not laid on the retries.
"""

import argparse

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

ITEMS, MARGIN = 2_000, 0.02
LOST, GAINED = 0.03, 0.01
Z = 1.959964
RETRIES = (1, 2, 6, 20)
PERSISTENT = (1.0, 0.95, 0.9, 0.75, 0.5, 0.0)


def passes(persistent: Array, share: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Whether each gate of `persistent` [gates, 2] flips (lost, gained) passes when its other flips are drawn anew."""
    noise = np.stack([rng.binomial(ITEMS, (1 - share) * rate, len(persistent)) for rate in (LOST, GAINED)], axis=1)
    lost, gained = (persistent + noise).T
    loss = (lost - gained) / ITEMS
    error = np.sqrt(np.maximum((lost + gained) / ITEMS - loss**2, 1e-12) / ITEMS)
    return np.asarray(loss + Z * error < MARGIN)


def retried(share: float, branches: int, rng: np.random.Generator, *, other_items: bool) -> dict[int, float]:
    """The share of branches of which any of the first k gates passes, by k."""
    passed = np.zeros((max(RETRIES), branches), dtype=bool)
    persistent = _persistent(share, branches, rng)
    for number in range(max(RETRIES)):
        if other_items and number:
            persistent = _persistent(share, branches, rng)
        passed[number] = passes(persistent, share, rng)
    return {count: float(passed[:count].any(axis=0).mean()) for count in RETRIES}


def _persistent(share: float, branches: int, rng: np.random.Generator) -> Array:
    return np.stack([rng.binomial(ITEMS, share * rate, branches) for rate in (LOST, GAINED)], axis=1)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--branches", type=int, default=100_000)
    chosen = parser.parse_args()
    rng = np.random.default_rng(20_261_122)
    print(f"| {chosen.branches:,} branches at the margin; any PASS in, % | " + " | ".join(map(_gates, RETRIES)) + " |")
    print("|---" * (len(RETRIES) + 1) + "|")
    for share in PERSISTENT:
        passing = retried(share, chosen.branches, rng, other_items=False)
        _row(f"the same items, {share:.0%} of the flips persistent", passing)
    _row("other items every time", retried(1.0, chosen.branches, rng, other_items=True))
    _row("1 - 0.975^k, as the report states", {count: 1 - 0.975**count for count in RETRIES})


def _gates(count: int) -> str:
    return "one gate" if count == 1 else f"{count} gates"


def _row(name: str, passing: dict[int, float]) -> None:
    print(f"| {name} | " + " | ".join(f"{100 * passing[count]:.1f}" for count in RETRIES) + " |", flush=True)


if __name__ == "__main__":
    main()
