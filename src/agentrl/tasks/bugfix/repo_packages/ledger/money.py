"""Amounts of money: whole cents inside, text such as "12.50" outside."""


def parse_amount(text: str) -> int:
    """Read an amount as cents. The cents may be left out or have one digit; a minus makes it negative."""
    stripped = text.strip()
    negative = stripped.startswith("-")
    whole, _, part = stripped.lstrip("-").partition(".")
    cents = int(whole or "0") * 100 + int((part + "00")[:2])
    return -cents if negative else cents


def format_amount(cents: int) -> str:
    """Write cents as an amount with two places."""
    sign = "-" if cents < 0 else ""
    return f"{sign}{abs(cents) // 100}.{abs(cents) % 100:02}"


def split_evenly(cents: int, parts: int) -> list[int]:
    """Split an amount into parts that differ by one cent at most. The first parts are the larger ones."""
    share, rest = divmod(cents, parts)
    return [share + 1 if i < rest else share for i in range(parts)]
