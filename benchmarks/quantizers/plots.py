"""Plots of the study as SVG: `python -m benchmarks.quantizers.plots FOLDER OUT.svg`; needs matplotlib.

Left, what a gate sees against the truth: KL on its texts, and by how much the perplexity of unseen texts rises. Right,
the same rise, up to `MOST` %, against the size of the files. Colours are verdicts; set-aside entries are hollow.
"""

import math
import sys
from pathlib import Path

from benchmarks.quantizers.tables import HARM, Entry, entries

MOST, COLOURS = 400, {"PASS": "tab:green", "FAIL": "tab:red", "INCONCLUSIVE": "tab:orange"}


def main() -> None:
    """Draw both."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    mpl.rcParams.update({"svg.hashsalt": "q36eval", "svg.fonttype": "none", "font.size": 8})
    figure, axes = plt.subplots(1, 2, figsize=(10, 5.4), layout="constrained", sharey=True)
    for at, each in enumerate(sorted(entries(Path(sys.argv[1])), key=lambda each: each.rise[0])):
        rise = 100 * each.rise[0]
        if rise < MOST and each.kind == "branches":
            for axis, x in zip(axes, (kl_of(each), next(iter(each.record.values()))["bytes"] / 1e6), strict=True):
                colour = COLOURS.get(each.report.get("headline", "").split(",")[0], "tab:gray")
                axis.scatter(x, max(rise, 0.05), color=colour, facecolors="none" if each.set_aside else colour, s=22)
                side = {"xytext": (5, -2), "ha": "left"} if at % 2 else {"xytext": (-5, -2), "ha": "right"}
                axis.annotate(each.name, (x, max(rise, 0.05)), textcoords="offset points", fontsize=6, **side)
    for axis, label in zip(axes, ("KL divergence of the gate's texts (nats per token)", "megabytes"), strict=True):
        axis.set(xlabel=label, yscale="log", ylabel="rise of unseen perplexity (%)")
        axis.axhline(100 * HARM, color="gray", linewidth=0.8)
    axes[0].set_xscale("log")
    figure.savefig(sys.argv[2], metadata={"Date": None})


def kl_of(each: Entry) -> float:
    """The divergence that the gate measured; NaN where it measured none."""
    return float(each.criteria.get("kl", {}).get("value") or math.nan)


if __name__ == "__main__":
    main()
