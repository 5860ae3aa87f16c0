"""What is true of the shops that are compared: prices, discounts, and every amount that follows from them."""

from fractions import Fraction
from functools import cached_property
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Shop = Literal["A", "B", "C"]
TIE = "tie"


class Discount(BaseModel):
    """A percentage or an amount of crowns off, `only_above` a price: then it applies where the price is more."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    percent: Annotated[int, Field(ge=0, le=100)] | None = None
    amount: Annotated[int, Field(ge=0)] | None = None
    only_above: Annotated[int, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> "Discount":
        if (self.percent is None) == (self.amount is None):
            raise ValueError("give exactly one of percent and amount")
        return self


class Step(BaseModel):
    """One discount at its price: `off` is what it takes off where it applies, `after` the price then."""

    model_config = ConfigDict(frozen=True)

    discount: Discount
    before: int
    off: int
    applies: bool

    @property
    def after(self) -> int:
        """The price after this step, whether or not the discount applies."""
        return self.before - self.off if self.applies else self.before


class Offer(BaseModel):
    """A list price in crowns and the discounts off it, one after the other."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    price: Annotated[int, Field(gt=0, le=10**9)]
    discounts: Annotated[list[Discount], Field(max_length=5)] = []

    @model_validator(mode="after")
    def _whole_crowns(self) -> "Offer":
        for step in self.steps:
            if step.discount.percent is not None and step.before * step.discount.percent % 100:
                raise ValueError(f"{step.discount.percent} % of {step.before} Kč is not a whole number of crowns")
            if step.after < 0:
                raise ValueError("a discount takes off more than the price")
        return self

    @cached_property
    def steps(self) -> list[Step]:
        """The discounts at their prices."""
        steps: list[Step] = []
        price = self.price
        for discount in self.discounts:
            off = price * discount.percent // 100 if discount.percent is not None else discount.amount or 0
            applies = discount.only_above is None or price > discount.only_above
            steps.append(Step(discount=discount, before=price, off=off, applies=applies))
            price = steps[-1].after
        return steps

    @property
    def final(self) -> int:
        """What is paid."""
        return self.steps[-1].after if self.discounts else self.price

    @cached_property
    def as_if_met(self) -> "Offer":
        """The same as if every discount applied."""
        discounts = [discount.model_copy(update={"only_above": None}) for discount in self.discounts]
        return Offer.model_construct(price=self.price, discounts=discounts)  # may come to parts of a crown

    @property
    def way(self) -> list[int]:
        """Every amount that is worked out on the way, the final price last."""
        amounts: list[int] = []
        for step in self.steps:
            if step.applies:
                amounts += [step.off, step.after] if step.discount.percent is not None else [step.after]
        return amounts or [self.price]

    @cached_property
    def discounts_off(self) -> frozenset[int]:
        """The amounts that the discounts take off, and what they take off together."""
        applied = [step.off for step in self.steps if step.applies]
        return frozenset([*applied, self.price - self.final])

    @cached_property
    def prices_after(self) -> frozenset[int]:
        """The prices after each step."""
        return frozenset([*(step.after for step in self.steps), self.final])

    @cached_property
    def thresholds(self) -> frozenset[int]:
        """Where discounts begin."""
        return frozenset(d.only_above for d in self.discounts if d.only_above is not None)

    @cached_property
    def known(self) -> frozenset[Fraction]:
        """Every amount of crowns that can truly be said of this shop."""
        parts = [Fraction(self.price * share, 100) for share in (1, 5, 10, 50)] if self.price else []
        gaps = [abs(self.price - threshold) for threshold in self.thresholds]
        numbers = [self.price, 0, *self.discounts_off, *self.prices_after, *self.thresholds, *gaps]
        return frozenset([*map(Fraction, numbers), *parts[:1]])

    @cached_property
    def unapplied(self) -> frozenset[int]:
        """What a discount that does not apply would take off, and the price that it would make."""
        lost = [step for step in self.steps if not step.applies]
        return frozenset(amount for step in lost for amount in (step.off, step.before - step.off)) - {self.final}

    @cached_property
    def percents(self) -> frozenset[Fraction]:
        """The percentages that can truly be said of this shop: of each discount, of what is left, of all together."""
        each = [Fraction(d.percent) for d in self.discounts if d.percent is not None]
        left = [100 - percent for percent in each]
        after = [Fraction(100 * price, self.price) for price in self.prices_after]
        steps = [Fraction(100 * step.off, step.before) for step in self.steps if step.before]
        return frozenset([Fraction(100), Fraction(0), *each, *left, *after, *(100 - one for one in after), *steps])

    @property
    def total_percent(self) -> Fraction:
        """What all discounts together take off, in percent of the price."""
        return Fraction(100 * (self.price - self.final), self.price)


Offers = dict[Shop, Offer]


def decision(offers: Offers) -> str:
    """The cheapest shop, or `tie` where several are."""
    best = min(offer.final for offer in offers.values())
    cheapest = [shop for shop, offer in offers.items() if offer.final == best]
    return cheapest[0] if len(cheapest) == 1 else TIE
