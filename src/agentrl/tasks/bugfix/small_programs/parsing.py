"""Reading text: pairs, numbers, brackets, versions, durations."""

from __future__ import annotations

import random

from agentrl.tasks.bugfix.candidate import Inputs
from agentrl.tasks.bugfix.small_programs import draw


def parse_pairs(text: str) -> dict[str, str]:
    """Read "key=value" pairs separated by semicolons. Blanks around keys and values are dropped, and so are
    parts without an equals sign or without a key."""
    pairs = {}
    for part in text.split(";"):
        key, sign, value = part.partition("=")
        if sign and key.strip():
            pairs[key.strip().lower()] = value.strip()
    return pairs


def parse_int(text: str) -> int | None:
    """Read a decimal integer with an optional sign and blanks around it, None for anything else."""
    stripped = text.strip()
    negative = stripped.startswith("-")
    digits = stripped[1:] if stripped[:1] in ("-", "+") else stripped
    if not digits.isdigit():
        return None
    value = 0
    for digit in digits:
        value = value * 10 + ord(digit) - ord("0")
    return -value if negative else value


def is_balanced(text: str) -> bool:
    """Tell whether all round, square and curly brackets of a text are closed in the right order."""
    closing = {")": "(", "]": "[", "}": "{"}
    waiting: list[str] = []
    for character in text:
        if character in "([{":
            waiting.append(character)
        elif character in closing and (not waiting or waiting.pop() != closing[character]):
            return False
    return not waiting


def compare_versions(first: str, second: str) -> int:
    """Compare dotted version numbers: -1 when the first is older, 1 when it is newer, else 0. Missing parts
    count as zero."""
    left = [int(part) for part in first.split(".")]
    right = [int(part) for part in second.split(".")]
    for i in range(max(len(left), len(right))):
        a = left[i] if i < len(left) else 0
        b = right[i] if i < len(right) else 0
        if a != b:
            return -1 if a < b else 1
    return 0


def parse_duration(text: str) -> int:
    """Read a duration such as "1h30m" or "45s" as seconds. A number without a unit counts as seconds."""
    units = {"h": 3600, "m": 60, "s": 1}
    seconds = 0
    number = 0
    for character in text.strip().lower():
        if character.isdigit():
            number = number * 10 + int(character)
        elif character in units:
            seconds += number * units[character]
            number = 0
    return seconds + number


def split_fields(line: str, separator: str) -> list[str]:
    """Split a line at a separator, but not inside double quotes. The quotes themselves are left out."""
    fields = []
    current = ""
    quoted = False
    for character in line:
        if character == '"':
            quoted = not quoted
        elif character == separator and not quoted:
            fields.append(current)
            current = ""
        else:
            current += character
    fields.append(current)
    return fields


def evaluate_postfix(expression: str) -> int | None:
    """Compute an expression in postfix form such as "3 4 + 2 *". None when operands are missing or left over."""
    stack: list[int] = []
    for token in expression.split():
        if token not in ("+", "-", "*"):
            stack.append(int(token))
            continue
        if len(stack) < 2:
            return None
        right = stack.pop()
        left = stack.pop()
        if token == "+":
            stack.append(left + right)
        elif token == "-":
            stack.append(left - right)
        else:
            stack.append(left * right)
    return stack[0] if len(stack) == 1 else None


def parse_range(text: str) -> list[int]:
    """Read a list of pages such as "1-3,7" as single numbers. Ends are included; empty parts are skipped."""
    pages: list[int] = []
    for part in text.split(","):
        if not part.strip():
            continue
        first, dash, last = part.partition("-")
        if dash:
            pages.extend(range(int(first), int(last) + 1))
        else:
            pages.append(int(first))
    return pages


def strip_comment(line: str) -> str:
    """Cut a comment that starts with "#" and the blanks before it. A "#" inside single quotes is no comment."""
    quoted = False
    for i, character in enumerate(line):
        if character == "'":
            quoted = not quoted
        if character == "#" and not quoted:
            return line[:i].rstrip()
    return line.rstrip()


def _postfix(rng: random.Random) -> str:
    tokens = [str(rng.randint(0, 9)) for _ in range(rng.randint(1, 4))]
    tokens += [rng.choice("+-*") for _ in range(len(tokens) - 1 + rng.choice((0, 0, 0, 1, -1)))]
    return " ".join(tokens)


def _page(rng: random.Random) -> str:
    first = rng.randint(1, 9)
    return rng.choice((str(first), f"{first}-{first + rng.randint(0, 4)}", f"{first}-{first + 1}", ""))


INPUTS: dict[str, Inputs] = {
    "parse_pairs": lambda rng: (
        ";".join(rng.choice(("a=1", " B = two ", "c", "=3", "a = 4", "d=", "")) for _ in range(rng.randint(0, 5))),
    ),
    "parse_int": lambda rng: (
        rng.choice(("", " ", "-", "+")) + draw.text(rng, "0123456789", most=3) + rng.choice(("", "", " ", "x")),
    ),
    "is_balanced": lambda rng: (
        rng.choice(("()", "[]", "(a[b]", "{}", "")) + draw.text(rng, "()[]x", most=4) + rng.choice((")", "", "]")),
    ),
    "compare_versions": lambda rng: tuple(
        ".".join(str(rng.choice((0, 1, 2, 10))) for _ in range(rng.randint(1, 3))) for _ in range(2)
    ),
    "parse_duration": lambda rng: (
        "".join(f"{rng.randint(0, 70)}{unit}" for unit in rng.choice(("hms", "Hm", "ms", "h", "s", "m", "hm")))
        + rng.choice(("", "", "5", " ")),
    ),
    "split_fields": lambda rng: (draw.text(rng, 'ab,;"', most=10), rng.choice(",;")),
    "evaluate_postfix": lambda rng: (_postfix(rng),),
    "parse_range": lambda rng: (",".join(_page(rng) for _ in range(rng.randint(0, 4))),),
    "strip_comment": lambda rng: (draw.text(rng, "ab '#", most=10),),
}
