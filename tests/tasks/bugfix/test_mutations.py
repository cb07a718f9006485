"""Every kind of bug: its exact edits, and what holds for all edits of any program."""

from __future__ import annotations

import ast
import difflib
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import TaskError
from agentrl.tasks.bugfix.mutations import KINDS, Mutation, _compiles, mutations
from agentrl.tasks.bugfix.program import Program
from agentrl.tasks.bugfix.repo import PACKAGES, package_files
from agentrl.tasks.bugfix.small import references

EVERY_TEXT = [reference.text for reference in references()]
EVERY_TEXT += [text for name in PACKAGES for text in package_files(name).values()]


def edits(kind: str, body: str) -> list[tuple[str, str]]:
    """(before, after) of every edit of one kind in a function with this body."""
    source = f"def f(xs, n, k=None):\n{textwrap.indent(textwrap.dedent(body).strip(), '    ')}\n"
    return [(m.before, m.after) for m in mutations(source, [kind])]


CASES = [
    ("comparison", "return n < 3", [("n < 3", s) for s in ("n <= 3", "n > 3", "n >= 3")]),
    ("comparison", "return n not in xs", [("n not in xs", "n in xs")]),
    (
        "comparison",
        "return 0 <= n != 4",
        [("0 <= n != 4", s) for s in ("0 < n != 4", "0 > n != 4", "0 >= n != 4", "0 <= n == 4")],
    ),
    ("bound", "return range(n)", [("range(n)", "range(n + 1)"), ("range(n)", "range(n - 1)")]),
    (
        "bound",
        "return range(1, n - 1)",
        [("range(1, n - 1)", s) for s in ("range(0, n - 1)", "range(2, n - 1)", "range(1, n - 2)", "range(1, n)")],
    ),
    ("arithmetic", "return n + 1", [("n + 1", "n * 1"), ("n + 1", "n - 1")]),
    ("arithmetic", "n -= 2\nreturn n", [("n -= 2", "n *= 2"), ("n -= 2", "n += 2")]),
    ("arithmetic", "return 'a' + n", []),
    ("division", "return n // 2", [("n // 2", "n / 2")]),
    ("division", "n /= 2\nreturn n", [("n /= 2", "n //= 2")]),
    ("swapped_arguments", "return g(n, 1)", [("g(n, 1)", "g(1, n)")]),
    ("swapped_arguments", "return n - (k + 1)", [("n - (k + 1)", "(k + 1) - n")]),
    ("swapped_arguments", "return n + k", []),
    ("wrong_variable", "return abs(n - 1)", [("n - 1", "k - 1"), ("n - 1", "xs - 1")]),
    ("lost_negation", "return not n", [("not n", "n")]),
    ("lost_negation", "return 2 * -(n + 1)", [("-(n + 1)", "(n + 1)")]),
    ("constant", "return n * 7", [("n * 7", f"n * {value}") for value in (5, 6, 8, 9)]),
    ("constant", "return n - 1", [("n - 1", f"n - {value}") for value in (0, 2, 3)]),
    ("constant", "return xs[0], xs[1:], range(2)", []),
    (
        "initial_value",
        "t = 0\nfor x in xs:\n    t += x\nreturn t",
        [("t = 0", "t = -1"), ("t = 0", "t = 1")],
    ),
    ("initial_value", "t = []\nfor x in xs:\n    t.append(x)\nreturn t", [("t = []", "t = [0]")]),
    ("initial_value", "b = xs[0]\nfor x in xs:\n    b = max(b, x)\nreturn b", [("b = xs[0]", "b = 0")]),
    ("initial_value", "t = 0\nreturn t", []),
    ("connective", "return n and k", [("n and k", "n or k")]),
    ("index", "return xs[0]", [("xs[0]", "xs[-1]"), ("xs[0]", "xs[1]")]),
    (
        "index",
        "for i in range(n):\n    k = xs[i + 1]",
        [("xs[i + 1]", "xs[i + 2]"), ("xs[i + 1]", "xs[i]")],
    ),
    ("index", "return k['a'], k[n]", []),
    (
        "slice",
        "return xs[1:n]",
        [("xs[1:n]", s) for s in ("xs[0:n]", "xs[2:n]", "xs[:n]", "xs[1:]", "xs[1:n + 1]", "xs[1:n - 1]")],
    ),
    ("slice", "return xs[::-1]", [("xs[::-1]", "xs[::]")]),
    (
        "missing_base_case",
        "if n == 0:\n    return 1\nreturn n * f(n - 1)",
        [("    if n == 0:\n        return 1", "")],
    ),
    (
        "missing_guard",
        "for x in xs:\n    if x < 0:\n        continue\n    n += x",
        [("        if x < 0:\n            continue", "")],
    ),
    ("loop_exit", "for x in xs:\n    if x:\n        break", [("break", "continue")]),
    (
        "early_return",
        "for x in xs:\n    n += x\nreturn n",
        [("    return n", "        return n")],
    ),
    ("missing_return", "return n + 1", [("return n + 1", "n + 1")]),
    ("missing_return", "n += 1\nreturn n", [("    return n", "")]),
    ("missing_return", "return n", []),
    ("overwritten_accumulator", "n += 1\nreturn n", [("n += 1", "n = 1")]),
    ("overwritten_accumulator", "n //= 2\nreturn n", [("n //= 2", "n = 2")]),
    ("alias", "return xs.copy()", [("xs.copy()", "xs")]),
    ("alias", "return list(xs), xs[:]", [("list(xs)", "xs"), ("xs[:]", "xs")]),
    ("alias", "return [[0] * n for _ in range(n + 1)]", [("[[0] * n for _ in range(n + 1)]", "[[0] * n] * (n + 1)")]),
    ("alias", "return sorted(xs, key=len)", [("sorted(xs, key=len)", "xs.sort(key=len)")]),
    ("alias", "if k is None:\n    k = []\nk.append(n)\nreturn k", [("None", "[]")]),
    ("dropped_call", "return n.strip().lower()", [("n.strip()", "n"), ("n.strip().lower()", "n.strip()")]),
    ("dropped_call", "return 2 * abs(n - 1)", [("abs(n - 1)", "(n - 1)")]),
    ("dropped_call", "return max(0, n)", [("max(0, n)", "n")]),
]


@pytest.mark.parametrize(("kind", "body", "expected"), CASES)
def test_a_kind_makes_exactly_these_edits(kind: str, body: str, expected: list[tuple[str, str]]) -> None:
    assert sorted(edits(kind, body)) == sorted(expected)


def test_every_kind_has_a_case_and_there_are_at_least_fourteen() -> None:
    assert {kind for kind, _, found in CASES if found} == set(KINDS)
    assert len(KINDS) >= 14


def test_line_and_column_point_at_the_edit_in_characters() -> None:
    source = 'def f(n):\n    """Doc."""\n    return "é" * n, n < 3  # keep\n'
    mutation = mutations(source, ["comparison"])[0]
    # '    return "é" * n, n < 3': 4 blanks, `return `, `"é" * n, ` and `n ` make 4 + 7 + 9 + 2 = 22 characters
    assert (mutation.line, mutation.column) == (3, 22)
    assert mutation.source == source.replace("n < 3", "n <= 3")


def test_docstrings_annotations_and_f_strings_are_left_alone() -> None:
    source = 'def f(n: "1 < 2") -> "3 + 4":\n    """Adds 1 + 2, not 3."""\n    return f"{n + 1}"\n'
    assert {m.kind for m in mutations(source)} == {"missing_return"}


def test_what_would_not_compile_never_comes_out() -> None:
    # A body that would be left empty does not parse: neither the guard of the loop nor the only `return` may go.
    source = "def f(xs):\n    for x in xs:\n        if x:\n            return x\n"
    assert all(ast.parse(m.source) for m in mutations(source))
    assert mutations("def f():\n    return 1\n", ["missing_return"]) == ()


@pytest.mark.parametrize("text", EVERY_TEXT[::6])
def test_edits_of_real_programs_compile_differ_and_touch_little(text: str) -> None:
    found = mutations(text)
    assert len({m.source for m in found}) == len(found)
    for mutation in found:
        compile(mutation.source, "m", "exec")
        assert mutation.source != text
        assert mutation.before != mutation.after
        changed = [line for line in difflib.ndiff(text.split("\n"), mutation.source.split("\n")) if line[0] in "+-"]
        removed = sum(line[0] == "-" for line in changed)
        assert removed <= mutation.before.count("\n") + 4


ODD_LINES = [
    "def f(x):\n    return 1or x, x-1\n",  # 0or x would not parse
    "def f(x):\n    match x:\n        case 1 + 2j: return x - 1\n        case -1:\n            x = 1; return x\n",
    "def f(x):\n    for y in \\\n      x: z = 1\n    return x\n",
    "def f(x):\n    if x > 1: return x - 1\n    elif x < 2: return 1 + x\n    return x\n",
    "def f(a):\n    global b\n    b = a\n    for c in a: b = b + 1\n    return b + a\n",
    'def f(a):\n    t = """\n    b = a + 1\n    """; b = a + 1\n    return g(a,\n        b - 1)\n',
    "x = [1,\n  2 + 3]\nfor y in x:\n    if y: break\n    else: continue\n",
]


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("text", [*ODD_LINES, *EVERY_TEXT[::9]])
def test_what_one_line_proves_is_what_the_whole_module_says(text: str) -> None:
    program = Program(text)
    for kind in KINDS.values():
        for edit in kind(program):
            source = program.apply(edit)
            line = program.place(edit.changes[0].start)[0]
            mutation = Mutation(kind="", source=source, line=line, column=0, before="", after="")
            try:
                compile(source, "m", "exec")
            except SyntaxError:
                assert not _compiles(program, edit, mutation)
            else:
                assert _compiles(program, edit, mutation)


def test_spans_count_characters_also_where_the_syntax_tree_counts_bytes() -> None:
    program = Program('# é\ndef f(n):\n    return "é" + n, n < 3\n')
    (comparison,) = program.find(ast.Compare)
    assert program.source(comparison) == "n < 3"
    # "# é\n" has 4 characters and "def f(n):\n" 10; "    return " has 11, then '"é" + n, ' has 9
    assert program.span(comparison) == (4 + 10 + 11 + 9, 4 + 10 + 11 + 9 + 5)


def test_the_order_is_that_of_the_text_and_always_the_same() -> None:
    text = EVERY_TEXT[0]
    places = [(m.line, m.column) for m in mutations(text)]
    assert places == sorted(places)
    assert mutations(text) == mutations(text)
    assert mutations(text, ["comparison"]) == tuple(m for m in mutations(text) if m.kind == "comparison")


@given(st.integers(-9, 9), st.sampled_from(["+", "-", "*", "//", "%"]), st.sampled_from(["<", "<=", "==", "!="]))
def test_any_expression_keeps_its_surroundings(value: int, operator: str, comparison: str) -> None:
    head, tail = "# first é\ndef f(a,  b):   # odd  blanks\n    return ", "   # end\n"
    for mutation in mutations(f"{head}(a {operator} {value}) {comparison} b{tail}"):
        if mutation.kind != "missing_return":
            assert mutation.source.startswith(head)
        assert mutation.source.endswith(tail)
        ast.parse(mutation.source)


def test_an_unknown_kind_and_a_source_that_does_not_parse_are_refused() -> None:
    with pytest.raises(TaskError, match="unknown kind of bug 'typo'; the kinds are comparison"):
        mutations("x = 1\n", ["typo"])
    with pytest.raises(TaskError, match="does not parse"):
        mutations("def f(:\n")
