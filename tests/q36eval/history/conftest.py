"""Histories to test on: each test runs on SQLite and on PostgreSQL, whose server the tests start themselves."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from q36eval.history import History

NUMBERS = count()


def binary(name: str) -> str | None:
    """Where a program of PostgreSQL's server is: distributions keep it out of PATH."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: int(folder.parent.name))
    path = os.pathsep.join([*map(str, reversed(folders)), os.environ.get("PATH", "")])
    return shutil.which(name, path=path)


def unprivileged() -> int | None:
    """Whose process it is: the server refuses to run as root."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name: entry.pw_uid for entry in pwd.getpwall()}
    return known.get("postgres", known.get("nobody"))


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """URL of a server of this session's own, reached by a socket; its database `head` has our tables."""
    initdb, pg_ctl = binary("initdb"), binary("pg_ctl")
    if initdb is None or pg_ctl is None:
        pytest.skip("PostgreSQL is not installed here (no initdb): history is tested on SQLite alone.")
    pytest.importorskip("psycopg", reason="psycopg is not installed here: history is tested on SQLite alone.")
    user, folder = unprivileged(), Path(tempfile.mkdtemp(prefix="q36-pg-"))
    if user is not None:
        os.chown(folder, user, -1)
    data, log = folder / "data", folder / "log"

    def run(*command: str) -> None:
        done = subprocess.run(command, user=user, cwd=folder, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr

    try:
        run(initdb, "-D", str(data), "-U", "q36", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync")
        options = f"-F -k {folder} -c listen_addresses='' -c max_connections=60"
        # its output must not be a pipe that it would hold open
        subprocess.run(
            [pg_ctl, "-D", data, "-w", "-l", log, "-o", options, "start"],
            user=user, cwd=folder, check=True, timeout=600, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        url = f"postgresql://q36@/{{database}}?host={folder}"
        execute(url.format(database="postgres"), "CREATE DATABASE head")
        History.open(url.format(database="head")).close()
        yield url
    finally:
        if (data / "postmaster.pid").exists():
            run(pg_ctl, "-D", str(data), "-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)


def execute(url: str, statement: str) -> None:
    """One statement, outside any transaction."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A history of a test's own: a file, or the URL of a database."""
    if request.param == "sqlite":
        return str(tmp_path / "history.db")
    return fresh(request.getfixturevalue("postgresql"), template="head")


def fresh(server: str, template: str = "template1") -> str:
    """The URL of a new database."""
    name = f"test_{next(NUMBERS)}"
    execute(server.format(database="postgres"), f"CREATE DATABASE {name} TEMPLATE {template}")
    return server.format(database=name)


@pytest.fixture
def history(database: str) -> Iterator[History]:
    opened = History.open(database)
    yield opened
    opened.close()
