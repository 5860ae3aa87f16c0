"""Reports lead to what they tell of, in the review UI that the environment names."""

from urllib.parse import parse_qs, urlsplit

import pytest

from q36eval.reports import Document
from q36eval.reports.html_report import to_html
from q36eval.reports.markdown_report import to_markdown
from q36eval.reports.ui_address import UI_URL, links
from tests.q36eval.reports.report_samples import HOSTILE, hostile_report, run_of

ROOT = "https://review.example/q36eval"


def test_every_report_leads_to_the_run_and_to_what_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    report, run = hostile_report(), run_of("main")
    monkeypatch.setenv(UI_URL, f"{ROOT}/")
    found = links(report, run)
    assert found[0].address == f"{ROOT}/run?run={run.id}"
    pages = {urlsplit(link.address).path.rpartition("/")[2] for link in found}
    assert pages == {"run", "kl", "evals", "canaries"}
    (lost,) = (link for link in found if "canaries" in link.address)
    query = parse_qs(urlsplit(lost.address).query)
    assert query == {"run": [run.id], "outcome": ["regression"]}
    for link in found:
        assert f"](<{link.address}>)" in to_markdown(Document(report, run))
        assert f'<a href="{link.address.replace("&", "&amp;")}">' in to_html(Document(report, run))


@pytest.mark.parametrize(
    "root", ["", "review.example", "javascript:alert(1)", "https://a.example/>(x)", HOSTILE, "http://u:p@a"]
)
def test_no_link_without_a_plain_address(monkeypatch: pytest.MonkeyPatch, root: str) -> None:
    monkeypatch.setenv(UI_URL, root.replace("\0", ""))
    assert links(hostile_report(), run_of()) == ()
    monkeypatch.setenv(UI_URL, ROOT)
    assert links(hostile_report(), None) == ()
