"""Reads whole numbers from text."""


def parse(text: str) -> int:
    """The number that a text holds, such as 1250 for ``1,250`` and -3 for ``-3``; blanks and commas are passed over.

    Raises:
        ValueError: the text holds no number.
    """
    return int("".join(character for character in text if character.isdigit()))
