"""What people read: balances and debts as lines of text."""

from __future__ import annotations

from .accounts import balances, share_cost
from .money import format_amount, parse_amount


def statement(bookings: list[list[str]]) -> list[str]:
    """One line "name: amount" for every account that is not at zero, in alphabetical order."""
    totals = balances(bookings)
    return [f"{name}: {format_amount(totals[name])}" for name in sorted(totals) if totals[name] != 0]


def after_dinner(bookings: list[list[str]], payer: str, bill: str) -> list[str]:
    """The lines of all accounts after the payer has paid a bill for all of them. Without that payer there are
    none."""
    totals = balances(bookings)
    if payer not in totals:
        return []
    shared = share_cost(totals, payer, parse_amount(bill))
    return [f"{name}: {format_amount(shared[name])}" for name in sorted(shared)]
