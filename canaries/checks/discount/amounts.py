"""The rules for amounts: every number that is stated is true of the shop that it is said of."""

from collections.abc import Iterator
from fractions import Fraction

from q36eval.canaries.checks.base import Failure, place_of, shown
from q36eval.canaries.checks.discount.offers import Offer, Offers
from q36eval.canaries.checks.discount.relations import (
    applies,
    between_finals,
    between_others,
    comparison_holds,
    condition_said,
    false_pairs,
    false_shares,
    is_rounded,
    leaves_open,
    may_differ_by,
    percent_holds,
)
from q36eval.canaries.checks.price_reading import Reading
from q36eval.canaries.checks.price_reading.claims import Amount, Clause, Stated
from q36eval.canaries.checks.price_reading.equations import holds
from q36eval.canaries.checks.price_reading.lexicon import Meaning, word_set
from q36eval.canaries.checks.price_reading.roles import Role
from q36eval.canaries.checks.price_reading.tokens import CROWNS, FOREIGN, PERCENT, Kind, Token

_SMALL = 100
"""Numbers up to this may be factors of a sum; whether they are right shows in the equation."""
_COUNTED = 10
"""Smaller whole numbers without a unit count things ("2 obchody", "1.")."""

_BINDS = word_set("za s je stojí : vyjde vychází na cenou cena")
_MAY_BE_EITHER = word_set("resp respektive případně eventuálně")


class AmountRules:
    """Judges the amounts of one answer."""

    def __init__(self, text: str, reading: Reading, offers: Offers) -> None:
        self.text = text
        self.reading = reading
        self.offers: dict[str, Offer] = {str(shop): offer for shop, offer in offers.items()}
        self.amounts = reading.claims.amounts
        self._in_line = {token.start: at for line in reading.lines for at, token in enumerate(line)}
        self.places = {amount.token.start: at for at, amount in enumerate(self.amounts)}
        self.false = {at for at, one in enumerate(reading.claims.equations) if self._is_false(one)}
        self.computed = self._computed()
        self.finals = {shop: self._finals_of(shop) for shop in self.offers}
        self.worked_out_line = self._worked_out_line()

    # ---- what the whole answer needs

    def _worked_out_line(self) -> int:
        """The line on which the last of the final prices is first stated; -1 where one is not stated at all.

        A sentence that draws the conclusion works nothing out, where the price stands elsewhere too.
        """
        if not all(self.finals.values()):
            return -1
        concluding = {statement.line for statement in self.reading.statements if not statement.bare}
        lines = [[one.line for one in stated] for stated in self.finals.values()]
        return max(min((line for line in of_shop if line not in concluding), default=of_shop[0]) for of_shop in lines)

    def on_one_line(self) -> bool:
        """Whether all shops are worked out on one line of prose."""
        places = [{one.line for one in stated if not one.tabular} for stated in self.finals.values()]
        return all(places) and len(set.union(*places)) == 1

    def failures(self) -> Iterator[Failure]:
        """Everything that is wrong or cannot be read, at most one failure a number."""
        for unclear in self.reading.unclear:
            yield self._fail("unclear", unclear.token, unclear.what, unreadable=True)
        yield from self._equation_failures()
        for shop in self.offers:
            yield from self._final_failures(shop)
        for amount in self.amounts:
            failure = self._amount_failure(amount)
            if failure is not None:
                yield failure
        for clause in self.reading.claims.clauses:
            yield from self._clause_failures(clause)

    def _fail(self, code: str, token: Token, message: str, unreadable: bool = False) -> Failure:
        line = self.reading.plain.text.rfind("\n", 0, token.start) + 1
        end = self.reading.plain.text.find("\n", token.start)
        broken = "~~" in self.reading.plain.text[line : end if end >= 0 else None]
        unclear = any(one.token.start >= line and (end < 0 or one.token.start < end) for one in self.reading.unclear)
        place = place_of(self.text, self.reading.plain.original(token.start))
        return Failure("discount", code, place, message, unreadable or broken or unclear)

    # ---- equations

    def _is_false(self, stated: Stated) -> bool:
        truth = holds(stated.equation)
        return self._is_false_share(stated) if truth is None else not truth

    def _is_false_share(self, stated: Stated) -> bool:
        """ "40 % = 980 Kč": of this shop's price, or of what a step begins with."""
        equation = stated.equation
        left, right = equation.left.value, equation.right.value
        if left is None or right is None or not left.percent or right.percent or equation.is_comparison:
            return False
        shops = [self.offers[stated.shop]] if stated.shop in self.offers else list(self.offers.values())
        bases = [base for offer in shops for base in (offer.price, *(step.before for step in offer.steps))]
        return not any(abs(left.amount) * base == abs(right.amount) for base in bases)

    def _equation_failures(self) -> Iterator[Failure]:
        for at in sorted(self.false):
            stated = self.reading.claims.equations[at]
            first = (stated.equation.left.tokens or (stated.equation.sign,))[0]
            last = (stated.equation.right.tokens or (stated.equation.sign,))[-1]
            if self.reading.corrected(first.start, stated.line, stated.shop):
                continue
            written = shown(self.reading.plain.text[first.start : last.end])
            value = stated.equation.left.value
            makes = "" if value is None or value.percent else f": the left side makes {_decimal(value.amount)}"
            yield self._fail("wrong_arithmetic", first, f"{written} does not hold{makes}")

    def _computed(self) -> frozenset[Fraction]:
        """What true equations make that is worked with later on: intermediate results."""
        results, operands = set(), set()
        for at, one in enumerate(self.reading.claims.equations):
            if at in self.false:
                continue
            results |= {token.value for token in one.equation.right.numbers[:1] if one.equation.left.is_compound}
        for amount in self.amounts:
            if amount.operand:
                operands.add(amount.token.value)
        return frozenset(results & operands)

    # ---- final prices

    def _finals_of(self, shop: str) -> list[Amount]:
        """Where the final price of a shop is stated of it."""
        offer = self.offers[shop]
        wanted = {Role.FINAL, Role.AFTER, Role.COST, Role.OTHER}
        if offer.final == offer.price:
            wanted.add(Role.LIST_PRICE)
        return [
            amount
            for amount in self.amounts
            if amount.shop == shop
            and amount.token.value == offer.final
            and amount.token.is_money
            and not amount.operand
            and (amount.role in wanted or amount.result)
        ]

    def _final_failures(self, shop: str) -> Iterator[Failure]:
        offer = self.offers[shop]
        wanted = offer.final
        stated = self.finals[shop]
        if not stated:
            message = f"the final price {wanted} Kč is not stated"
            unreadable = self._may_be_stated(shop)
            yield Failure("discount", "wrong_amount", f"shop {shop}", message, unreadable)
            return
        last = self._last_price(shop)
        if last is None or last.equation in self.false:
            return
        if last.token.value != wanted and not self.reading.corrected(last.token.start, last.line, last.shop):
            message = f"the last price of shop {shop} is {_decimal(last.token.value)}, not {wanted} Kč"
            yield self._fail("wrong_amount", last.token, message)

    def _may_be_stated(self, shop: str) -> bool:
        """Whether the right price stands where nobody can tell whose it is, or a digit of some price cannot be read."""
        wanted = self.offers[shop].final
        if any(token.kind is Kind.SMUDGE for line in self.reading.lines for token in line):
            return True
        if self.reading.unclear or self.reading.plain.struck or "~~" in self.reading.plain.text:
            return True
        own = [a for a in self.amounts if a.shop == shop and a.token.is_money and not a.operand]
        claimed = [a for a in own if a.role in (Role.FINAL, Role.AFTER) or a.result]
        loose = [a for a in self.amounts if a.token.value == wanted and not a.shop and not a.operand]
        return bool(loose) and not claimed

    def _last_price(self, shop: str) -> Amount | None:
        """What a shop's price is said to be in the end."""
        offer = self.offers[shop]
        last = None
        for amount in self.amounts:
            if amount.shop != shop or amount.token.unit == PERCENT or amount.clause.unreal:
                continue
            claimed = amount.role is Role.FINAL or (
                amount.result
                and amount.role in (Role.OTHER, Role.AFTER, Role.COST)
                and amount.token.value not in offer.discounts_off
                and not self._is_check(amount)
            )
            claimed = claimed or any(amount is one for one in self.finals[shop])
            if claimed and (amount.token.value in offer.known or amount.token.value > _SMALL):
                last = amount
        return last

    def _is_check(self, amount: Amount) -> bool:
        """A sum that leads back to the list price or works out a difference."""
        offer = self.offers[amount.shop]
        if amount.token.value in offer.prices_after:
            return False
        return (
            amount.token.value == offer.price
            or amount.clause.compares
            or amount.token.value in between_finals(self.offers)
        )

    # ---- single amounts

    def _of(self, shop: str) -> list[Offer]:
        return [self.offers[shop]] if shop in self.offers else list(self.offers.values())

    def _amount_failure(self, amount: Amount) -> Failure | None:
        token = amount.token
        if amount.equation in self.false or self.reading.corrected(token.start, amount.line, amount.shop):
            return None
        if token.unit == PERCENT:
            return self._percent_failure(amount)
        if token.unit == FOREIGN:
            value = token.value * 1000 if "tis" in token.text else None
            if value is None or not any(value in offer.known for offer in self._of(amount.shop)):
                return self._fail("wrong_unit", token, f"{shown(token.text)} is not an amount of crowns")
            return None
        if self._is_no_amount(amount) or self._is_denied(amount):
            return None
        if amount.operand:
            return self._operand_failure(amount)
        if amount.role in (Role.DIFFERENCE, Role.SAVED):
            return self._difference_failure(amount)
        return self._membership_failure(amount)

    def _is_no_amount(self, amount: Amount) -> bool:
        """Counts, places in a ranking, years, days of a guarantee: numbers that no one takes for a price."""
        token = amount.token
        if token.unit == CROWNS:
            return False
        at = amount.clause.places[token.start]
        following = amount.clause.tokens[at + 1 : at + 2]
        counted = bool(following) and following[0].kind is Kind.WORD and following[0].lower in _COUNTED_NOUNS
        small = token.value <= _COUNTED and token.value.denominator == 1 and not amount.result
        in_equation = amount.equation >= 0 or amount.operand
        if in_equation and not amount.result and token.value <= _SMALL:
            return True
        if token.value.denominator != 1 and token.value < 2:
            return True
        return counted or (small and token.value != 0 and not in_equation and amount.role is not Role.DIFFERENCE)

    def _is_denied(self, amount: Amount) -> bool:
        """ "nikoli 4 100 × 0,2 = 820 Kč": what the price is not."""
        line = self.reading.lines[amount.line]
        first = amount.token.start
        if amount.equation >= 0:
            stated = self.reading.claims.equations[amount.equation].equation
            first = min(first, (stated.left.tokens or (stated.sign,))[0].start)
        at = self._in_line[first]
        return at > 0 and line[at - 1].lower in ("ne", "nikoli", "nikoliv")

    def _operand_failure(self, amount: Amount) -> Failure | None:
        value = amount.token.value
        if value <= _SMALL or value in (100, 1000) or value in self.computed or value.denominator != 1:
            return None
        known = any(value in offer.known or value in offer.unapplied for offer in self._of(amount.shop))
        known = known or self._makes_known(amount)
        if known or (not amount.shop and value in between_finals(self.offers)):
            return None
        concluding = amount.line > self.worked_out_line >= 0
        if (concluding or self._compares_here(amount)) and any(value in offer.known for offer in self.offers.values()):
            return None
        return self._wrong(amount)

    def _makes_known(self, amount: Amount) -> bool:
        """Whether it stands in a true equation that begins with and makes an amount of its shop: a part of another."""
        if amount.equation < 0 or amount.shop not in self.offers:
            return False
        equation = self.reading.claims.equations[amount.equation].equation
        ends = [*equation.left.numbers[:1], *equation.right.numbers[-1:]]
        known = self.offers[amount.shop].known
        return len(ends) == 2 and all(token.value in known for token in ends)

    def _compares_here(self, amount: Amount) -> bool:
        if any(one.lower.startswith("převyš") for one in amount.clause.tokens):
            return True
        shops = amount.clause.shops | ({amount.shop} if amount.shop else set())
        return amount.clause.compares or len(shops) > 1

    def _difference_failure(self, amount: Amount) -> Failure | None:
        allowed = may_differ_by(amount, self.offers)
        if self._follows_a_list_price(amount):
            allowed |= between_others(self.offers)
        if amount.token.value in allowed or is_rounded(amount, allowed):
            return None
        message = f"{_decimal(amount.token.value)} Kč is no difference between the prices"
        return self._fail("wrong_difference", amount.token, message)

    def _follows_a_list_price(self, amount: Amount) -> bool:
        """ "stojí 5 300 Kč, což je o 400 Kč méně než v obchodě A"."""
        at = self.places[amount.token.start]
        before = self.amounts[at - 1] if at else None
        if before is None or before.line != amount.line or before.shop not in self.offers:
            return False
        offer = self.offers[before.shop]
        return before.token.value == offer.price != offer.final

    def _is_against_no_price(self, amount: Amount) -> bool:
        """ "3 300 Kč oproti 4 950 Kč v obchodě A", where that is no price of A: a final price is compared with one."""
        tokens = amount.clause.tokens
        at = amount.clause.places[amount.token.start]
        whose = next((one.shop for one in tokens[at + 1 : at + 5] if one.shop), amount.shop)
        if at < 2 or not tokens[at - 1].word.means(Meaning.THAN) or whose not in self.offers:
            return False
        one, other = tokens[at - 2], self.offers[whose]
        finals = {offer.final for shop, offer in self.offers.items() if shop != whose}
        return one.is_money and one.value in finals and amount.token.value not in (other.final, other.price)

    def _membership_failure(self, amount: Amount) -> Failure | None:
        value, offers = amount.token.value, self._of(amount.shop)
        if comparison_holds(amount) is False:
            return self._fail("wrong_claim", amount.token, "the comparison of two amounts does not hold")
        if self._is_compared_number(amount):
            return None
        if amount.role is Role.OTHER and is_rounded(amount, between_finals(self.offers)):
            return None
        if self._is_against_no_price(amount):
            return self._wrong(amount)
        if self._of_role(amount, offers, value) or self._is_said_of_another(amount) or self._is_worked_out(amount):
            return None
        if (amount.clause.unreal and any(value in offer.unapplied for offer in offers)) or self._is_supposed(amount):
            return None
        if self._is_true_otherwise(amount):
            return None
        if self._is_either(amount):
            return self._fail("two_readings", amount.token, "two prices are named for one shop", unreadable=True)
        return self._wrong(amount)

    def _is_true_otherwise(self, amount: Amount) -> bool:
        """A true figure of its shop, whose role the words beside it do not name: what it is said to be was a guess."""
        offer = self.offers.get(amount.shop)
        if offer is None or amount.role in (Role.FINAL, Role.OTHER) or amount.token.value not in offer.known:
            return False
        tokens = amount.clause.tokens
        at = amount.clause.places[amount.token.start]
        beside = [*tokens[max(0, at - 2) : at], *tokens[at + 1 : at + 2]]
        return not any(one.word.means(Meaning.DISCOUNT) for one in beside)

    def _is_said_of_another(self, amount: Amount) -> bool:
        """Whether it may be said of another shop than the one named last, and is true of one."""
        value, everyone = amount.token.value, list(self.offers.values())
        if amount.role is Role.DISCOUNT:
            return self._follows_than(amount) and self._of_role(amount, everyone, value)
        concluding = amount.line > self.worked_out_line >= 0
        compares = self._compares_here(amount)
        free = not amount.shop or (amount.inherited and (amount.clause.compares or concluding))
        if not free and not (compares and amount.role is Role.OTHER and self._may_be_of_another(amount)):
            return False
        stated = amount.role in (Role.OTHER, Role.COST, Role.FINAL, Role.AFTER)
        if stated and any(value in offer.known for offer in everyone):
            return True
        return (
            compares
            and amount.role is Role.OTHER
            and value in between_finals(self.offers) | between_others(self.offers)
        )

    def _is_worked_out(self, amount: Amount) -> bool:
        """Whether it is a difference, or an intermediate result."""
        value = amount.token.value
        if amount.result:
            return value in self.computed or value in between_finals(self.offers)
        if amount.role is not Role.OTHER:
            return False
        concluding = amount.line > self.worked_out_line >= 0
        if concluding and value in between_finals(self.offers, *({amount.shop} - {""})):
            return True
        return self._compares_here(amount) and value in between_finals(self.offers)

    def _of_role(self, amount: Amount, offers: list[Offer], value: Fraction) -> bool:
        role = amount.role
        if role is Role.DISCOUNT:
            # "sleva 10 %: 5 500 × 0,9 = 4 950" works out what is left of the price
            left = amount.result and any(value in offer.prices_after for offer in offers)
            return left or any(value in offer.discounts_off for offer in offers) or value == 0
        if role is Role.FINAL:
            partly = amount.clause.words & _FIRST
            return any(value == offer.final or (partly and value in offer.prices_after) for offer in offers)
        if role is Role.AFTER:
            return any(value in offer.prices_after for offer in offers)
        if role is Role.COST:
            return any(value == offer.price or value in offer.prices_after for offer in offers)
        if role is Role.LIST_PRICE:
            return any(value == offer.price or value in offer.prices_after for offer in offers)
        if role is Role.LIMIT:
            limits = {limit for offer in self.offers.values() for limit in offer.thresholds}
            return value in limits if limits else any(value in offer.known for offer in offers)
        return any(value in offer.known for offer in offers)

    def _follows_than(self, amount: Amount) -> bool:
        """ "je vyšší než sleva 2 170 Kč": of the other shop, as none is named."""
        tokens = amount.clause.tokens
        at = amount.clause.places[amount.token.start]
        than = next((back for back in range(at - 1, -1, -1) if tokens[back].word.means(Meaning.THAN)), None)
        return than is not None and not any(one.shop for one in tokens[than:at])

    def _may_be_of_another(self, amount: Amount) -> bool:
        """Whether an amount after a shop may belong to the one that it is compared with ("místo 6 030 Kč")."""
        tokens = amount.clause.tokens
        at = amount.clause.places[amount.token.start]
        before = [one for one in tokens[max(0, at - 4) : at] if one.kind not in (Kind.OPEN, Kind.EQUALS)]
        bound = len(before) > 1 and before[-2].shop and before[-1].lower in _BINDS
        if bound or (before and before[-1].shop):
            return False
        exceeds = any(one.lower.startswith(("převyš", "překon", "předč")) for one in tokens)
        return (
            exceeds
            or amount.clause.means(Meaning.THAN, Meaning.MORE, Meaning.LESS)
            or any(one.kind is Kind.RELATION for one in amount.clause.tokens)
        )

    def _is_compared_number(self, amount: Amount) -> bool:
        """ "360 Kč je méně než 500 Kč": a number that another is rightly compared with."""
        tokens = amount.clause.tokens
        at = amount.clause.places[amount.token.start]
        if at == 0 or not tokens[at - 1].word.means(Meaning.THAN) or amount.clause.shops - {amount.shop}:
            return False
        return comparison_holds(amount) is True

    def _is_supposed(self, amount: Amount) -> bool:
        """What two discounts "would make together", which the answer denies or corrects."""
        by = amount.clause.unreal and "by" in {token.lower for token in amount.clause.sentence}
        return by and self.reading.corrected(amount.token.start, amount.line, amount.shop)

    def _is_either(self, amount: Amount) -> bool:
        """ "350 Kč, resp. 210 Kč", "1 000 (950) Kč"."""
        line = self.reading.lines[amount.line]
        at = self._in_line[amount.token.start]
        words = {one.lower for one in line[max(0, at - 3) : at]}
        in_parenthesis = at > 1 and line[at - 1].kind is Kind.OPEN and line[at - 2].is_money
        return (
            bool(words & _MAY_BE_EITHER) or in_parenthesis or "-li" in self.reading.plain.text[amount.token.end :][:40]
        )

    def _percent_failure(self, amount: Amount) -> Failure | None:
        if amount.operand or (amount.equation >= 0 and amount.equation not in self.false and amount.result):
            return None
        if percent_holds(amount, self.offers, self._compares_here(amount)):
            return None
        message = f"{_decimal(amount.token.value)} % is no percentage of shop {amount.shop}"
        return self._fail("wrong_amount", amount.token, message)

    def _clause_failures(self, clause: Clause) -> Iterator[Failure]:
        """What a clause says of shares, pairs of numbers and conditions."""
        for token in false_shares(clause, self.offers):
            yield self._fail("wrong_amount", token, f"no amount is {shown(token.text)} of another")
        for token, percent, money in false_pairs(clause, self.offers):
            if not self.reading.corrected(token.start, clause.line, clause.shop):
                yield self._fail("wrong_amount", token, f"{shown(percent.text)} does not make {shown(money.text)}")
        offer = self.offers.get(clause.shop)
        said = condition_said(clause, offer) if offer is not None else None
        if offer is None or self.reading.corrected(clause.tokens[0].start, clause.line, clause.shop):
            return
        if offer.thresholds and (word := leaves_open(clause)) is not None:
            yield self._fail("open_condition", word, "whether the discount applies is left open", unreadable=True)
        if said is not None and said[1] != applies(offer):
            message = f"the discount of shop {clause.shop} {'applies' if applies(offer) else 'does not apply'}"
            yield self._fail("wrong_condition", said[0], message)

    def _wrong(self, amount: Amount) -> Failure:
        whose = f"of shop {amount.shop}" if amount.shop else "of any shop"
        message = f"{_decimal(amount.token.value)} is no {amount.role} {whose}"
        return self._fail("wrong_amount", amount.token, message)


_FIRST = word_set("první prvním prvé mezi mezicena mezisoučet mezisoučtem nejprve nejdřív")
_COUNTED_NOUNS = word_set(
    """měsíců měsíce měsíc dní dny den let roky rok roků km m kg ks kus kusy kusů obchody obchodů obchodech hodin kroky
    kroků krok lety nabídek nabídky"""
)


def _decimal(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.6g}"
