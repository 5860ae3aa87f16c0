"""The screenshots of README and docs: `make screens`, over the working state's history of real gate runs."""

import argparse
from io import BytesIO
from pathlib import Path

from driving import CHROMIUM, WIDTH, chromium, drawn, serving
from PIL import Image

from q36eval.config import Paths
from q36eval.history import History, RunFilter
from q36eval.records import Verdict

TALLEST = 4000
SHOTS = {"run-light": "run?run={run}", "canary-dark": "canaries?run={run}&item=discount-two-step/38"}
"""Addresses by file name, which ends in the theme."""


def main() -> None:
    """Take them of the newest run that passed, whole pages as WebP."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("screens"), help="folder to write to")
    out = parser.parse_args().out
    if CHROMIUM is None:
        raise SystemExit("No Chromium on this machine; install one, for example: apt-get install chromium")
    history = History.open(Paths.default().history)
    passed = history.summaries(RunFilter(verdict=Verdict.PASS), limit=1)
    history.close()
    if not passed:
        raise SystemExit("This history has no run that passed; gate a branch first.")
    out.mkdir(parents=True, exist_ok=True)
    with serving(Paths.default().history) as root, chromium() as browser:
        for name, address in SHOTS.items():
            page = browser.new_page(viewport={"width": WIDTH, "height": 1000}, color_scheme=name.rpartition("-")[2])
            page.goto(f"{root}/{address.format(run=passed[0].id)}")
            page.locator("[data-testid=stMain] h1").first.wait_for()
            drawn(page)
            whole = page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
            page.set_viewport_size({"width": WIDTH, "height": min(TALLEST, max(700, whole))})
            drawn(page)
            page.wait_for_timeout(1500)  # charts are drawn after all else
            Image.open(BytesIO(page.screenshot())).save(out / f"{name}.webp", quality=72)
            page.close()


if __name__ == "__main__":
    main()
