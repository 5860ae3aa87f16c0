"""Nothing of ours is importable by a name that another distribution may use."""

from importlib.metadata import distribution
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_only_one_top_level_name_is_installed() -> None:
    top_level = distribution("q36eval").read_text("top_level.txt")
    assert top_level is not None
    assert top_level.split() == ["q36eval"]


def test_every_folder_of_code_lies_below_it_by_a_relative_link() -> None:
    for name in ("app", "canaries", "evals", "kl"):
        link = ROOT / "q36eval" / name
        assert link.is_symlink(), f"{link} must be a link: git was told to check out none (core.symlinks)"
        assert link.readlink() == Path("..") / name
        assert not (ROOT / name / "q36eval").exists()
