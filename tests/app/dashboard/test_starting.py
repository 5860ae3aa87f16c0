"""How `q36eval ui` starts the server: who can reach it, under which names, and what others on the machine can read."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import q36eval.app.cli.ui as starting
from q36eval.app.dashboard import server
from q36eval.app.dashboard.guard import asked_on_this_machine
from q36eval.app.dashboard.launch_options import Started
from q36eval.errors import UsageError
from tests import commands

URL = "postgresql+psycopg://eva:secret@db.example.org/q36eval"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Any, ...]]:
    """Starts it; the arguments of the server."""
    called: list[tuple[Any, ...]] = []
    monkeypatch.setattr(server, "serve", lambda *arguments: called.append(arguments))

    def start(**options: Any) -> tuple[Any, ...]:
        starting.ui(**options)
        return called[-1]

    return start


def test_only_on_loopback_nobody_needs_to_log_in(started: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert started() == ("127.0.0.1", 8501, [], ["--local"])
    for options in ({"allow_host": ["review.example.org"]}, {"address": "0.0.0.0"}, {"address": "10.0.0.7"}):
        *_, hosts, page = started(**options)
        assert (hosts, page) == (options.get("allow_host", []), [])
    assert "anyone who reaches review.example.org can read" in capsys.readouterr().err
    assert started(address="0.0.0.0", read_only=True)[3] == ["--read-only"]
    for no_name in ("*", "https://review.example.org", "review.example.org:443", ""):
        with pytest.raises(UsageError, match="--allow-host takes a name"):
            started(allow_host=[no_name])
    assert not Started.of(["h.sqlite"]).local, "whoever starts the page otherwise shares it"


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


def test_a_taken_port_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused = commands.q36eval("ui", "--port", str(taken.getsockname()[1]), state=tmp_path)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert commands.code_of(refused) == "port-unusable"


def test_a_password_of_the_history_is_no_argument(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whoever may list processes reads arguments; the pages find the URL in the environment."""
    found: list[str] = []
    monkeypatch.setattr(server, "serve", lambda *_: found.append(Started.of([]).source))
    assert commands.q36eval("ui", "--history", URL, state=tmp_path).returncode == 0
    assert found == [URL]
