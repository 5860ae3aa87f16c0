"""Free memory, as the system and the limits of a container say it."""

from pathlib import Path

import pytest

from q36eval.memory import available_bytes

GIB = 2**30


def _machine(root: Path, group: str, files: dict[str, str], free: int = 100 * GIB) -> Path:
    written = {"proc/meminfo": f"MemTotal: 1 kB\nMemAvailable: {free // 1024} kB\n", "proc/self/cgroup": group}
    for name, text in (written | {f"sys/fs/cgroup/{name}": text for name, text in files.items()}).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("group", "folder", "names"),
    [
        ("0::/a/b\n", "a", ("memory.max", "memory.current", "inactive_file")),
        ("0::/../../far/away\n", ".", ("memory.max", "memory.current", "inactive_file")),
        (
            "5:cpu:/\n4:memory:/a/b\n0::/\n",
            "memory/a",
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ),
    ],
)
def test_a_limit_on_a_group_above_ours_counts(
    tmp_path: Path, group: str, folder: str, names: tuple[str, str, str]
) -> None:
    limit, use, reclaimable = names
    files = {f"{folder}/{limit}": f"{32 * GIB}\n", f"{folder}/{use}": f"{20 * GIB}\n"}
    root = _machine(tmp_path, group, files | {f"{folder}/memory.stat": f"anon 5\n{reclaimable} {4 * GIB}\n"})
    assert available_bytes(root) == 16 * GIB  # what is cached of files goes when it is asked for
    (root / "sys/fs/cgroup" / folder / use).write_text(f"{40 * GIB}\n")
    assert available_bytes(root) == 0


def test_without_a_limit_it_is_what_the_machine_has(tmp_path: Path) -> None:
    files = {"memory.max": "max\n", "memory.current": "7\n", "memory.stat": "inactive_file 1\n"}
    assert available_bytes(_machine(tmp_path / "one", "0::/\n", files)) == 100 * GIB
    assert available_bytes(_machine(tmp_path / "two", "no group\n", {"memory.max": "x"})) == 100 * GIB
    assert available_bytes(tmp_path / "none") is None
