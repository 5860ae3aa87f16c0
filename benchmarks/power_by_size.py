"""The power of a paired difference of rates against the number of pairs: no cliff at any size, by simulation.

`python -m benchmarks.power_by_size` prints a Markdown table and a Mermaid chart: how often a branch passes a margin of
2 points that loses 1 point and flips 4 % of its answers, by the test of now and by that of before, which was exact up
to 2,000 pairs and bet above them.
"""

import argparse

import numpy as np

from benchmarks.release_gates import exact_p_values

SIZES = (500, 1_000, 1_500, 1_900, 2_000, 2_100, 2_500, 3_000, 3_800, 5_000, 7_500, 10_000, 15_000, 20_000, 25_000)
MARGIN, LOSS, FLIPS, ALPHA = 0.02, 0.01, 0.04, 0.025


def passes(items: int, branches: int, *, before: bool) -> float:
    """The share of simulated branches that pass."""
    rng = np.random.default_rng([items])
    worse, better = FLIPS / 2 + LOSS, FLIPS / 2
    drawn = rng.multinomial(items, [worse, better, 1 - worse - better], branches)
    return float(np.mean([exact_p_values(int(w), int(b), items, MARGIN, before)[0] <= ALPHA for w, b, _ in drawn]))


def main() -> None:
    """Print both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--branches", type=int, default=2_000)
    arguments = parser.parse_args()
    print("| pairs | before, PASS % | now, PASS % |\n|---|---|---|")
    passed = []
    for items in SIZES:
        shares = [100 * passes(items, arguments.branches, before=before) for before in (True, False)]
        passed.append(shares)
        print(f"| {items:,} | {shares[0]:.1f} | {shares[1]:.1f} |", flush=True)
    lines = [", ".join(f"{shares[side]:.0f}" for shares in passed) for side in (0, 1)]
    sizes = ", ".join(f'"{items / 1000:g}k"' for items in SIZES)
    print('\n```mermaid\nxychart-beta\n  title "PASS, % (before and now), by thousands of pairs"')
    print(f"  x-axis [{sizes}]\n  y-axis 0 --> 100\n  line [{lines[0]}]\n  line [{lines[1]}]\n```")


if __name__ == "__main__":
    main()
