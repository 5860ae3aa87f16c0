"""History: files that go away, locks, changes behind the program's back, archives and decisions from elsewhere."""

import hashlib
import io
import json
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
import warnings
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.faults import Bench, fault
from benchmarks.faults.bench import Done

JUDGING = threading.Lock()
AGAIN = ("--require-sign-off",)
HOLDER = """\
import sqlite3, sys, time
held = sqlite3.connect(sys.argv[1], isolation_level=None)
held.execute("BEGIN IMMEDIATE")
print("held", flush=True)
time.sleep(float(sys.argv[2]))
"""


def judged(bench: Bench) -> Path:
    """Gives the state a history with a damaged branch's FAIL and an unsigned PASS, the newer; returns its file."""
    source = bench.corpus.parent / "judged"
    with JUDGING:
        if not source.exists():
            broken = bench.copy("fp8-head")
            weights = broken / "model.safetensors"
            weights.write_bytes(weights.read_bytes()[:-1])
            bench.q36eval("gate", "--branch", broken, *bench.weights_alone).told(exit=1)
            bench.q36eval("gate", "--branch", "fp8-head", *bench.weights_alone, *AGAIN).told(exit=3)
            closed(bench.state / "history.sqlite")
            shutil.copytree(bench.state, source)
            shutil.rmtree(broken)
            shutil.rmtree(bench.state)
    shutil.copytree(source, bench.state)
    return bench.state / "history.sqlite"


def closed(history: Path) -> None:
    """All of it in the one file."""
    with closing(sqlite3.connect(history)) as raw:
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def changed(history: Path, statement: str) -> None:
    """SQL behind the program's back; it must change something."""
    with closing(sqlite3.connect(history)) as raw, raw:
        assert raw.execute(statement).rowcount > 0, f"nothing to change: {statement}"


def runs(bench: Bench) -> list[dict[str, Any]]:
    """The runs, newest first, as `history list` has them."""
    listed: list[dict[str, Any]] = json.loads(bench.q36eval("history", "list", "--json").stdout)["runs"]
    return listed


def verified(bench: Bench, exit: int, says: str | None = None, *options: object) -> str:
    """What `history verify` finds, as told."""
    done = bench.q36eval("history", "verify", *options)
    done.told(exit=exit, says=says)
    line = next((line for line in done.stdout.splitlines() if says is not None and says in line), done.stdout)
    return f"exit {done.exit}: {line.strip().splitlines()[0]}"


def exported(bench: Bench, verdict: str) -> Path:
    """An archive of the judged run of that verdict, as another machine made it; the state is empty again."""
    judged(bench)
    return packed(bench, verdict)


def packed(bench: Bench, verdict: str) -> Path:
    """The state's run of that verdict as an archive; the state is empty then."""
    archive = bench.folder / "runs.zip"
    run = next(one["id"] for one in runs(bench) if one["verdict"] == verdict)
    bench.q36eval("history", "export", run, "--out", archive).told(exit=0)
    shutil.rmtree(bench.state)
    return archive


def edited(archive: Path, part: str, edit: Callable[[Any], object]) -> Path:
    """The archive with the JSON lines of one of its files changed, and its manifest made to fit."""
    with zipfile.ZipFile(archive) as old:
        files = {name: old.read(name) for name in old.namelist()}
    name = next(name for name in files if name.endswith(part))
    lines = [json.loads(line) for line in files[name].splitlines()]
    edit(lines)
    files[name] = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    manifest = json.loads(files.pop("manifest.json"))
    manifest["files"] = {
        name: {"sha256": hashlib.sha256(data).hexdigest(), "size_bytes": len(data)} for name, data in files.items()
    }
    files["manifest.json"] = json.dumps(manifest).encode()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as new:
        for name, data in files.items():
            new.writestr(name, data)
    return archive


def with_member(archive: Path, name: str, mode: int = 0o644) -> Path:
    """The archive with one more member."""
    member = zipfile.ZipInfo(name)
    member.external_attr = mode << 16
    with zipfile.ZipFile(archive, "a") as more, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a name stands there twice
        more.writestr(member, "/etc/passwd")
    return archive


def refused(bench: Bench, archive: Path, says: str) -> str:
    """The import of an archive that is refused: one sentence, and nothing of it stays."""
    seen = bench.bash('ulimit -v 4000000; "$@"', "history", "import", archive).told(exit=2, says=says)
    assert runs(bench) == [], "something came in"
    assert json.loads(bench.q36eval("history", "accept", "--json").stdout) == [], "a decision came in"
    return seen


def lost(bench: Bench, swap: Callable[[Path], None]) -> tuple[Done, Path]:
    """A gate under which `swap` does something to its history once it measures; how it ended, and the history."""
    history = bench.reference() / "history.sqlite"
    running = bench.start("gate", "--branch", "fp8-head", *bench.small)

    def measuring() -> bool:
        try:
            with closing(sqlite3.connect(f"file:{history}?mode=ro", uri=True)) as raw:
                return bool(raw.execute("SELECT count(*) FROM measurements").fetchone()[0])
        except sqlite3.Error:
            return False

    running.wait_for(measuring)
    swap(history)
    return running.end(), history


def taken_up(bench: Bench, done: Done) -> str:
    """What was said of a history that went away; what was measured is imported, and continued."""
    seen = done.told(exit=4, says="history import")
    (archive,) = (bench.state / "rescued").iterdir()
    bench.q36eval("history", "import", archive).told(exit=0)
    bench.q36eval("gate", "--branch", "fp8-head", *bench.small, "--resume", runs(bench)[0]["id"]).told(exit=0)
    return f"{seen}; imported and resumed: exit 0"


def other_history(bench: Bench) -> Path:
    """Another history beside the state."""
    other = bench.folder / "other.sqlite"
    elsewhere = {"Q36EVAL_HISTORY": str(other), "Q36EVAL_STATE": str(bench.folder / "elsewhere")}
    bench.q36eval("history", "list", **elsewhere).told(exit=0)
    closed(other)
    return other


@fault(
    "the history's file is deleted while a gate measures",
    "exit 4 at the next write; what was measured is an archive in the state, which can be imported and resumed",
)
def deleted(bench: Bench) -> str:
    def delete(history: Path) -> None:
        for file in history.parent.glob("history.sqlite*"):
            file.unlink()

    done, history = lost(bench, delete)
    assert not history.exists(), "an empty one was made in its place"
    return taken_up(bench, done)


@fault(
    "another history takes the place of the file while a gate measures",
    "exit 4 at the next write; nothing is written to the other; what was measured can be imported and resumed",
)
def replaced(bench: Bench) -> str:
    other = other_history(bench)

    def replace(history: Path) -> None:
        for file in history.parent.glob("history.sqlite-*"):
            file.unlink()
        other.replace(history)

    done, _ = lost(bench, replace)
    assert runs(bench) == [], "the other history was written to"
    return taken_up(bench, done)


@fault(
    "another history is copied over the file (after a checkpoint) while a gate measures",
    "exit 4 at the next write, one sentence",
)
def written_over(bench: Bench) -> str:
    other = other_history(bench)

    def copy_over(history: Path) -> None:
        closed(history)
        history.write_bytes(other.read_bytes())

    done, _ = lost(bench, copy_over)
    return done.told(exit=4)


@fault("another process holds the history longer than is waited for", "a sentence, then exit 4; nothing is half done")
def held_too_long(bench: Bench) -> str:
    history = judged(bench)
    run = runs(bench)[0]["id"]
    with subprocess.Popen([sys.executable, "-c", HOLDER, history, "300"], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        signed = ("sign-off", run, "--owner", "eva", "--reason", "read")
        done = bench.q36eval(*signed, Q36EVAL_HISTORY_WAIT="33")
        holder.kill()
    assert "waiting for it, 33 s at most" in done.stderr, done.stderr
    return done.told(exit=4, says="held it for too long")


@fault("another process holds the history for some seconds", "it is waited for, and then written")
def held_for_a_while(bench: Bench) -> str:
    history = judged(bench)
    run = runs(bench)[0]["id"]
    with subprocess.Popen([sys.executable, "-c", HOLDER, history, "5"], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        seen = bench.q36eval("sign-off", run, "--owner", "eva", "--reason", "read").told(exit=0)
    return f"{seen}; {verified(bench, 0)}"


@fault("a database URL with one slash", "exit 2, nothing of the password, and no file of that name")
def one_slash(bench: Bench) -> str:
    done = bench.q36eval("history", "list", Q36EVAL_HISTORY="postgresql:/eva:s3cret@db/history")
    assert "s3cret" not in done.stdout + done.stderr
    assert not Path("postgresql:").exists(), "a file of that name was made"
    return done.told(exit=2, says="no URL that can be read")


@fault("a database URL whose password holds an unescaped @", "exit 2, nothing of the password; %40 is named")
def at_in_password(bench: Bench) -> str:
    done = bench.q36eval("history", "list", Q36EVAL_HISTORY="postgresql://eva:s3@cret@localhost/history")
    assert not any(part in done.stdout + done.stderr for part in ("s3", "cret"))
    return done.told(exit=2, says="%40")


@fault("the history is a text file", "exit 2, one sentence; the file stays as it is")
def text_file(bench: Bench) -> str:
    bench.state.mkdir()
    (bench.state / "history.sqlite").write_text("my notes\n" * 1000)
    seen = bench.q36eval("gate", "--branch", "fp8-head", *bench.weights_alone).told(exit=2, says="not a database")
    assert (bench.state / "history.sqlite").read_text() == "my notes\n" * 1000
    return seen


@fault("pages of the history's file are overwritten with zeros", "one sentence and no PASS, or `verify` finds it")
def zeroed_pages(bench: Bench) -> str:
    history = judged(bench)
    with history.open("r+b") as file:
        file.seek(history.stat().st_size // 2 // 4096 * 4096)
        file.write(b"\0" * 8 * 4096)
    done = bench.q36eval("history", "verify")
    assert done.exit in (1, 2, 4), f"exit {done.exit}: {done.sentence}"
    return done.told(exit=done.exit)


@fault("a FAIL is made a PASS in the database", "`history list` says unverified, `history verify` exits 1 and names it")
def verdict_changed(bench: Bench) -> str:
    changed(judged(bench), "UPDATE runs SET verdict = 'PASS', exit_code = 0 WHERE verdict = 'FAIL'")
    assert [run["unverified"] for run in runs(bench)] == [False, True]
    return verified(bench, 1, "exit_code, verdict was changed")


@fault("a measurement is changed in the database", "`history verify` exits 1 and names the run's evidence")
def figure_changed(bench: Bench) -> str:
    changed(judged(bench), "UPDATE measurements SET value = 0, effect = 0, lower = 0, upper = 0, scored = 7")
    return verified(bench, 1, "the evidence was changed")


@fault("a measurement is changed, then the run is signed", "exit 2: what is signed is what was measured")
def changed_and_signed(bench: Bench) -> str:
    changed(judged(bench), "UPDATE measurements SET scored = scored + 1")
    return bench.q36eval("sign-off", "latest", "--owner", "eva", "--reason", "read").told(
        exit=2, says="is not what its verdict was found from"
    )


@fault("a signature is written into the database by hand", "`history verify` exits 1: no entry is of it")
def signature_slipped_in(bench: Bench) -> str:
    history = judged(bench)
    changed(
        history,
        "INSERT INTO sign_offs (run_id, owner, reason, at, report_sha256) "
        "SELECT id, 'mallory', 'trust me', started, 'ab' FROM runs",
    )
    return verified(bench, 1, "no entry is of it")


@fault("an entry of the chain is deleted", "`history verify` exits 1 and names the entry")
def entry_deleted(bench: Bench) -> str:
    changed(judged(bench), "DELETE FROM ledger WHERE position = 1")
    return verified(bench, 1, "entry 1 is gone")


@fault(
    "the end of the chain is cut off with the run that it is of",
    "the chain alone fits; the entry that a job's log kept does not: exit 1",
)
def chain_cut_off(bench: Bench) -> str:
    history = judged(bench)
    run = runs(bench)[0]["id"]
    junit = bench.q36eval("report", run, "--format", "junit").stdout
    anchor = junit.partition('name="history_entry" value="')[2].partition('"')[0]
    assert len(anchor) == 64, junit[:500]
    with closing(sqlite3.connect(history)) as raw, raw:
        raw.execute("PRAGMA foreign_keys = ON")
        raw.execute("DELETE FROM runs WHERE id = ?", (run,))
        raw.execute("DELETE FROM ledger WHERE run_id = ?", (run,))
    verified(bench, 0)
    return verified(bench, 1, "NOT in this chain", "--anchor", anchor)


@fault(
    "a signature made elsewhere arrives with its run",
    "imported, not in force: `gate --require-sign-off` stays exit 3 until somebody here accepts it by name",
)
def signature_by_mail(bench: Bench) -> str:
    judged(bench)
    bench.q36eval("sign-off", "latest", "--owner", "mallory", "--reason", "trust me").told(exit=0)
    archive = packed(bench, "INCONCLUSIVE")
    imported = bench.q36eval("history", "import", archive)
    imported.told(exit=0, says="imported, not in force: sign-off-1")
    again = ("gate", "--branch", "fp8-head", "--resume", runs(bench)[0]["id"], *AGAIN)
    seen = bench.q36eval(*again).told(exit=3)
    bench.q36eval("history", "accept", "sign-off-1", "--owner", "eva", "--reason", "known").told(exit=0)
    return f"{seen}; accepted by name: {bench.q36eval(*again).told(exit=0)}"


@fault("a decision from elsewhere is accepted without a name", "exit 2")
def accepted_by_nobody(bench: Bench) -> str:
    judged(bench)
    return bench.q36eval("history", "accept", "sign-off-1").told(exit=2, says="--owner")


@fault("a FAIL is rewritten to PASS in an archive", "imported as FAIL, with a sentence that says so")
def pass_by_mail(bench: Bench) -> str:
    def rewritten(lines: Any) -> None:
        text = json.dumps(lines[0]["report"]).replace('"FAIL"', '"PASS"')
        lines[0]["report"] = json.loads(text) | {"exit_code": 0, "decisive": []}
        lines[0]["verdict"] = "PASS"

    archive = edited(exported(bench, "FAIL"), "run.json", rewritten)
    done = bench.q36eval("history", "import", archive)
    done.told(exit=0, says="the archive says PASS, its evidence gives FAIL")
    assert [run["verdict"] for run in runs(bench)] == ["FAIL"]
    return "exit 0: " + next(line.strip() for line in done.stdout.splitlines() if "its evidence gives" in line)


@fault("an archive brings a blessing dated 2099", "exit 2; it would stay the newest for seventy years")
def blessing_of_2099(bench: Bench) -> str:
    def blessed(lines: Any) -> None:
        run = runs_of[0]
        lines[0]["blessings"] = [
            {key: run[key] for key in ("family", "branch")}
            | {"run_id": run["id"], "owner": "m", "reason": "m", "at": "2099-01-01T00:00:00Z"}
        ]

    judged(bench)
    runs_of = [run for run in runs(bench) if run["verdict"] == "FAIL"]
    return refused(bench, edited(packed(bench, "FAIL"), "about.json", blessed), "in the future")


@fault("an archive brings a run dated 2099", "exit 2; it would stay `latest`")
def run_of_2099(bench: Bench) -> str:
    def later(lines: Any) -> None:
        lines[0]["started"] = lines[0]["finished"] = "2099-01-01T00:00:00Z"

    return refused(bench, edited(exported(bench, "FAIL"), "run.json", later), "in the future")


@fault("an archive of one megabyte that unpacks to a gigabyte", "exit 2 in seconds, in little memory")
def zip_bomb(bench: Bench) -> str:
    archive = exported(bench, "FAIL")
    target = io.BytesIO()
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            with new.open(name, "w", force_zip64=True) as part:
                part.write(old.read(name))
                for _ in range(1024 if name.endswith("items.jsonl") else 0):
                    part.write(b"[" * (1 << 20))
    archive.write_bytes(target.getvalue())
    assert archive.stat().st_size < 2 << 20
    return refused(bench, archive, "more than any export of its size")


@fault("an archive with JSON nested a million deep", "exit 2, one sentence")
def deep_json(bench: Bench) -> str:
    archive = edited(exported(bench, "FAIL"), "about.json", lambda lines: lines.append("DEEP"))
    with zipfile.ZipFile(archive) as old:
        files = {name: old.read(name) for name in old.namelist()}
    name = next(name for name in files if name.endswith("about.json"))
    files[name] = files[name].replace(b'"DEEP"', b"[" * 1_000_000)
    manifest = json.loads(files["manifest.json"])
    manifest["files"][name] = {"sha256": hashlib.sha256(files[name]).hexdigest(), "size_bytes": len(files[name])}
    files["manifest.json"] = json.dumps(manifest).encode()
    with zipfile.ZipFile(archive, "w") as new:
        for name, data in files.items():
            new.writestr(name, data)
    return refused(bench, archive, "about.json, line 2 cannot be read")


@fault("an archive with a file called ../../evil", "exit 2; nothing is written outside")
def path_out(bench: Bench) -> str:
    return refused(bench, with_member(exported(bench, "FAIL"), "../../evil"), "no export writes a file '../../evil'")


@fault("an archive with a symbolic link", "exit 2; nothing is followed")
def link_in_archive(bench: Bench) -> str:
    archive = with_member(exported(bench, "FAIL"), f"artifacts/{'0' * 64}", stat.S_IFLNK | 0o777)
    return refused(bench, archive, "it holds a link or a folder")


@fault("an archive in which a file stands twice", "exit 2")
def member_twice(bench: Bench) -> str:
    return refused(bench, with_member(exported(bench, "FAIL"), "waivers.json"), "it holds a file twice")


@fault("an archive that is cut short", "exit 2, one sentence")
def archive_cut_short(bench: Bench) -> str:
    archive = exported(bench, "FAIL")
    archive.write_bytes(archive.read_bytes()[:-100])
    return refused(bench, archive, "damaged")


@fault("an import is killed at any moment, eight times", "no run in half; done again it is whole, and the chain fits")
def import_killed(bench: Bench) -> str:
    archive = exported(bench, "INCONCLUSIVE")
    for number in range(8):
        running = bench.start("history", "import", archive)
        running.wait_for((bench.state / "history.sqlite").exists)
        time.sleep(0.05 * number)
        running.send(signal.SIGKILL, group=True).end()
        verified(bench, 0)
    bench.q36eval("history", "import", archive).told(exit=0)
    assert [run["verdict"] for run in runs(bench)] == ["INCONCLUSIVE"]
    return verified(bench, 0, "entries fit")


@fault("four processes sign, bless and waive at once", "one chain, in which all of it is")
def appended_together(bench: Bench) -> str:
    judged(bench)
    run = runs(bench)[0]["id"]
    started = [bench.start("sign-off", run, "--owner", f"eva {n}", "--reason", "read") for n in range(2)]
    started += [bench.start("history", "bless", run, "--owner", f"jan {n}", "--reason", "good") for n in range(2)]
    for one in started:
        one.end().told(exit=0)
    return verified(bench, 0, "All 7 entries fit")


def collected(bench: Bench, history: Path) -> str:
    """`history gc` with an old file of no run of the history in use; it must stay, and it is said why."""
    file = bench.state / "artifacts" / "ab" / ("ab" + "0" * 62)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"of a run in the other history")
    subprocess.run(["touch", "-d", "2020-01-01", file], check=True)
    done = bench.q36eval("history", "gc", "--packs")
    seen = done.told(exit=0, says="no file, folder or pack is removed")
    assert file.exists(), f"{seen}: the file is gone"
    line = next(line for line in done.stdout.splitlines() if "stores files here too" in line)
    return f"exit 0: {line.replace(str(history.parent), '…').replace(str(bench.folder), '…')}"


def noted(bench: Bench, history: Path, history_id: str = "") -> None:
    """Another history keeps files in this state, as a gate into it notes."""
    (bench.state / "artifacts").mkdir(parents=True, exist_ok=True)
    with (bench.state / "artifacts" / "histories.txt").open("a") as notes:
        notes.write(f"{history}\t{history_id}\n")


@fault("`history gc` while the disk of another history is not mounted", "nothing that it may need is removed")
def gc_unmounted(bench: Bench) -> str:
    judged(bench)
    other = bench.folder / "not-mounted" / "history.sqlite"
    noted(bench, other, "4f1c")
    return collected(bench, other)


@fault("`history gc` while another history cannot be read", "nothing that it may need is removed")
def gc_unreadable(bench: Bench) -> str:
    judged(bench)
    other = bench.folder / "other.sqlite"
    other.write_bytes(b"damaged" * 1000)
    noted(bench, other)
    return collected(bench, other)


@fault("`history gc` after the history was deleted and begun anew", "what the old one may need stays")
def gc_after_a_new_beginning(bench: Bench) -> str:
    history = judged(bench)
    noted(bench, history.resolve(), "0" * 64)
    for file in bench.state.glob("history.sqlite*"):
        file.unlink()
    return collected(bench, history)
