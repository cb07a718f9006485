"""The tool `edit`: one exact place, every other byte as it was, and errors that say what to write instead."""

import codecs
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.tasks.shell.edits import NotEdited, encoding_of, replaced
from tests.tasks.shell.worlds import EVERY_BACKEND, FILES

TEXT = "def f(x):\n    if x:\n        return x\n    return 0\n"


@pytest.mark.parametrize(
    ("content", "old", "new", "result"),
    [
        (b"all:\n\tcc a.c\n\nrun:\n\tcc b.c\n", "b.c", "c.c", b"all:\n\tcc a.c\n\nrun:\n\tcc c.c\n"),
        (b"a\r\nb\r\nc\r\n", "b\nc", "x\ny\nz", b"a\r\nx\r\ny\r\nz\r\n"),
        (b"a\r\nb\r\n", "b\r\n", "x\r\n", b"a\r\nx\r\n"),
        (b"a\nb\r\nc\n", "c", "x\ny", b"a\nb\r\nx\ny\n"),  # ends of both kinds: as they are written
        (b"no end", "end", "last", b"no last"),
        (b"x = 1\n", "x = 1\n", "", b""),
        ("naïve ✓\n".encode(), "ï", "i", "naive ✓\n".encode()),
        (codecs.BOM_UTF8 + b"a = 1\n", "1", "2", codecs.BOM_UTF8 + b"a = 2\n"),
        ("gr\xfcn = 1\n".encode("latin-1"), "gr\xfcn = 1", "gr\xfcn = 2", "gr\xfcn = 2\n".encode("latin-1")),
        ("\ufeffa = 1\n".encode("utf-16-le"), "1", "é", "\ufeffa = é\n".encode("utf-16-le")),
        (b"a\x0cb", "b", "c", b"a\x0cc"),
    ],
)
def test_only_the_place_changes(content, old, new, result):
    assert replaced(content, old, new) == result


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.sampled_from(["a", "\t", "é", " x ", "\r", "\x1b"]), max_size=12),
    st.lists(st.sampled_from(["b", "\n", "\t\t", "ß"]), max_size=12),
    st.sampled_from(["\n", "\r\n"]),
)
def test_every_other_byte_stays(before, after, end):
    content = end.join(["".join(before), "HERE", "".join(after).replace("\n", end), ""]).encode()
    assert replaced(content, "HERE", "new").replace(b"new", b"HERE") == content


@pytest.mark.parametrize(
    ("content", "old", "said"),
    [
        (b"x\na = 1\nx\na = 1\n", "a = 1", "old occurs 2 times, at lines 2, 4; give more lines"),
        (b"aaa", "aa", "old occurs 2 times, at lines 1, 1"),
        (TEXT.encode(), "        return x\n    return 1", "the nearest lines are\n3|        return x\n4|    return 0"),
        (TEXT.encode(), "\treturn x", "line 3 differs in its indent (a tab is not spaces): it is '        return x'"),
        (TEXT.encode(), "      return 0", "line 4 differs in its indent: it is '    return 0', not '      return 0'"),
        (b"a = 1  \nb\n", "a = 1\nb", "line 1 differs in blanks at its end: it is 'a = 1  ', not 'a = 1'"),
        (b"a\r\nb\nc\r\n", "a\nb", "line 1 differs in its line end: it is 'a\\r', not 'a'"),
        (TEXT.encode(), "\n\n    return 0\n\n\n", "at line 4 it is but for the empty lines at its ends"),
        (TEXT.encode(), "class Completely: different", "which has 5 lines, and no line is like its first"),
        (b"", "x", "which has 1 lines"),
        (TEXT.encode(), "return x", "old and new are the same"),
        (b"\x7fELF\0\0\1", "E", "the file is binary"),
        (codecs.BOM_UTF16_LE + b"a", "a", "the file is binary"),
    ],
)
def test_what_is_wrong_is_said(content, old, said):
    with pytest.raises(NotEdited, match=re.escape(said)):
        replaced(content, old, old if said.startswith("old and new") else "new")


def test_a_character_that_the_file_cannot_hold_is_refused():
    with pytest.raises(NotEdited, match=r"is in latin-1, which cannot hold the character '.u2713'"):
        replaced(b"caf\xe9 = 1\n", "1", "✓")
    with pytest.raises(NotEdited, match=r"cannot hold the character '.udc80'"):
        replaced(b"a = 1\n", "1", "\udc80")
    assert encoding_of(b"caf\xe9") == "latin-1"


@EVERY_BACKEND
def test_files_in_the_box(world):
    setting = """
        chmod 751 program.py; ln -s program.py link.py; ln -s /etc/passwd out; ln -s .. above; mkfifo pipe; mkdir folder
        head -c 1200000 /dev/zero | tr '\\0' a > large; printf 'a\\0b' > data; ln -s link.py ring; : > empty; pwd
    """
    calls = {
        ("program.py", "n + n", "2 * n"): "edited program.py",
        ("link.py", "2 * n", "n * 2"): "edited link.py",
        ("{here}/program.py", "n * 2", "n+n"): "edited {here}/program.py",
        ("program.py", "  return n - n", "x"): "error: program.py: old is not in the file; the nearest lines are\n2|",
        ("made/new.py", "", "a = 1\r\n"): "made made/new.py",
        ("made/new.py", "", "b"): "error: 'made/new.py' is there already; an empty old makes new files only",
        ("empty", "", "b"): "error: 'empty' is there already; an empty old makes new files only",
        ("nothing.py", "a", "b"): "error: there is no file 'nothing.py'; an empty old makes it",
        ("program.py/x", "", "b"): "error: 'program.py/x': ",
        ("folder", "a", "b"): "error: 'folder' is a folder; name a file",
        ("pipe", "a", "b"): "error: 'pipe' is no regular file",
        ("../x", "", "b"): "error: '../x' lies outside of the workspace; name a file below {here}",
        ("/etc/passwd", "root", "b"): "error: '/etc/passwd' lies outside",
        ("out", "root", "b"): "error: 'out' leads outside of the workspace by a link",
        ("above/x", "", "b"): "error: 'above/x' leads outside of the workspace by a link",
        ("large", "a", "b"): "error: 'large' has 1,200,000 bytes; edit takes files of at most 1,048,576",
        ("data", "a", "b"): "error: data: the file is binary",
        ("", "a", "b"): "error: '' is a folder",
        ("a\0b", "a", "b"): "error: path or old holds a zero byte",
        ("a\udc80", "a", "b"): "error: path or old holds a zero byte or half a character",
        ("new", "", "\udc80"): "error: new: the file is in utf-8, which cannot hold the character '\\udc80'",
    }

    async def scenario(tools):
        here = (await tools.shell(setting)).splitlines()[-1]
        told = [(await tools.edit(path.format(here=here), *more), here) for path, *more in calls]
        return told, await tools.shell(
            "stat -c '%A %n' program.py link.py; od -c made/new.py | head -1; ls -A folder made"
        )

    told, state = world.play(scenario)
    for (answer, here), wanted in zip(told, calls.values(), strict=True):
        assert answer.startswith(wanted.format(here=here))
    assert state.splitlines() == [
        "-rwxr-x--x program.py",
        "lrwxrwxrwx link.py",
        "0000000   a       =       1  \\r  \\n",
        "folder:",
        "",
        "made:",
        "new.py",
    ]


@EVERY_BACKEND
def test_an_edit_is_what_is_graded(world):
    async def scenario(tools):
        broken = await tools.edit("program.py", "n + n", "n + 1")
        return broken, await tools.scores()

    broken, scores = world.play(scenario, FILES)
    assert broken == "edited program.py"
    assert scores == {"hidden_tests": 0.0, "tests_changed": 0.0}
