"""How each reference package is tested: the module with its public functions, and their inputs."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from agentrl.tasks.bugfix.candidate import Inputs
from agentrl.tasks.bugfix.small_programs import draw


@dataclass(frozen=True, kw_only=True)
class Package:
    """The module that is tested, its functions with their inputs, and what the package does in words."""

    module: str
    purpose: str
    functions: Mapping[str, Inputs]


def _expression(rng: random.Random, depth: int = 3) -> str:
    if depth == 0 or rng.random() < 0.15:
        return rng.choice((str(rng.randint(0, 12)), "x", "y", "rate2"))
    left, right = _expression(rng, depth - 1), _expression(rng, depth - 1)
    gap = rng.choice(("", " "))
    joined = f"{left}{gap}{rng.choice('+-*/%-')}{gap}{right}"
    return rng.choice((joined, joined, f"({joined})", f"-{left}"))


def _faulty(rng: random.Random) -> str:
    text = _expression(rng)
    return rng.choice((text, text, text, text + "+", "(" + text, text + ")"))


def _lines(rng: random.Random) -> list[list[str | int]]:
    return [[rng.choice(("nut", "bolt", " Nut", "gear")), rng.randint(1, 4)] for _ in range(rng.randint(1, 3))]


def _stock(rng: random.Random) -> dict[str, int]:
    return {item: rng.randint(1, 9) for item in ("nut", "bolt", "gear") if rng.random() < 0.85}


def _orders(rng: random.Random) -> tuple[dict[str, int], list[list[list[str | int]]]]:
    return _stock(rng), [_lines(rng) for _ in range(rng.randint(0, 3))]


def _amount(rng: random.Random) -> str:
    whole = rng.randint(0, 20)
    return rng.choice((f"{whole}", f"{whole}.{rng.randint(0, 9)}", f"{whole}.{rng.randint(0, 99):02}", f"-{whole}.05"))


def _bookings(rng: random.Random) -> list[list[str]]:
    return [[*rng.sample(("ann", "bob", "cy", "dee"), 2), _amount(rng)] for _ in range(rng.randint(0, 4))]


def _busy(rng: random.Random) -> list[list[str]]:
    spans = []
    for _ in range(rng.randint(0, 5)):
        start = rng.choice((480, 540, 600, 660, 785, rng.randint(500, 1000)))
        end = start + rng.choice((20, 60, 60, 125, 240))
        spans.append([f"{minutes // 60:02}:{minutes % 60:02}" for minutes in (start, end)])
    return spans


def _table(rng: random.Random) -> str:
    header = rng.choice(("name,Price,count", "Name, price ,count", "count,name,price"))
    cells = ("7", "-3", "12", "0", "", "n/a", '"a,b"', '"say ""hi"""', "pear")
    rows = [",".join(rng.choice(cells) for _ in range(rng.randint(2, 3))) for _ in range(rng.randint(0, 5))]
    return "\n".join([header, *rows, rng.choice(("", " "))])


def _template(rng: random.Random) -> str:
    parts = ("{{name}}", "{{ Name | upper }}", "{{city|trim|title}}", "{{price|money}}", "{{ city | short }}")
    plain = ("Dear ", " and ", ", ", "{{", "{{other|upper}}", "}} ", "{{price}}")
    return "".join(rng.choice(parts if rng.random() < 0.6 else plain) for _ in range(rng.randint(0, 5)))


def _values(rng: random.Random) -> dict[str, str]:
    return {
        "name": rng.choice(("ann", "bob lee", "Constance")),
        "city": rng.choice((" new york", "rome", "oslo bay ", "paris")),
        "price": str(rng.choice((5, 99, 100, 1250, rng.randint(0, 5000)))),
    }


def _roads(rng: random.Random) -> list[list[str | int]]:
    return [[rng.choice("abcdef"), rng.choice("abcdef"), rng.randint(1, 9)] for _ in range(rng.randint(1, 9))]


def _prose(rng: random.Random) -> tuple[str, int]:
    return " ".join(draw.words(rng, most=9)), rng.randint(4, 16)


PACKAGES: Mapping[str, Package] = MappingProxyType(
    {
        "calculator": Package(
            module="calculator.evaluator",
            purpose="computes arithmetic expressions with variables",
            functions={
                "calculate": lambda rng: (
                    _faulty(rng),
                    {"x": rng.randint(-5, 9), "y": rng.randint(0, 3)} | ({"rate2": 7} if rng.random() < 0.8 else {}),
                ),
                "names_in": lambda rng: (_expression(rng),),
            },
        ),
        "inventory": Package(
            module="inventory.warehouse",
            purpose="keeps the stock of a shop and fills orders from it",
            functions={"process": _orders, "shopping_list": _orders},
        ),
        "ledger": Package(
            module="ledger.statements",
            purpose="books amounts of money between accounts",
            functions={
                "statement": lambda rng: (_bookings(rng),),
                "after_dinner": lambda rng: (_bookings(rng), rng.choice(("ann", "bob")), _amount(rng).lstrip("-")),
            },
        ),
        "planner": Package(
            module="planner.meetings",
            purpose="finds time for meetings between busy times",
            functions={
                "find_slot": lambda rng: (_busy(rng), rng.choice((15, 30, 60, 125))),
                "busy_times": lambda rng: (_busy(rng),),
                "busy_minutes": lambda rng: (_busy(rng),),
            },
        ),
        "tables": Package(
            module="tables.queries",
            purpose="reads small tables from text and answers questions about them",
            functions={
                "summarize": lambda rng: (_table(rng), rng.choice(("price", "count"))),
                "select": lambda rng: (_table(rng), rng.choice(("price", "count")), rng.choice((-3, 0, 7, 8))),
            },
        ),
        "templates": Package(
            module="templates.renderer",
            purpose="fills values into text templates",
            functions={
                "render": lambda rng: (_template(rng), _values(rng)),
                "field_names": lambda rng: (_template(rng),),
            },
        ),
        "routes": Package(
            module="routes.travel",
            purpose="finds the shortest ways on a map of roads",
            functions={
                "shortest_way": lambda rng: (_roads(rng), rng.choice("abc"), rng.choice("cdef")),
                "within": lambda rng: (_roads(rng), rng.choice("abc"), rng.randint(1, 12)),
                "farthest_dead_end": lambda rng: (_roads(rng), rng.choice("abc")),
            },
        ),
        "wrapping": Package(
            module="wrapping.pages",
            purpose="lays out text in lines, blocks and frames",
            functions={"notice": _prose, "block": _prose, "centred": _prose},
        ),
    }
)
