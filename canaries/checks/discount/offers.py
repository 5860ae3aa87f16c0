"""The true values of the compared shops: their discounts, the final price, and the cheapest shop."""

from functools import cached_property
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Shop = Literal["A", "B", "C"]
TIE = "tie"


class Discount(BaseModel):
    """A percentage or an amount of crowns off. `only_above`: it applies if the price is more than that."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    percent: Annotated[int, Field(ge=0, le=100)] | None = None
    amount: Annotated[int, Field(ge=0)] | None = None
    only_above: Annotated[int, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> "Discount":
        if (self.percent is None) == (self.amount is None):
            raise ValueError("give exactly one of percent and amount")
        return self


class Offer(BaseModel):
    """A list price in crowns and the discounts off it, one after the other."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    price: Annotated[int, Field(gt=0, le=10**9)]
    discounts: Annotated[list[Discount], Field(max_length=5)] = []

    @model_validator(mode="after")
    def _whole_crowns(self) -> "Offer":
        price = self.price
        for discount, after in zip(self.discounts, self.prices[1:], strict=True):
            if discount.percent is not None and price * discount.percent % 100:
                raise ValueError(f"{discount.percent} % of {price} Kč is not a whole number of crowns")
            if after < 0:
                raise ValueError("a discount takes off more than the price")
            price = after
        return self

    @cached_property
    def prices(self) -> list[int]:
        """The list price, then the price after each discount."""
        prices = [self.price]
        for discount in self.discounts:
            price = prices[-1]
            off = price * discount.percent // 100 if discount.percent is not None else discount.amount or 0
            applies = discount.only_above is None or price > discount.only_above
            prices.append(price - off if applies else price)
        return prices

    @property
    def final(self) -> int:
        """The price that is paid."""
        return self.prices[-1]

    @property
    def way(self) -> list[int]:
        """Every amount in the calculation, the final price last."""
        way: list[int] = []
        for discount, (before, after) in zip(self.discounts, pairwise(self.prices), strict=True):
            if after < before:
                way += [before - after, after] if discount.percent is not None else [after]
        return way or [self.price]

    @cached_property
    def on_the_way(self) -> frozenset[int]:
        """Every other amount of the calculation: earlier prices, the discounts, their sum and their thresholds."""
        given = [
            one for discount in self.discounts for one in (discount.amount, discount.only_above) if one is not None
        ]
        return frozenset([*self.prices, *self.way, self.price - self.final, *given]) - {self.final}


Offers = dict[Shop, Offer]


def decision(offers: Offers) -> str:
    """The cheapest shop, or `tie` if several are."""
    best = min(offer.final for offer in offers.values())
    cheapest = [shop for shop, offer in offers.items() if offer.final == best]
    return cheapest[0] if len(cheapest) == 1 else TIE
