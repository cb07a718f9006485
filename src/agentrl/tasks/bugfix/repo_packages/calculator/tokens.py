"""Text to tokens."""


def split_tokens(text: str) -> list[str]:
    """Cut an expression into numbers, names, operators and parentheses. Blanks only separate."""
    tokens = []
    position = 0
    while position < len(text):
        if text[position].isspace():
            position += 1
            continue
        end = position + 1
        if text[position].isalnum():
            while end < len(text) and text[end].isalnum():
                end += 1
        tokens.append(text[position:end])
        position = end
    return tokens


def is_number(token: str) -> bool:
    """Tell whether a token is a whole number."""
    return token != "" and all("0" <= character <= "9" for character in token)


def is_name(token: str) -> bool:
    """Tell whether a token is a name: it starts with a letter."""
    return token[:1].isalpha()
