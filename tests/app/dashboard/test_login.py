"""The OpenID Connect login of a shared host, by a provider that runs here: who logs in writes under that address."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from driving import IN_A_BROWSER, WAIT_S, chromium, drawn, free_port, serving
from written_history import write_run

from q36eval.history import History

pytestmark = [IN_A_BROWSER, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
HOST = "review.localhost"
"""Another name for this machine, which every browser knows: as behind a proxy, only who logs in may write."""

PEOPLE = {
    "eva": {"email": "eva@example.org", "email_verified": True},
    "mallory": {"email": "mallory@example.com", "email_verified": True},
}


SECRETS = """\
[auth]
redirect_uri = "http://{HOST}:{port}/oauth2callback"
cookie_secret = "{key}"
client_id = "q36eval"
client_secret = "not known to others"
server_metadata_url = "{provider}/.well-known/openid-configuration"

[q36eval]
reviewers = ["*@example.org"]
"""


@pytest.fixture(scope="module")
def provider() -> Iterator[str]:
    """Its address; it lets in whoever names one of `PEOPLE`."""
    mock = pytest.importorskip("oidc_provider_mock", reason="pip install oidc-provider-mock authlib")
    users = [mock.User(sub=sub, claims=claims) for sub, claims in PEOPLE.items()]
    with mock.run_server_in_thread(user_claims=users) as server:
        yield f"http://localhost:{server.server_port}"


@pytest.fixture
def shared(provider: str, tmp_path: Path) -> Iterator[tuple[Any, str, Path, str]]:
    """A page of Chromium, the dashboard's address under its own name, its history and a run in it."""
    path = tmp_path / "history.sqlite"
    history = History.open(path)
    run = write_run(history, "fp8-head", 0.05, 7, n_items=3)
    history.close()
    secrets = tmp_path / ".streamlit" / "secrets.toml"
    secrets.parent.mkdir()
    with free_port() as port:
        secrets.write_text(SECRETS.format(HOST=HOST, port=port, provider=provider, key="0f" * 32))
        secrets.chmod(0o600)
        with serving(path, "--allow-host", HOST, port=port), chromium() as browser:
            page = browser.new_page()
            page.route("https://**", lambda route: route.abort())  # the provider's page wants its style from elsewhere
            yield page, f"http://{HOST}:{port}", path, run.id


def log_in(page: Any, address: str, run_id: str, who: str) -> None:
    """From the review page to the provider and back."""
    page.goto(f"{address}/review?run={run_id}")
    page.get_by_text("Log in to waive, sign or bless.").wait_for(timeout=WAIT_S * 1000)
    drawn(page)
    assert page.get_by_role("button", name="Bless this run").count() == 0
    page.get_by_role("button", name="Log in").click()
    page.locator("input[name=sub]").fill(who, timeout=WAIT_S * 1000)
    page.get_by_role("button", name="Authorize").click()
    page.get_by_role("button", name="Log out").wait_for(timeout=WAIT_S * 1000)
    page.goto(f"{address}/review?run={run_id}")
    page.get_by_role("button", name="Log out").wait_for(timeout=WAIT_S * 1000)
    drawn(page)


def test_who_is_logged_in_writes_under_that_address_and_nobody_else(shared: tuple[Any, str, Path, str]) -> None:
    page, address, path, run_id = shared
    log_in(page, address, run_id, "eva")
    assert page.get_by_label("Your name").count() == 0, "the login says who it is"
    page.get_by_label("Why is this the level to hold").fill("read it")
    page.get_by_role("button", name="Bless this run").click()
    page.get_by_text("Blessed by eva@example.org").wait_for(timeout=WAIT_S * 1000)
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url("**/oauth2/end_session?*", timeout=WAIT_S * 1000, wait_until="commit")  # it asks: forget too?
    log_in(page, address, run_id, "mallory")
    page.get_by_text("mallory@example.com is not among the reviewers").first.wait_for(timeout=WAIT_S * 1000)
    assert page.get_by_role("button", name="Bless this run").count() == 0
    history = History.open(path)
    assert [(one.owner, one.reason) for one in history.blessings("fp8-head")] == [("eva@example.org", "read it")]
    history.close()
