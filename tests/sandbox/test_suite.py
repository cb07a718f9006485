"""Running tests without pytest: what is found, and what a failure tells."""

import textwrap

import pytest

from agentrl.sandbox import Job, Suite

SOURCE = """
def f(x):
    if x < 0:
        raise ValueError(f"no {x}")
    if x == 99:
        while True:
            pass
    return 2 * x


class Point:
    def __eq__(self, other):
        return False

    def __repr__(self):
        raise RuntimeError
"""


def run(pool, tests, source=SOURCE):
    files = {"m.py": source, "test_m.py": "from m import *\n" + textwrap.dedent(tests)}
    return pool.run_sync([Job(files=files, run=Suite(paths=("test_m.py",)))])[0]


def only(pool, tests, **more):
    (test,) = run(pool, tests, **more).tests
    return test


def test_tests_are_found_in_the_order_of_definition(pool):
    result = run(
        pool,
        """
        def test_b(): pass
        def helper(): assert False
        class TestThing:
            def test_z(self): assert f(1) == 2
            def helper(self): assert False
            def test_a(self): assert f(1) == 3
        def test_a(): pass
        testing = 3
        """,
    )
    assert [(test.name.removeprefix("test_m.py::"), test.passed) for test in result.tests] == [
        ("test_b", True),
        ("TestThing::test_z", True),
        ("TestThing::test_a", False),
        ("test_a", True),
    ]
    assert not result.all_passed


def test_a_passing_suite(pool):
    assert run(pool, "def test_a():\n    assert f(2) == 4").all_passed


def test_a_failing_comparison_tells_call_got_expected_and_line(pool):
    test = only(pool, "def test_a():\n    assert   f( 3 ) == 7, 'twice'  # six")
    assert (test.status, test.call, test.got, test.expected) == ("failed", "f(3)", "6", "7")
    assert (test.message, test.line) == ("twice", "assert   f( 3 ) == 7, 'twice'  # six")


def test_an_exception_in_the_call_tells_the_call_and_the_place(pool):
    test = only(pool, "def test_a():\n    assert f(-1) == 7")
    assert (test.status, test.call, test.exception, test.message) == ("raised", "f(-1)", "ValueError", "no -1")
    assert (test.where, test.line) == ("m.py:4", "assert f(-1) == 7")


@pytest.mark.parametrize(
    ("body", "call", "exception"),
    [
        ("assert not f(3)", "", "AssertionError"),
        ("assert f(3) > 7", "", "AssertionError"),
        ("assert 7 == f(3)", "", "AssertionError"),
        ("f(-1)", "", "ValueError"),
        ("x = 2; assert f(x) == 5", "f(x)", "AssertionError"),
        ("assert f(1) == 2; f(-1)", "", "ValueError"),
        ("for x in (1, 2, -1): assert f(x) == 2 * x", "f(x)", "ValueError"),
        ("assert f(\n        3) == 5", "f(3)", "AssertionError"),
        ("check(4)", "f(n)", "AssertionError"),
        ("raise SystemExit(0)", "", "SystemExit"),
        ("import unittest; raise unittest.SkipTest", "", "SkipTest"),
    ],
)
def test_other_failures_tell_what_is_known(pool, body, call, exception):
    test = only(pool, f"def check(n):\n    assert f(n) == 0\ndef test_a():\n    {body}\n")
    assert (test.call, test.exception, test.passed) == (call, exception, False)


def test_a_test_that_never_ran_does_not_pass(pool):
    result = run(pool, "async def test_a(): assert f(1) == 2\ndef test_b(): yield 1\ndef test_c(x): pass")
    assert [test.exception for test in result.tests] == ["TypeError"] * 3


@pytest.mark.parametrize(
    ("source", "exception"), [("def f(:", "SyntaxError"), ("x = 1", "ImportError"), ("1 / 0", "ZeroDivisionError")]
)
def test_a_file_that_cannot_be_imported_is_one_failed_test(pool, source, exception):
    tests = "from m import f\ndef test_a():\n    assert f(1) == 2"
    test = only(pool, tests, source=source)
    assert (test.name, test.status, test.call, test.exception) == ("test_m.py", "raised", "", exception)


def test_an_assert_at_the_top_of_a_file_tells_its_call(pool):
    test = only(pool, "def check(g):\n    assert g(1) == 3\ncheck(f)")
    assert (test.name, test.call, test.got, test.expected) == ("test_m.py", "g(1)", "2", "3")


def test_the_test_that_never_ends_is_named_with_its_call(hasty_pool):
    result = run(
        hasty_pool,
        "def test_a(): assert f(1) == 2\ndef test_b(): assert f(99) == 1\ndef test_c(): assert f(2) == 4",
    )
    assert [test.status for test in result.tests] == ["passed", "timeout", "timeout"]
    assert (result.tests[1].call, result.tests[1].exception) == ("f(99)", "TimeoutError")


def test_the_test_that_dies_takes_the_rest_with_it(pool):
    result = run(pool, "import os\ndef test_a(): assert f(1) == 2\ndef test_b(): os._exit(0)\ndef test_c(): pass")
    assert [test.status for test in result.tests] == ["passed", "died", "died"]


def test_a_hostile_repr_and_an_address_do_not_get_into_the_report(pool):
    result = run(pool, "def test_a(): assert Point() == 1\ndef test_b(): assert object() == 1\n")
    assert [test.got for test in result.tests] == ["<Point>", "<object object at 0x...>"]


def test_long_values_are_cut(pool):
    test = only(pool, "def test_a(): assert list(range(10_000)) == 1")
    assert len(test.got) == 500
    assert test.got.endswith("...")


def test_several_files_are_several_lists(pool):
    files = {"m.py": SOURCE, "tests/test_x.py": "from m import f\ndef test_a(): assert f(1) == 2", "test_y.py": "1 / 0"}
    result = pool.run_sync([Job(files=files, run=Suite(paths=("tests/test_x.py", "test_y.py")))])[0]
    assert [(test.name, test.passed) for test in result.tests] == [
        ("tests/test_x.py::test_a", True),
        ("test_y.py", False),
    ]


def test_an_assert_of_something_else_keeps_its_meaning(pool):
    tests = """
    def test_walrus():
        assert (y := f(2)) == 4
        assert f(y) == y * 2 == 8
        assert f(1) == 2 and f(2) == 4
        assert len([x for x in range(3) if f(x) == 2]) == 1
    class Odd:
        def __eq__(self, other): return [1]
    def test_truthy(): assert Odd.__call__() == 3
    """
    assert run(pool, tests).all_passed
