"""The pages for people hold: the files, packages, commands, options and targets that they name exist.

The files for operators are each read by their own tool; and what they name of the watch is what that exports.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.commands import command_tree

ROOT = Path(__file__).parents[1]
PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "benchmarks").glob("*.md"), *(ROOT / "docs").glob("**/*.md")})
PAGES += [ROOT / "data" / "sandbox" / "README.md", ROOT / "data" / "drafts" / "README.md"]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES if page.name != "CHANGELOG.md"]
COMMANDS = command_tree()
FOLDERS = ("app", "benchmarks", "canaries", "data", "docs", "evals", "kl", "q36eval", "tests")


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def fences_of(name: str) -> str:
    return "\n".join(re.findall(r"```[^\n]*\n(.*?)```", text_of(name), re.DOTALL))


@pytest.mark.parametrize("name", NAMES)
def test_every_path_it_names_exists(name: str) -> None:
    """Code in back quotes that begins with a folder of ours is a path; one with a word in capitals is a pattern."""
    named = re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]*)`", text_of(name))
    named += re.findall(r"\b(docs/[\w/-]+\.md)\b", text_of(name))
    paths = [path for path in named if not re.search(r"[A-Z]{2,}", path)]
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_page_that_code_and_data_name_exists() -> None:
    files = [file for folder in FOLDERS for kind in ("py", "yaml") for file in (ROOT / folder).glob(f"**/*.{kind}")]
    named = {page for file in files for page in re.findall(r"\bdocs/[a-z]+\.md\b", file.read_text(encoding="utf-8"))}
    assert named
    assert [page for page in sorted(named) if not (ROOT / page).exists()] == []


def anchors_of(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", NAMES)
def test_every_link_leads_somewhere(name: str) -> None:
    broken = []
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", text_of(name)):
        if "://" in target:
            continue
        page = (ROOT / name).parent / target if target else ROOT / name
        if not page.exists() or (anchor and anchor not in anchors_of(page)):
            broken.append(f"{target}#{anchor}")
    assert broken == []


def test_the_figure_names_the_packages_there_are() -> None:
    figure = text_of("docs/architecture.md").split("```")[1]
    plain = re.sub(r"\(.*?\)", "", figure)
    packages = {path.parent.name for folder in FOLDERS for path in (ROOT / folder).glob("**/__init__.py")}
    top = {path.parent.name for path in (ROOT / "q36eval").glob("*/__init__.py")}  # the links are followed
    assert top <= set(re.findall(r"[\w]+", plain)), "a package of q36eval is not in the figure"
    steps = next(line for line in figure.splitlines() if "one gate:" in line).partition("one gate:")[2].split("→")
    assert all((ROOT / "q36eval" / "run" / f"{step.strip()}.py").exists() for step in steps)
    left_column = set(re.findall(r"^ (\w+)", plain, re.MULTILINE))
    assert left_column <= packages


@pytest.mark.parametrize("name", NAMES)
def test_every_command_and_option_it_shows_exists(name: str) -> None:
    """In lines and back quotes that begin with `q36eval`; alternatives are written `show|list`."""
    shown = re.findall(r"^ *(?:- )?(q36eval [^\n]*)$", fences_of(name), re.MULTILINE)
    shown += [" ".join(code.split()) for code in re.findall(r"`(q36eval [^`]*)`", text_of(name))]
    problems = []
    for line in shown:
        for part in re.split(r"\bq36eval (?=[a-z])", line)[1:]:
            words_of = part.split()
            for first in words_of[0].rstrip(".,;:)").split("|"):
                command = f"q36eval {first}"
                if command not in COMMANDS:
                    problems.append(line)
                    continue
                group = getattr(COMMANDS[command], "commands", {})
                seconds = words_of[1].rstrip(".,;:)").split("|") if group and len(words_of) > 1 else []
                for second in seconds:
                    if re.fullmatch("[a-z][a-z-]*", second) and second not in group:
                        problems.append(line)
                    command = f"q36eval {first} {second}" if second in group else command
                known = {option for each in (command, f"q36eval {first}") for option in options(each)}
                text = part.split("  ")[0].split(" · ")[0]  # what a second column explains is not an option
                problems += [line for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", text) if option not in known]
    assert problems == []


def options(command: str) -> set[str]:
    return {name for parameter in COMMANDS[command].params for name in (*parameter.opts, *parameter.secondary_opts)}


def test_every_command_and_option_has_help_that_names_existing_options_alone() -> None:
    """Options of that command, or of the one before them in the same back quotes."""
    problems = []
    for name, command in COMMANDS.items():
        for text in (command.help, *(getattr(each, "help", "") for each in command.params)):
            named = re.findall(r"(?:`(?:q36eval )?([a-z][a-z -]*) )?(?<![\w-])(--[a-z][a-z-]*)", text or "")
            others = [other for other, option in named if option not in options(f"q36eval {other}" if other else name)]
            problems += [f"{name}: {text}"] if others or not (text or "").strip() else []
    assert problems == []


@pytest.mark.parametrize("name", NAMES)
def test_every_target_of_make_exists(name: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.MULTILINE))
    named = set(re.findall(r"^make ([a-z][a-z-]*)", fences_of(name), re.MULTILINE)) | set(
        re.findall(r"`make ([a-z][a-z-]*)", text_of(name))
    )
    assert named <= targets


@pytest.mark.parametrize(("good", "bad", "code"), [(0, 1, 0), (3, 1, 1), (0, 0, 1), (4, 1, 4)])
def test_the_demo_ends_by_its_verdicts(good: int, bad: int, code: int, tmp_path: Path) -> None:
    for name, line in ("python", "echo $0"), ("q36eval", f"case $3 in *w8a16) exit {good};; *) exit {bad}; esac"):
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    done = run(str(ROOT / "benchmarks" / "demo.sh"), tmp_path, tmp_path / "models")
    assert (done.returncode, "q36eval ui" in done.stdout) == (code, code < 2)


# -- files for operators

DEPLOY = ROOT / "docs" / "deploy"
RULES = DEPLOY / "prometheus" / "q36eval.rules.yaml"
DASHBOARD = DEPLOY / "grafana" / "q36eval.json"


def run(program: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
    """That program's answer; without it here the test is skipped by name."""
    found = shutil.which(program) or shutil.which(program, path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip(f"{program} is not installed here")
    return subprocess.run([found, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False)


def passes(program: str, *arguments: object) -> str:
    ran = run(program, *arguments)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.long
def test_prometheus_takes_the_rules_and_alarms_when_it_should() -> None:
    passes("promtool", "check", "rules", RULES)
    passes("promtool", "test", "rules", DEPLOY / "prometheus" / "q36eval.rules.test.yaml")


def test_alertmanager_takes_the_routes_and_pages_of_an_incident() -> None:
    config = DEPLOY / "prometheus" / "alertmanager.yaml"
    passes("amtool", "check-config", config)
    routed = ["config", "routes", "test", f"--config.file={config}"]
    assert passes("amtool", *routed, "alertname=Q36evalIncident", "severity=page").split() == ["on-call"]
    assert passes("amtool", *routed, "alertname=Q36evalPutOff", "severity=info").split() == ["model-serving"]


def test_inhibitions_name_alerts_that_there_are() -> None:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    alerts = {rule["alert"] for group in groups for rule in group["rules"]}
    text = (DEPLOY / "prometheus" / "alertmanager.yaml").read_text(encoding="utf-8")
    assert set(re.findall(r"Q36eval\w+", text)) <= alerts


@pytest.mark.parametrize("folder", ["service", "once"])
def test_kubernetes_takes_the_manifests(folder: str, tmp_path: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    manifests = list(yaml.safe_load_all(passes("kubectl", "kustomize", DEPLOY / "kubernetes" / folder)))
    assert {"Deployment", "Service"} <= {each["kind"] for each in manifests} or folder == "once"
    for manifest in manifests:
        validate.validate(manifest, validate.latest_version(), strict=True)


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    for unit in (DEPLOY / "systemd").glob("q36eval-watch*"):
        text = unit.read_text(encoding="utf-8").replace("/opt/q36eval/bin/q36eval", "/bin/true")
        (tmp_path / unit.name.replace("@.", "@prod.")).write_text(text, encoding="utf-8")
    ran = run("systemd-analyze", "verify", *tmp_path.iterdir())
    assert (ran.returncode, ran.stderr) == (0, "")


def test_units_and_manifests_use_options_that_there_are() -> None:
    files = [*(DEPLOY / "systemd").iterdir(), *(DEPLOY / "kubernetes").rglob("*.yaml")]
    used = {name: re.findall(r"(?<![\w-])--[a-z][a-z-]*", name.read_text(encoding="utf-8")) for name in files}
    assert sum(map(len, used.values())) > 15
    unknown = {name.name: set(found) - options("q36eval watch") - {"--now"} for name, found in used.items()}
    assert not any(unknown.values()), unknown


def test_hadolint_finds_nothing_in_the_containerfile() -> None:
    # Debian's packages are not pinned: a build years later must still find them
    passes("hadolint", "--ignore", "DL3008", DEPLOY / "Containerfile")


def test_the_containerfile_copies_every_folder_of_the_package() -> None:
    linked = {path.name for path in (DEPLOY.parents[1] / "q36eval").iterdir() if path.is_symlink()}
    copied = re.findall(r"^COPY (\w+) \1$", (DEPLOY / "Containerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(copied) == linked | {"q36eval"}


def exported() -> dict[str, set[str]]:
    """Every series that the watch exports, with its labels, by the page that says so."""
    page = (DEPLOY.parent / "watch.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(q36eval_\w+)` \| \w+ \|([^|]*)\|", page, re.MULTILINE)
    # "`metric`: `loss_share`, …; `slice` as above; …": names stand before what says of their values
    parts = {name: [re.split(r":| as above", part)[0] for part in labels.split(";")] for name, labels in rows}
    return {name: {"deployment", *re.findall(r"`(\w+)`", " ".join(told))} for name, told in parts.items()}


@pytest.mark.parametrize("file", [RULES, RULES.with_suffix(".test.yaml"), DASHBOARD], ids=lambda file: file.name)
def test_every_series_and_label_that_is_named_is_exported(file: Path) -> None:
    known = exported()
    assert len(known) > 20
    text = file.read_text(encoding="utf-8").replace('\\"', '"')
    named = re.findall(r"\b(q36eval_[a-z_]+)(?:\{([^}]*)\})?", text)
    assert {name for name, _ in named} <= set(known)
    for name, labels in named:
        used = set(re.findall(r"(\w+)(?:=~|=|!=)", labels)) - {"instance", "job"}
        assert used <= known[name], f"{name} has no {used - known[name]}"


def test_grafana_reads_the_dashboard_as_it_stands() -> None:
    sdk = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    from grafana_foundation_sdk.cog import plugins
    from grafana_foundation_sdk.cog.encoder import JSONEncoder

    plugins.register_default_plugins()
    written = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    read = json.loads(JSONEncoder().encode(sdk.Dashboard.from_json(written)))
    assert _kept(written, read), "Grafana's model drops something that the file holds"


def _kept(written: Any, read: Any) -> bool:
    if isinstance(written, dict):
        return isinstance(read, dict) and all(key in read and _kept(written[key], read[key]) for key in written)
    if isinstance(written, list):
        return isinstance(read, list) and len(written) == len(read) and all(map(_kept, written, read))
    return bool(written == read)
