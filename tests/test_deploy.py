"""The files for operators, each read by its own tool; and what they name of the watch is what that exports."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.test_docs import options

DEPLOY = Path(__file__).parents[1] / "docs" / "deploy"
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
