"""A document says the same in both forms; the HTML loads nothing and escapes everything."""

import base64
import re

from agentrl.evals.report.document import Code, Grid, Picture, Section, Sentences, to_html, to_markdown


def parts(folder):
    path = folder / "p.png"
    path.write_bytes(b"\x89PNG")
    blocks = (
        Sentences(text="a < b & c"),
        Grid(head=("k", "x"), rows=(("1", "a|b"),)),
        Code(lines=("run <this>",)),
        Picture(path=path, caption='a "p"'),
    )
    return [Section(title="One", blocks=blocks)]


def test_markdown_names_the_picture_beside_it(tmp_path):
    expected = """# T

## One

a < b & c

| k | x |
| --- | ---: |
| 1 | a\\|b |

```
run <this>
```

![a "p"](p.png)
"""
    assert to_markdown("T", parts(tmp_path)) == expected


def test_html_is_whole_in_itself(tmp_path):
    page = to_html("T <1>", parts(tmp_path))
    assert "<title>T &lt;1&gt;</title>" in page
    assert "<p>a &lt; b &amp; c</p>" in page
    assert "<td>a|b</td>" in page
    assert "<pre>run &lt;this&gt;</pre>" in page
    sources = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert sources == ["data:image/png;base64," + base64.b64encode(b"\x89PNG").decode()]
    assert not re.search(r"<script|http|url\(|@import", page)
