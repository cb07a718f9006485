"""A document of headings, sentences, tables and pictures, as Markdown beside its pictures or as one HTML file."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Sentences:
    """A paragraph of plain text."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Code:
    """Lines to copy into a terminal."""

    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A table: its head, and rows of as many cells. Cells after the first are set to the right."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A PNG file that lies beside the document, with what it shows in words."""

    path: Path
    caption: str


Block = Sentences | Code | Grid | Picture


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading with what stands below it."""

    title: str
    blocks: tuple[Block, ...]


def to_markdown(title: str, sections: Sequence[Section]) -> str:
    """The document; pictures are named by their file names."""
    parts = [f"# {title}"]
    for section in sections:
        parts.append(f"## {section.title}")
        parts += [_markdown(block) for block in section.blocks]
    return "\n\n".join(parts) + "\n"


def _markdown(block: Block) -> str:
    if isinstance(block, Sentences):
        return block.text
    if isinstance(block, Code):
        return "\n".join(["```", *block.lines, "```"])
    if isinstance(block, Picture):
        return f"![{block.caption}]({block.path.name})"
    lines = [block.head, ("---", *("---:",) * (len(block.head) - 1)), *block.rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def to_html(title: str, sections: Sequence[Section]) -> str:
    """The document as one file: pictures are inside, nothing is loaded from elsewhere, no script runs."""
    body = [f"<h1>{escape(title)}</h1>"]
    for section in sections:
        body.append(f"<h2>{escape(section.title)}</h2>")
        body += [_html(block) for block in section.blocks]
    return _PAGE.format(title=escape(title), body="\n".join(body))


def _html(block: Block) -> str:
    if isinstance(block, Sentences):
        return f"<p>{escape(block.text)}</p>"
    if isinstance(block, Code):
        return f"<pre>{escape(chr(10).join(block.lines))}</pre>"
    if isinstance(block, Picture):
        data = base64.b64encode(block.path.read_bytes()).decode("ascii")
        caption = escape(block.caption)
        image = f'<img src="data:image/png;base64,{data}" alt="{caption}">'
        return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"
    head = "".join(f"<th>{escape(cell)}</th>" for cell in block.head)
    rows = ("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in block.rows)
    return f'<div class="wide"><table><tr>{head}</tr>\n' + "\n".join(rows) + "\n</table></div>"


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 60rem; margin: 2rem auto;
  padding: 0 1rem; }}
h1 {{ font-size: 1.6rem; }}
h2 {{ font-size: 1.2rem; margin-top: 2.5rem; border-bottom: 1px solid #ddd; }}
p {{ max-width: 46rem; }}
figure {{ margin: 1rem 0; }}
img {{ max-width: 100%; height: auto; }}
figcaption {{ color: #555; font-size: 0.9rem; max-width: 46rem; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }}
th, td {{ padding: 0.2rem 0.8rem 0.2rem 0; text-align: right; border-bottom: 1px solid #eee; white-space: nowrap; }}
th:first-child, td:first-child {{ text-align: left; }}
pre {{ background: #f5f5f5; padding: 0.6rem; overflow-x: auto; font-size: 0.85rem; }}
</style>
</head>
<body>
{body}
</body>
</html>
"""
