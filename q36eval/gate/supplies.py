"""What a gate could be asked in addition, and what that would do: the records behind "what would help"."""

from pydantic import Field

from q36eval.records import ProbeName, Record


class ItemSource(Record):
    """Items of a probe that another option of the gate would ask.

    `items` says by slice how many in all; `times` how many times as many in every other slice that it has, None where
    it has no other. `nested` where the items asked so far are among them.
    """

    probe: ProbeName
    option: str
    items: dict[str, int] = Field(default_factory=dict)
    times: float | None = None
    nested: bool = False

    def total(self, slice_name: str, now: int) -> int | None:
        """Items of a slice in all, of which `now` were asked; None where it has no such slice."""
        if slice_name in self.items:
            return self.items[slice_name]
        return None if self.times is None else int(now * self.times)


class Supplies(Record):
    """All that could be asked in addition. `draws` are those of every canary family now, `most_draws` the most."""

    sources: tuple[ItemSource, ...] = ()
    draws: int | None = None
    most_draws: int = 1_000


class MoreItems(Record):
    """One way to more items: the option of the gate, how many `items` there are then, and the chance of PASS with them.

    `chance` is at the loss and the flips that were observed, `chance_lossless` for a branch that truly loses nothing,
    None where that cannot be said.
    """

    option: str
    items: int = Field(ge=0)
    chance: float = Field(ge=0, le=1)
    chance_lossless: float | None = Field(default=None, ge=0, le=1)


class Remedy(Record):
    """What would help one criterion that is not decided.

    `items` were evaluated (documents of a divergence); with `needed` a gate passes 4 times in 5 at the loss observed,
    with `needed_lossless` where nothing is lost. `hopeless`: at the loss observed no number of items passes it. `note`
    says why numbers do not help or cannot be given.
    """

    criterion: str
    kind: str = "items"
    items: int | None = None
    needed: int | None = None
    needed_lossless: int | None = None
    hopeless: bool = False
    options: tuple[MoreItems, ...] = ()
    note: str = ""
