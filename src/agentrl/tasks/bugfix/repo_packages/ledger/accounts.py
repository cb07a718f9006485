"""Bookings and balances. A booking is [from, to, amount as text]."""

from __future__ import annotations

from .money import parse_amount, split_evenly


def balances(bookings: list[list[str]]) -> dict[str, int]:
    """The balance of every account in cents, in the order in which accounts first appear."""
    totals: dict[str, int] = {}
    for source, target, amount in bookings:
        cents = parse_amount(amount)
        totals[source] = totals.get(source, 0) - cents
        totals[target] = totals.get(target, 0) + cents
    return totals


def share_cost(totals: dict[str, int], payer: str, cents: int) -> dict[str, int]:
    """The balances after one account has paid something for all, itself included."""
    shared = dict(totals)
    names = sorted(shared)
    for name, part in zip(names, split_evenly(cents, len(names)), strict=True):
        shared[name] -= part
    shared[payer] += cents
    return shared
