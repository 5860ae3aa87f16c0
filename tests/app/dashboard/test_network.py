"""The server on a network, for real: under which names it answers whom what, by HTTP and by WebSocket."""

import http.client
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from driving import serving
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from q36eval.history import History

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
NAME = "review.example.org"


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("history") / "history.sqlite"
    History.open(path).close()
    return path


@pytest.fixture(scope="module")
def here(history: Path) -> Iterator[int]:
    """The port of a server on loopback."""
    with serving(history) as root:
        yield int(root.rpartition(":")[2])


@pytest.fixture(scope="module")
def everywhere(history: Path) -> Iterator[int]:
    """The port of one on all addresses of this machine, behind a proxy of that name."""
    with serving(history, "--address", "0.0.0.0", "--allow-host", NAME) as root:
        yield int(root.rpartition(":")[2])


def asked(
    port: int, path: str, host: str | None, method: str = "GET", address: str = "127.0.0.1", **headers: str
) -> tuple[int, str, http.client.HTTPMessage]:
    """Status, text and headers of an answer."""
    connection = http.client.HTTPConnection(address, port, timeout=60)
    connection.putrequest(method, path, skip_host=True)
    for name, value in (({} if host is None else {"Host": host}) | headers).items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    text = answer.read().decode("utf-8", "replace")
    connection.close()
    return answer.status, text, answer.headers


def connected(port: int, host: str, origin: str | None) -> int:
    """The status of a WebSocket's handshake: 101 where it is taken."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as own:
        url = f"ws://{host}/_stcore/stream"
        try:
            with connect(url, sock=own, origin=origin, subprotocols=["streamlit"], proxy=None, close_timeout=1):
                return 101
        except InvalidStatus as error:
            return error.response.status_code


def test_a_name_of_somebody_else_is_refused_though_its_page_is_of_the_same_origin(here: int, everywhere: int) -> None:
    for port in (here, everywhere):
        for host in ("evil.example.com", f"evil.example.com:{port}", "localhost.evil.example.com", "127.0.0.1.nip.io"):
            status, text, _ = asked(port, "/", host, Origin=f"http://{host}")
            assert (status, text.count("\n")) == (421, 1)
            assert "--allow-host NAME" in text
            assert asked(port, "/_stcore/health", host)[0] == 421
            assert connected(port, host, f"http://{host}") == 421
        for no_name in (None, "", "localhost@evil.example.com", "localhost/", "localhost:x"):
            assert asked(port, "/", no_name)[0] in (400, 421)


def test_its_own_names_and_the_address_that_was_reached_are_answered(here: int, everywhere: int) -> None:
    for host in (f"localhost:{here}", f"127.0.0.1:{here}", f"[::1]:{here}", "LOCALHOST", "localhost."):
        assert asked(here, "/review?run=latest", host)[0] == 200
    assert connected(here, f"localhost:{here}", f"http://localhost:{here}") == 101
    assert connected(here, "localhost", None) == 101  # no browser
    assert asked(here, "/", NAME)[0] == 421
    assert asked(everywhere, "/", NAME)[0] == 200
    assert connected(everywhere, NAME, f"https://{NAME}") == 101
    assert asked(everywhere, "/", f"127.0.0.2:{everywhere}", address="127.0.0.2")[0] == 200
    assert asked(everywhere, "/", "127.0.0.2", address="127.0.0.1")[0] == 421


def test_pages_of_another_site_or_program_reach_nothing(here: int, everywhere: int) -> None:
    for port in (here, everywhere):
        host = f"localhost:{port}"
        for origin in ("http://evil.example.com", "http://localhost:1", "http://127.0.0.1:3000", "null", "file://"):
            assert connected(port, host, origin) == 403
            assert asked(port, "/_stcore/host-config", host, Origin=origin)[0] == 403
    assert connected(everywhere, NAME, "http://evil.example.com") == 403


def test_nobody_but_the_pages_writes(here: int) -> None:
    host = f"localhost:{here}"
    for path in ("/", "/review", "/_stcore/upload_file/a/b"):
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert asked(here, path, host, method)[0] == 405, (method, path)
    for path in ("/", "/run?run=latest", "/_stcore/health", "/_stcore/host-config"):
        assert asked(here, path, host)[0] == 200


def test_every_answer_says_what_may_be_done_with_it(here: int) -> None:
    for path, host in (
        ("/", "localhost"),
        ("/_stcore/health", "localhost"),
        ("/", "evil"),
    ):
        headers = asked(here, path, host)[2]
        assert headers.get_all("X-Frame-Options") == ["DENY"]
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert headers.get_all("X-Content-Type-Options") == ["nosniff"]
        assert headers["Referrer-Policy"] == "same-origin"
        assert headers.get("Access-Control-Allow-Origin") is None
