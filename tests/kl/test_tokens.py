"""Tokens on disk: whole or not at all, found again after a kill at any point, exact to float32."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from q36eval.kl.tokens import FIGURES, TokensLostError, TokenStore, document_table, read_tokens, schema
from tests.raising import failing


def table(key: str, count: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    columns = {name: rng.lognormal(-7, 3, count) for name in FIGURES}
    columns |= {name: np.arange(count) + seed for name in ("index", "position", "label", "top1_rank")}
    columns["top1_agrees"] = rng.random(count) < 0.9
    return document_table(key, f"document {key}", "slice", ["text", "json"] * (count // 2), columns)


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    return TokenStore(tmp_path / "run")


def test_what_was_added_comes_back_in_the_order_asked_for(store: TokenStore) -> None:
    parts = {key: table(key, 2 * n + 2, n) for n, key in enumerate("abc")}
    for key, part in parts.items():
        store.add(key, part)
    merged = store.merge("cab")
    expected = pa.concat_tables([parts[key] for key in "cab"]).to_pylist()
    assert merged.to_pylist() == read_tokens(store.merged).to_pylist() == expected
    assert read_tokens(store.merged).schema == schema()
    assert sorted(path.name for path in store.folder.iterdir()) == ["tokens.parquet"]


def test_float_columns_are_within_half_a_unit_of_24_bits() -> None:
    exact = np.random.default_rng(1).lognormal(-7, 5, 10_000)
    columns = dict.fromkeys(FIGURES, exact) | dict.fromkeys(("index", "position", "label", "top1_rank"), exact * 0)
    columns["top1_agrees"] = exact > 0
    kept = document_table("k", "d", "s", ["text"] * 10_000, columns)["forward_kl"].to_numpy().astype(np.float64)
    assert np.abs(kept / exact - 1).max() <= 2.0**-24
    assert kept.min() > 0


def test_a_merge_killed_before_or_after_its_file_is_done_again(
    store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {key: table(key, 4, n) for n, key in enumerate("ab")}
    for key, part in parts.items():
        store.add(key, part)
    for killed in ("os.replace", "shutil.rmtree"):

        def kill(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(killed, kill)
            with pytest.raises(KeyboardInterrupt):
                store.merge("ab")
    assert store.merge("ab").to_pylist() == pa.concat_tables(parts.values()).to_pylist()
    assert sorted(path.name for path in store.folder.iterdir()) == ["tokens.parquet"]


def test_a_piece_is_there_whole_or_not_at_all(store: TokenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.add("a", table("a", 4, 0))
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", failing(KeyboardInterrupt()))
        for key in "ab":
            with pytest.raises(KeyboardInterrupt):
                store.add(key, table(key, 6, 1))
    with pytest.raises(TokensLostError, match="1 measured"):
        store.merge("ab")
    assert not store.merged.exists()
    assert store.merge("a").to_pylist() == table("a", 4, 0).to_pylist()


def test_a_resumed_run_adds_to_what_was_merged_and_replaces_what_was_measured_again(store: TokenStore) -> None:
    store.add("a", table("a", 4, 0))
    store.add("b", table("b", 4, 1))
    store.merge("ab")
    again, late = table("b", 6, 7), table("c", 2, 2)
    store.add("b", again)
    store.add("c", late)
    expected = pa.concat_tables([table("a", 4, 0), again, late]).to_pylist()
    assert store.merge("abc").to_pylist() == read_tokens(store.merged).to_pylist() == expected
    assert store.merge("abc").to_pylist() == expected
