"""A reviewer in the browser: from a red verdict to the flipped token, waive it, and see the gate change."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from driving import IN_A_BROWSER, WAIT_S, chromium, drawn, problems_of, serving, write
from written_history import POLICY, evidence, identity, measured

from q36eval.canaries.outcomes import question_name
from q36eval.gate import Circumstances, decide
from q36eval.gate.policy_file import read_policy
from q36eval.history import History
from q36eval.records import Answer, Clusters, ItemOutcome, Measurement, ProbeName, Verdict

pytestmark = IN_A_BROWSER
CANARIES = ("json-flat", "czech-discount", "tool-call")
FLIPPED = "czech-discount"
PARTING = {"position": 7, "said": " A", "top": [[" A", -0.05], [" B", -3.1]]}


SCREEN = 1000
FROM_THE_TOP = """(shown) => {
  const main = document.querySelector('[data-testid=stMain]');
  return shown.getBoundingClientRect().bottom + main.scrollTop;
}"""


def prompt(canary: str) -> ItemOutcome:
    """A must-pass prompt; that of `FLIPPED` is right under the reference and wrong under the branch."""
    right = Answer(score=1.0, text="Levnější je obchod A.", detail={"divergence": PARTING, "repeats": [{"score": 1.0}]})
    other = PARTING | {"said": " B", "top": [[" B", -0.4], [" A", -1.2]]}
    wrong = Answer(score=0.0, text="Levnější je obchod B.", detail={"divergence": other, "repeats": [{"score": 0.0}]})
    return ItemOutcome(
        probe=ProbeName.CANARIES,
        group=canary,
        item_key=canary.encode().hex().ljust(64, "0"),
        cluster=f"{canary}/1",
        prompt="Kde je to levnější, v A, nebo v B?",
        expected="Levnější je obchod A.",
        must_pass=True,
        branch=wrong if canary == FLIPPED else right,
        reference=right,
    )


def must_pass(found: Measurement) -> Measurement:
    """Its count of flips, by prompt, of as many as the policy asks for: one, and that in the freeform lane alone."""
    canaries = [CANARIES[place % 3] for place in range(60)]
    asked = [prompt(name).model_copy(update={"cluster": f"{name}/{at}"}) for at, name in enumerate(canaries)]
    flips = tuple(float(one.cluster == f"{FLIPPED}/1" and found.slice == "freeform") for one in asked)
    names = tuple(map(question_name, asked))
    clusters = Clusters(units=(1,) * 60, branch=flips, errored=(0,) * 60, names=names)
    return measured(found.probe, found.metric, found.slice, clusters, "census", found.unit)


@pytest.fixture
def failed(tmp_path: Path) -> tuple[Path, str]:
    """A history with one run that fails by one canary alone."""
    policy, path = read_policy(POLICY), tmp_path / "history.sqlite"
    found = [must_pass(m) if m.metric == "must_pass_flips" else m for m in evidence(policy, 0.05, 2)]
    history = History.open(path)
    run = history.start_run(
        family="sandbox", branch="fp8-head", identity=identity("d"), reference_identity=identity("a"), policy=policy
    )
    history.add_measurements(run.id, found)
    history.add_items(run.id, [prompt(canary) for canary in CANARIES])
    history.update_run(run.id, circumstances=Circumstances(on=run.started.date()))
    report = history.finish_run(run.id, decide(policy, found, on=run.started.date())).report
    history.close()
    assert report is not None
    assert report.decisive == ("must-pass-freeform",)
    return path, run.id


@pytest.fixture
def page(failed: tuple[Path, str]) -> Iterator[tuple[Any, str, list[str]]]:
    """The dashboard over it, in a browser; its address, and what goes wrong."""
    with serving(failed[0]) as root, chromium() as browser:
        opened = browser.new_page(viewport={"width": 1400, "height": SCREEN})
        opened.set_default_timeout(WAIT_S * 1000)
        yield opened, root, problems_of(opened)


def follow(page: Any, label: str, address: str, wanted: str) -> None:
    """Follow a link within the page, and wait until what it leads to shows and all is drawn."""
    page.locator("[data-testid=stMain]").get_by_role("link", name=label).first.click()
    page.wait_for_url(address)
    page.get_by_text(wanted).first.wait_for()
    drawn(page)


def test_from_a_red_verdict_to_the_flipped_token_to_a_pass(
    page: tuple[Any, str, list[str]], failed: tuple[Path, str]
) -> None:
    browser, root, problems = page
    path, run = failed
    browser.goto(root)
    browser.get_by_text("✗ BLOCKED").first.wait_for()
    drawn(browser)
    lost = f"**/canaries?run={run}&outcome=regression&must=true*"
    follow(browser, "See the prompts it lost", lost, "1 of 3 questions")  # one click from the first page
    for mark in ("del", "ins"):
        browser.locator(mark).first.wait_for()
    assert browser.locator("del").all_inner_texts() == ["A"]
    assert browser.locator("ins").all_inner_texts() == ["B"]
    parting = browser.get_by_text("The answers part at token 8: the reference says ' A', the branch ' B'.")
    parting.wait_for()
    assert parting.evaluate(FROM_THE_TOP) <= 2 * SCREEN, "no scroll beyond two screens"
    follow(browser, f"Waive {FLIPPED}", f"**/review?run={run}&waive={FLIPPED}", "Your name")
    write(browser, "Your name", "Jana")
    write(browser, "What is known about it", "a near tie; the shop names are alike")
    browser.get_by_role("button", name="Write the waiver and decide again").click()
    browser.get_by_role("heading", name="✓ PASS with waivers").wait_for()
    assert problems == []
    browser.goto(root)
    browser.get_by_text("WAIVED until").first.wait_for()
    _check_written(path, run)


def _check_written(path: Path, run: str) -> None:
    history = History.open(path)
    decided, waivers = history.get_run(run), history.waivers("sandbox", "fp8-head")
    earlier = history.earlier_decisions(run)
    history.close()
    assert decided.verdict is Verdict.PASS
    assert [(waiver.canary, waiver.owner) for waiver in waivers.values()] == [(FLIPPED, "Jana")]
    assert [one.report.verdict for one in earlier] == [Verdict.FAIL]
