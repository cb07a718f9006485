"""Lines of text to rows."""

from __future__ import annotations


def split_line(line: str) -> list[str]:
    """The cells of a line, separated by commas and without outer blanks. A quoted cell may hold commas, and a
    doubled quote in it stands for one."""
    cells = []
    current = ""
    quoted = False
    position = 0
    while position < len(line):
        character = line[position]
        if character == '"' and quoted and line[position + 1 : position + 2] == '"':
            current += '"'
            position += 1
        elif character == '"':
            quoted = not quoted
        elif character == "," and not quoted:
            cells.append(current.strip())
            current = ""
        else:
            current += character
        position += 1
    cells.append(current.strip())
    return cells


def read_rows(text: str) -> list[dict[str, str]]:
    """The rows of a table by column name. The first line has the names; empty lines are skipped, missing cells
    are empty."""
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        return []
    names = [name.lower() for name in split_line(lines[0])]
    rows = []
    for line in lines[1:]:
        cells = split_line(line)
        cells += [""] * (len(names) - len(cells))
        rows.append(dict(zip(names, cells, strict=False)))
    return rows
