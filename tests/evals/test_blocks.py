"""The order in which items are asked."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from q36eval.evals.blocks import in_blocks


def asked(sizes: dict[str, int], block_items: int, seed: str = "s") -> list[list[str]]:
    strata = {f"{stratum}-{i}": stratum for stratum, size in sizes.items() for i in range(size)}
    return in_blocks(strata, {key: key for key in strata}, block_items, seed)


@given(st.dictionaries(st.text(min_size=1, max_size=3), st.integers(1, 40), min_size=1, max_size=6), st.integers(1, 50))
def test_every_prefix_holds_every_stratum_at_its_own_share(sizes: dict[str, int], block_items: int) -> None:
    blocks = asked(sizes, block_items)
    order = [key for block in blocks for key in block]
    assert len(order) == len(set(order)) == sum(sizes.values())
    assert all(len(block) >= block_items for block in blocks[:-1])
    seen: Counter[str] = Counter()
    for count, key in enumerate(order, start=1):
        seen[key.rpartition("-")[0]] += 1
        # of a stratum's n items floor or ceil of n t stand before t; t differs between strata by what is rounded
        share = count / len(order)
        slack = 1 + len(sizes) / len(order) * max(sizes.values())
        assert all(abs(seen[name] - size * share) <= slack + 1e-9 for name, size in sizes.items())


def test_a_cluster_is_never_split_and_the_order_depends_on_names_and_seed_alone() -> None:
    strata = {key: "s" for key in "abcdefghij"}
    clusters = {key: "abc" if key in "abc" else key for key in strata}
    blocks = in_blocks(strata, clusters, 2, "seed")
    assert sum(set("abc") <= set(block) for block in blocks) == 1
    shuffled = dict(reversed(strata.items()))
    assert in_blocks(shuffled, clusters, 2, "seed") == blocks
    assert in_blocks(strata, clusters, 2, "another") != blocks
    assert in_blocks({}, {}, 2, "seed") == []
    assert in_blocks({"a": "one", "b": "two"}, {"a": "c", "b": "c"}, 1, "seed") == [["a", "b"]]
