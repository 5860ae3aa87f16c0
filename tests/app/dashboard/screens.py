"""The screenshots of README and docs: `make screens`, over the working state's history of real gate runs."""

import argparse
from io import BytesIO
from pathlib import Path

from driving import CHROMIUM, WIDTH, chromium, drawn, serving
from PIL import Image

from q36eval.config import Paths
from q36eval.history import History, RunFilter
from q36eval.records import Verdict

TALLEST = 1300
SHOTS = {
    "run-light": (Verdict.PASS, "run?run={run}"),
    "canary-dark": (Verdict.FAIL, "canaries?run={run}&outcome=regression"),
}
"""By file name, which ends in the theme: of the newest run with which verdict, and the address."""


def main() -> None:
    """Take them of the newest gates that passed and failed, the tops of pages as WebP."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("screens"), help="folder to write to")
    out = parser.parse_args().out
    if CHROMIUM is None:
        raise SystemExit("No Chromium on this machine; install one, for example: apt-get install chromium")
    history = History.open(Paths.default().history)
    newest = {verdict: history.summaries(RunFilter(verdict=verdict), limit=1) for verdict, _ in SHOTS.values()}
    history.close()
    if not all(newest.values()):
        raise SystemExit("This history lacks a run that passed, or one that failed; gate both first.")
    out.mkdir(parents=True, exist_ok=True)
    with serving(Paths.default().history) as root, chromium() as browser:
        for name, (verdict, address) in SHOTS.items():
            page = browser.new_page(viewport={"width": WIDTH, "height": 1000}, color_scheme=name.rpartition("-")[2])
            page.goto(f"{root}/{address.format(run=newest[verdict][0].id)}")
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
