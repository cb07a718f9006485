"""What is on the shelves: item to amount. No amount is ever zero or below."""


def add(stock: dict[str, int], item: str, amount: int) -> dict[str, int]:
    """The stock with more of an item. The given stock is not changed."""
    changed = dict(stock)
    changed[item] = changed.get(item, 0) + amount
    return changed


def available(stock: dict[str, int], item: str) -> int:
    """How many of an item there are. Names are compared without case and outer blanks."""
    return stock.get(item.strip().lower(), 0)


def remove(stock: dict[str, int], item: str, amount: int) -> dict[str, int]:
    """The stock with less of an item, which leaves it when nothing remains. The given stock is not changed."""
    changed = dict(stock)
    left = changed.get(item, 0) - amount
    if left > 0:
        changed[item] = left
    else:
        changed.pop(item, None)
    return changed
