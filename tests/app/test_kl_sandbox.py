"""`q36eval kl` on a part of the sandbox corpus: what is kept, printed, plotted and shown; killed and resumed."""

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import q36eval.run.preflight
from q36eval.app.cli.kl_report import print_summary, write_plot
from q36eval.app.targets import load_family, resolve
from q36eval.config import Paths
from q36eval.engines import EngineOptions
from q36eval.errors import UsageError
from q36eval.history import History, RunRecord, RunState
from q36eval.history.run_files import RunFiles
from q36eval.kl.corpus import CorpusDocument
from q36eval.kl.probe import KLProbe
from q36eval.kl.tokens import TokenStore, read_tokens
from q36eval.probes import Progress
from q36eval.records import Measurement, ProbeName
from q36eval.run.measure import measure
from q36eval.run.request import Request, Target
from q36eval.token_files import TOKENS, WORST
from tests.app.dashboard.driving import tables_of

REPOSITORY = Path(__file__).parents[2]
MAIN = REPOSITORY / "app" / "dashboard" / "main.py"


class Silent(Progress):
    def stage(self, title: str, total: int) -> None: ...

    def advance(self, count: int = 1) -> None: ...


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory, with_reference: Callable[[Path], Path]) -> Paths:
    return Paths(REPOSITORY, with_reference(tmp_path_factory.mktemp("state")))


@pytest.fixture(scope="module")
def history(paths: Paths) -> History:
    return History.open(paths.history)


@pytest.fixture(scope="module")
def run_kl(paths: Paths, history: History, some_documents: list[CorpusDocument]) -> Callable[..., RunRecord]:
    family = load_family(None, paths)

    def run(branch: str = "fp8-head", resume: str | None = None, placement: str | None = None) -> RunRecord:
        request = Request(
            family=family,
            branch=resolve(branch, family, paths),
            reference=resolve("bf16", family, paths),
            suite="sandbox",
            policy=None,
            probes=(ProbeName.KL,),
            resume=resume,
            engine=EngineOptions(placement=placement),
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(q36eval.run.preflight, "build_probes", lambda *_: [KLProbe(some_documents)])
            return measure(request, paths, history, Silent())

    return run


@pytest.fixture(scope="module")
def measured(run_kl: Callable[..., RunRecord]) -> RunRecord:
    return run_kl()


def by_key(history: History, run: RunRecord) -> dict[str, Measurement]:
    return {m.key: m for m in history.measurements(run.id)}


@pytest.mark.long
@pytest.mark.parametrize("placement", ["packed", "layers"])
def test_where_weights_lie_moves_no_figure(
    placement: str, run_kl: Callable[..., RunRecord], history: History, measured: RunRecord
) -> None:
    run = run_kl(placement=placement)
    assert run.identity == measured.identity
    assert by_key(history, run) == by_key(history, measured)


@pytest.mark.long
@pytest.mark.parametrize("placement", ["decoded", "packed", "layers"])
def test_a_layer_that_cannot_be_decoded_is_the_same_proven_fault_wherever_weights_lie(
    placement: str, paths: Paths, history: History, some_documents: list[CorpusDocument], tmp_path: Path
) -> None:
    family, damaged = load_family(None, paths), tmp_path / "damaged"
    shutil.copytree(resolve("main", family, paths).folder, damaged)
    tensors = load_file(damaged / "model.safetensors")
    name = "model.layers.3.mlp.experts.2.up_proj.weight_scale"
    tensors[name].view(torch.uint8)[0, 0] = 0x7F  # NaN in E4M3
    save_file(tensors, damaged / "model.safetensors", metadata={"format": "pt"})

    def request(branch: Path, reference: Path) -> Request:
        return Request(
            family=family,
            branch=Target("damaged", branch),
            reference=Target("bf16", reference),
            suite="sandbox",
            policy=None,
            probes=(ProbeName.KL,),
            engine=EngineOptions(placement=placement),
        )

    reference = resolve("bf16", family, paths).folder
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(q36eval.run.preflight, "build_probes", lambda *_: [KLProbe(some_documents)])
        run = measure(request(damaged, reference), paths, history, Silent())
        assert by_key(history, run)["weights.integrity_faults[all]"].value == 1
        assert any("experts.2.up_proj" in failure.reason for failure in history.failures(run.id))
        with pytest.raises(UsageError, match=r"The reference cannot be used: .*experts\.2\.up_proj"):
            measure(request(reference, damaged), paths, history, Silent())


@pytest.mark.long
def test_what_needs_answers_is_refused_of_a_model_that_gives_none(paths: Paths, history: History) -> None:
    family = load_family(None, paths)
    request = Request(
        family=family,
        branch=resolve("fp8-head", family, paths),
        reference=resolve("bf16", family, paths),
        suite="sandbox",
        policy=None,
        probes=(ProbeName.CANARIES,),
        engine=EngineOptions(placement="layers"),
    )
    with pytest.raises(UsageError, match=r"layer by layer, which scores texts .* --skip canaries"):
        measure(request, paths, history, Silent())


@pytest.mark.long
def test_every_scored_token_is_in_the_file_and_makes_the_mean(
    paths: Paths, history: History, measured: RunRecord
) -> None:
    tokens = RunFiles(paths.state).find(history, measured.id, TOKENS)
    assert tokens is not None
    assert not paths.tokens(measured.id).exists()  # kept by its content, it needs no folder any more
    table = read_tokens(tokens)
    kl = by_key(history, measured)["kl.kl_divergence[all]"]
    assert table.num_rows == kl.counts.scored > 2000
    # float32: each term is off by 6e-8 of itself at most
    assert sum(table["forward_kl"].to_pylist()) / table.num_rows == pytest.approx(kl.value, rel=1e-7)
    keys = {outcome.item_key for outcome in history.items(measured.id, ProbeName.KL)}
    assert set(table["item_key"].to_pylist()) == keys


@pytest.mark.long
def test_a_run_killed_in_the_middle_resumes_to_the_same_figures_and_tokens(
    paths: Paths, history: History, measured: RunRecord, run_kl: Callable[..., RunRecord], monkeypatch: Any
) -> None:
    add, seen = TokenStore.add, []

    def killed_at_the_sixth(store: TokenStore, key: str, table: Any) -> None:
        add(store, key, table)
        seen.append(key)
        if len(seen) == 6:  # its tokens are on disk, its outcome is not in history
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TokenStore, "add", killed_at_the_sixth)
        with pytest.raises(KeyboardInterrupt):
            run_kl()
    (interrupted,) = history.list_runs()[:1]
    assert interrupted.state is RunState.INTERRUPTED
    assert len(history.items(interrupted.id)) == 5
    resumed = run_kl(resume=interrupted.id)
    assert resumed.id == interrupted.id
    assert by_key(history, resumed) == by_key(history, measured)
    mine, theirs = ({one.name: one.sha256 for one in history.artifacts(run.id)} for run in (resumed, measured))
    assert mine[WORST] == theirs[WORST]
    tables = [read_tokens(RunFiles(paths.state).path(found[TOKENS])) for found in (mine, theirs)]
    assert tables[0] == tables[1]


@pytest.mark.long
def test_lost_tokens_fail_the_probe_in_words(
    paths: Paths, history: History, run_kl: Callable[..., RunRecord], monkeypatch: Any
) -> None:
    monkeypatch.setattr(TokenStore, "add", lambda *_: None)
    lost = run_kl()
    (failure,) = history.failures(lost.id)
    assert failure.kind == "crashed"
    assert "the tokens of 10 measured documents are gone" in failure.reason
    metrics = {measurement.metric for measurement in history.measurements(lost.id)}
    assert all(metric.endswith("noise_floor") for metric in metrics), "figures of the reference alone"


@pytest.mark.long
def test_the_summary_reads_headline_first_and_worst_tokens_last(
    paths: Paths, history: History, measured: RunRecord, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    print_summary(measured, history, paths)
    printed = capsys.readouterr().out
    found = by_key(history, measured)["kl.kl_divergence[all]"]
    order = ["KL(ref‖branch), mean", "99.9 %", "Without a finite figure: 0 of", "by slice", "by tokens to the left"]
    order += ["by reference's entropy", "worst KL", "every token: "]
    places = [printed.index(words) for words in order]
    assert places == sorted(places)
    assert re.search(rf"KL\(ref‖branch\), mean +{found.value:.4g} nats", printed)
    assert printed.count("⟦") == 20
    assert max(map(len, printed.splitlines()[:-1])) <= 140


@pytest.mark.long
def test_the_plots_are_one_page_that_needs_nothing_else(
    paths: Paths, history: History, measured: RunRecord, tmp_path: Path
) -> None:
    write_plot(measured, history, paths, tmp_path / "kl.html")
    page = (tmp_path / "kl.html").read_text(encoding="utf-8")
    for title in ("Tokens by their KL", "KL by slice", "KL by tokens to the left"):
        assert f"<h2>{title}</h2>" in page
    assert "cdn.plot.ly" not in re.sub(r"plotlyServerURL[^,]*", "", page[-200_000:])
    assert '"code"' in page


@pytest.mark.long
def test_the_dashboard_shows_the_run_without_torch(
    paths: Paths, history: History, measured: RunRecord, monkeypatch: Any
) -> None:
    from streamlit.testing.v1 import AppTest

    monkeypatch.setattr(sys, "argv", ["main.py", str(paths.history)])
    page = AppTest.from_file(str(MAIN), default_timeout=600).run()
    page.query_params["run"], page.query_params["open"] = measured.id, "figures,tokens"
    page = page.switch_page("views/kl.py").run()
    assert not page.exception
    headings = [element.value for element in page.header]
    assert headings[:2] == ["Tokens by their KL", "Where it diverges"]
    assert headings[-1] == "The 20 worst tokens"
    headline = tables_of(page)[0]
    assert headline["figure"][0] == "KL(ref‖branch), mean"
    kept = RunFiles(paths.state).find(history, measured.id, WORST)
    assert kept is not None
    worst = json.loads(kept.read_text())
    assert f"{worst[0]['before']}⟦{worst[0]['text']}⟧{worst[0]['after']}" in [code.value for code in page.code]


def test_a_plot_that_cannot_be_written_is_refused_before_anything_runs(capsys: Any, tmp_path: Path) -> None:
    from q36eval.app.cli.kl_report import check_plot

    with pytest.raises(UsageError, match="does not exist"):
        check_plot(tmp_path / "nowhere" / "kl.html", None, None)
