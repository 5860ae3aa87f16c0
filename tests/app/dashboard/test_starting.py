"""How `q36eval ui` starts the server: who can reach it, under which names, and what others on the machine can read."""

import os
from itertools import pairwise
from typing import Any

import pytest

import q36eval.app.cli.ui as starting
from q36eval.app.dashboard.started import Started
from q36eval.errors import UsageError

URL = "postgresql+psycopg://eva:secret@db.example.org/q36eval"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Starts it; its arguments, those of the page, and its environment."""
    called: dict[str, Any] = {}
    monkeypatch.setattr(starting.subprocess, "call", lambda command, env: called.update(command=command, env=env) or 0)

    def start(**options: Any) -> tuple[list[str], list[str], dict[str, str]]:
        starting.ui(**options)
        place = called["command"].index("--")
        return called["command"][:place], called["command"][place + 1 :], called["env"]

    return start


def names(command: list[str]) -> set[str]:
    return {value for name, value in pairwise(command) if name == "--server.allowedHosts"}


def test_on_loopback_a_page_of_another_name_gets_no_answer(started: Any) -> None:
    """A web page elsewhere can let its own name point to loopback, and is then of one origin with what answers."""
    command, page, _ = started()
    assert names(command) == {"localhost", "127.0.0.1", "::1"}
    assert page == []
    assert command[command.index("--server.enableCORS") + 1] == "true", "whatever a configuration nearby says"
    assert "127.0.0.2" in names(started(address="127.0.0.2")[0])
    assert names(started(address="10.0.0.7")[0]) == set(), "whoever reaches it may call it what they like"


def test_behind_a_proxy_only_who_logs_in_may_write(started: Any, capsys: pytest.CaptureFixture[str]) -> None:
    command, page, _ = started(host=["review.example.org"])
    assert names(command) == {"localhost", "127.0.0.1", "::1", "review.example.org"}
    assert page == ["--shared"]
    assert "anyone who reaches review.example.org can read" in capsys.readouterr().err
    assert started(host=["review.example.org"], trust_network=True)[1] == []
    assert started(address="0.0.0.0", read_only=True)[1] == ["--read-only", "--shared"]
    for no_name in ("*", "https://review.example.org", "review.example.org:443", ""):
        with pytest.raises(UsageError, match="--host takes a name"):
            started(host=[no_name])


def test_a_password_of_the_history_is_no_argument(started: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    command, page, environment = started(history=URL)
    assert not any("secret" in part for part in (*command, *page))
    monkeypatch.setattr(os, "environ", environment)
    assert Started.of(page).source == URL
