"""How `q36eval ui` starts the server: who can reach it, under which names, and what others on the machine can read."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import PlainTextResponse

import q36eval.app.cli.ui as starting
from q36eval.app.dashboard import views
from q36eval.app.dashboard.front_page import PAGES, FrontPage
from q36eval.app.dashboard.guard import asked_on_this_machine
from q36eval.app.dashboard.launch_options import Started
from q36eval.errors import UsageError
from tests import commands

URL = "postgresql+psycopg://eva:secret@db.example.org/q36eval"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Starts it; its arguments, and those of the page."""
    called: dict[str, Any] = {}
    monkeypatch.setattr(starting, "_serve", lambda command: called.update(command=command) or 0)

    def start(**options: Any) -> tuple[list[str], list[str]]:
        starting.ui(**options)
        place = called["command"].index("--")
        return called["command"][:place], called["command"][place + 1 :]

    return start


def test_only_on_loopback_nobody_needs_to_log_in(started: Any, capsys: pytest.CaptureFixture[str]) -> None:
    command, page = started()
    assert "--allow-host" not in command
    assert page == ["--local"]
    for options in ({"allow_host": ["review.example.org"]}, {"address": "0.0.0.0"}, {"address": "10.0.0.7"}):
        assert started(**options)[1] == []
    command = started(allow_host=["review.example.org"])[0]
    assert command[command.index("--allow-host") + 1] == "review.example.org"
    assert "anyone who reaches review.example.org can read" in capsys.readouterr().err
    assert started(allow_host=["review.example.org"], trust_network=True)[1] == ["--trust-network"]
    assert started(address="0.0.0.0", read_only=True)[1] == ["--read-only"]
    for no_name in ("*", "https://review.example.org", "review.example.org:443", ""):
        with pytest.raises(UsageError, match="--allow-host takes a name"):
            started(allow_host=[no_name])


def test_who_starts_the_page_otherwise_shares_it() -> None:
    assert Started.of(["h.sqlite"]).shared
    assert Started.of([]).shared
    assert not Started.of(["--local"]).shared
    assert not Started.of(["--trust-network"]).shared


@pytest.mark.parametrize(
    ("headers", "here"),
    [
        ({"Host": "localhost:8501"}, True),
        ({"Host": "[::1]:8501"}, True),
        ({"Host": "127.0.0.2"}, True),
        ({"host": "review.example.org"}, False),
        ({"host": "10.0.0.7:8501"}, False),
        ({"Host": "localhost:8501", "X-Forwarded-For": "203.0.113.9"}, False),
        ({"Host": "localhost", "forwarded": "for=203.0.113.9"}, False),
        ({"Host": "localhost:99999"}, False),
        ({}, True),
    ],
)
def test_what_was_asked_on_this_machine(headers: dict[str, str], here: bool) -> None:
    assert asked_on_this_machine(headers) is here


def test_a_password_of_the_history_is_no_argument(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whoever may list processes reads arguments; the server finds the URL in its environment."""
    started: list[str] = []
    monkeypatch.setattr(starting, "_serve", lambda command: started.extend([Started.of([]).source, *command]) or 0)
    assert commands.q36eval("ui", "--history", URL, state=tmp_path).returncode == 0
    source, *arguments = started
    assert source == URL
    assert not any("secret" in part for part in arguments)


def answered(app: Any) -> tuple[dict[bytes, bytes], bytes]:
    """Headers and body of what an app answers a browser that asks for a page."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    asked = {"type": "http", "method": "GET", "path": "/run", "headers": [(b"accept", b"text/html")]}
    asyncio.run(app(asked, None, send))
    return dict(sent[0]["headers"]), b"".join(message["body"] for message in sent[1:])


def test_the_page_is_told_where_its_server_is_and_nothing_else_is_touched() -> None:
    """Also below a proxy's path. What is not HTML passes byte for byte, compressed or not."""
    html = PlainTextResponse("<html><head></head></html>", media_type="text/html", headers={"etag": "x"})
    other = PlainTextResponse("<head>", headers={"etag": "x"})
    (told, body), (as_it_was, rest) = (answered(FrontPage(app)) for app in (html, other))
    assert body.startswith(b"<html><head><script>window.__streamlit = {")
    assert int(told[b"content-length"]) == len(body)
    assert b"etag" not in told
    assert (rest, as_it_was[b"etag"]) == (b"<head>", b"x")
    titles = {path.stem for path in Path(views.__file__).parent.glob("[a-z]*.py")}
    assert {*PAGES, "overview"} == titles, "a page that is not named is taken for a folder"
