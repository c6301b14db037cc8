"""Money of a plan: a purchase against an API bill, against rent by the hour, and per token."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Costs", "Money", "plan_money"]


@dataclass(frozen=True, slots=True)
class Costs:
    """Amounts in one currency; the same fields as the options. None: not given, so not counted."""

    card_price: float | None
    purchase: float | None
    months: float
    card_watts: float | None
    pue: float
    electricity: float
    """Per kWh."""
    hours: float
    """Hours of a month."""
    people: float
    """Per month."""
    rent: float | None
    """One card for an hour."""
    api_price: float
    """Per million tokens, where no price of its own is given."""
    api_input_price: float | None
    api_output_price: float | None
    api_cached_price: float | None
    tokens_per_month: float | None
    """All of them, or those of the output where input is given apart."""
    input_tokens_per_month: float
    cached_tokens_per_month: float
    """Of the input, those that the API has in its cache."""


@dataclass(frozen=True, slots=True)
class Money:
    """Per month unless it says otherwise. None: a price for it was not given, or it never comes."""

    purchase: float | None
    power_per_month: float | None
    fixed_per_month: float | None
    """Purchase spread over its months, power and cooling, people."""
    break_even_tokens_per_month: float | None
    """At the API's mean price for this mix of tokens."""
    break_even_tokens_per_second: float | None
    """The same, spread evenly over the month."""
    api_bill_per_month: float | None
    break_even_months: float | None
    """Until what is saved on the API bill has paid the purchase."""
    rent_per_month: float | None
    rent_break_even_months: float | None
    """Until what is saved on rent has paid the purchase."""
    cost_per_million_tokens: float | None
    """At full speed, all hours."""
    rent_per_million_tokens: float | None
    tokens_per_second: float | None
    """The speed that these two are at: all users together."""
    speed_source: str | None


def plan_money(cards: int, costs: Costs, speed: tuple[float, str] | None) -> Money:
    """What `cards` cards cost. speed: tokens/s of all users together, and where it comes from."""
    purchase = costs.purchase
    if purchase is None and costs.card_price is not None:
        purchase = cards * costs.card_price
    power = None
    if costs.card_watts is not None:
        kilowatts = cards * costs.card_watts * costs.pue / 1000
        power = kilowatts * costs.hours * costs.electricity
    running = None if power is None else power + costs.people
    fixed = None
    if purchase is not None and running is not None:
        fixed = purchase / costs.months + running
    bill, price = _api(costs)
    even = None if fixed is None else fixed / price * 1e6
    rent = None if costs.rent is None else cards * costs.rent * costs.hours
    made = None if speed is None else speed[0] * costs.hours * 3600 / 1e6
    return Money(
        purchase=purchase,
        power_per_month=power,
        fixed_per_month=fixed,
        break_even_tokens_per_month=even,
        break_even_tokens_per_second=None if even is None else even / (costs.hours * 3600),
        api_bill_per_month=bill,
        break_even_months=_paid_after(purchase, bill, running),
        rent_per_month=rent,
        # Rented cards bring their power; people are needed either way.
        rent_break_even_months=_paid_after(purchase, rent, power),
        cost_per_million_tokens=None if fixed is None or not made else fixed / made,
        rent_per_million_tokens=(
            None if rent is None or not made else (rent + costs.people) / made
        ),
        tokens_per_second=None if speed is None else speed[0],
        speed_source=None if speed is None else speed[1],
    )


def _paid_after(purchase: float | None, saved: float | None, spent: float | None) -> float | None:
    """Months until `saved` less `spent` has paid the purchase; None: never, or not known."""
    if purchase is None or saved is None or spent is None or saved <= spent:
        return None
    return purchase / (saved - spent)


def _api(costs: Costs) -> tuple[float | None, float]:
    """(bill of the month, mean price of a million tokens)."""

    def price(own: float | None) -> float:
        return costs.api_price if own is None else own

    fresh = costs.input_tokens_per_month - costs.cached_tokens_per_month
    output = costs.tokens_per_month or 0.0
    cached_price = price(costs.api_input_price)
    if costs.api_cached_price is not None:
        cached_price = costs.api_cached_price
    total = fresh + costs.cached_tokens_per_month + output
    if not total:
        return None, price(costs.api_output_price)
    bill = (
        fresh * price(costs.api_input_price)
        + costs.cached_tokens_per_month * cached_price
        + output * price(costs.api_output_price)
    ) / 1e6
    return bill, bill / total * 1e6
