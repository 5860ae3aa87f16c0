"""Screenshots of every page, light, dark and on a phone: `make screens`.

What is shown is a history of real gate runs: the working state's own unless another is named. Of it, the newest run
that failed and the newest that passed.
"""

import argparse
from io import BytesIO
from pathlib import Path
from typing import Any

from driving import CHROMIUM, WIDTH, chromium, drawn, serving
from PIL import Image

from q36eval.config import Paths
from q36eval.history import History, RunFilter, RunSummary
from q36eval.records import Verdict

TALLEST = 4000
QUALITY = 72
"""Of WebP; PNG loses nothing."""
PHONE = 390, 844
LOOKS = {"light": ("light", WIDTH), "dark": ("dark", WIDTH), "phone": ("light", PHONE[0])}
"""Theme and width of each."""


QUESTION = "discount-two-step/38"
"""The canary's question that is shown alone."""


def pages(failed: RunSummary, passed: RunSummary) -> dict[str, str]:
    """The address of every page, by the name of its screenshot."""
    branch = f"family={passed.family}&branch={passed.branch}"
    return {
        "overview": "",
        "branch": f"branch?{branch}",
        "run": f"run?run={passed.id}",
        "run-failed": f"run?run={failed.id}",
        "kl": f"kl?run={passed.id}",
        "evals": f"evals?run={passed.id}",
        "canaries": f"canaries?run={passed.id}&outcome=regression",
        "canary": f"canaries?run={passed.id}&item={QUESTION}",
        "canaries-failed": f"canaries?run={failed.id}&outcome=regression&must=yes",
        "compare": f"compare?a={passed.id}&b={failed.id}",
        "review": "review",
        "review-run": f"review?run={failed.id}",
    }


def newest(history: History, verdict: Verdict) -> RunSummary:
    """The newest run of that verdict.

    Raises:
        SystemExit: there is none.
    """
    found = history.summaries(RunFilter(verdict=verdict), limit=1)
    if not found:
        raise SystemExit(f"This history has no run that is {verdict.value}; name another with --history.")
    return found[0]


def shoot(browser: Any, url: str, look: str, file: Path) -> None:
    """One page as a person sees it, whole; on a phone its first screen."""
    theme, width = LOOKS[look]
    phone = width != WIDTH
    page = browser.new_page(viewport={"width": width, "height": PHONE[1] if phone else 1000}, color_scheme=theme)
    page.goto(url)
    page.locator("[data-testid=stMain] h1").first.wait_for()
    drawn(page)
    if not phone:
        whole = page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
        page.set_viewport_size({"width": width, "height": min(TALLEST, max(700, whole))})
        drawn(page)
    page.wait_for_timeout(1500)  # charts and canvases are drawn after all else
    shot = page.screenshot()
    page.close()
    Image.open(BytesIO(shot)).save(file, quality=QUALITY)


def main() -> None:
    """Take them all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("screens"), help="folder to write to")
    parser.add_argument("--history", type=Path, default=Paths.default().history, help="whose runs to show")
    parser.add_argument("--webp", action="store_true", help="smaller files, as the README shows; PNG")
    asked = parser.parse_args()
    if CHROMIUM is None:
        raise SystemExit("No Chromium on this machine; install one, for example: apt-get install chromium")
    history = History.open(asked.history)
    failed, passed = newest(history, Verdict.FAIL), newest(history, Verdict.PASS)
    history.close()
    asked.out.mkdir(parents=True, exist_ok=True)
    with serving(asked.history) as root, chromium() as browser:
        for name, address in pages(failed, passed).items():
            for look in LOOKS:
                file = asked.out / f"{name}-{look}.{'webp' if asked.webp else 'png'}"
                shoot(browser, f"{root}/{address}", look, file)
                print(file)


if __name__ == "__main__":
    main()
