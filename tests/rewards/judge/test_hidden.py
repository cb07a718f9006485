"""Calls with hidden values, inputs drawn anew, and what the candidate gets to see of them."""
# ruff: noqa: E501  programs and messages in one line are easier to compare

import asyncio
import contextlib
import socket
import threading

import pytest

from agentrl.errors import TaskError
from agentrl.rewards.judge import HiddenReference, HiddenSuite, Judge
from agentrl.rewards.judge.hidden import HiddenCheck
from tests.rewards.judge.plain_box import PlainBackend, PlainBox

SORTED = HiddenReference(
    module="m",
    function="order",
    reference="def order(xs): return sorted(xs)",
    inputs="def inputs(rng): return ([rng.randint(0, 99) for _ in range(rng.randint(1, 9))],)",
    num_inputs=100,
)


def test_an_argument_that_comes_back_changed_is_the_value(plainly):
    order = {"m.py": "def order(xs):\n    xs.sort()\n    return xs"}
    assert plainly(order, SORTED).verdict == "pass"
    assert plainly({"m.py": "def order(xs): return xs"}, SORTED).verdict == "fail"


def test_inputs_are_new_each_time_and_the_same_for_a_seed(plainly):
    source = {"m.py": "def order(xs): return sorted(xs) if sum(xs) % 2 else []"}
    counts = {plainly(source, SORTED).num_passed for _ in range(8)}
    assert len(counts) > 1  # 100 coins: eight equal counts have a probability below 1e-6
    assert len({plainly(source, SORTED, seed=7).num_passed for _ in range(3)}) == 1


def test_a_table_of_answers_seen_before_does_not_pass(plainly):
    seen = "def order(xs): return {repr([5, 3]): [3, 5]}.get(repr(xs))"
    assert plainly({"m.py": seen}, SORTED).num_passed == 0


class Listening(PlainBackend):
    """Keeps every byte that goes to the candidate, whoever sends it, and every file."""

    def __init__(self):
        self.heard = bytearray()

    async def start(self, spec):
        self.heard += b"".join(spec.files.values())
        outer = self

        class Tapped(PlainBox):
            async def channel(self, argv, *, wall_s=None):
                channel = await super().channel(argv)
                channel.end = outer.tapped(channel.end)
                return channel

        return Tapped(spec)

    def tapped(self, end):
        """A socket that is as good as ``end``, with all that goes in kept."""
        end.setblocking(True)
        near, far = socket.socketpair()
        near.setblocking(False)
        for source, sink, kept in ((far, end, self.heard), (end, far, bytearray())):
            threading.Thread(target=_pump, args=(source, sink, kept), daemon=True).start()
        return near


def _pump(source, sink, kept):
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            kept += data
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize(
    "hidden",
    [
        HiddenReference(
            module="m",
            function="add",
            reference="def add(a, b): return 12340",
            inputs="def inputs(rng): return (-5, 12345)",
        ),
        HiddenSuite(
            files={"test_x.py": "from m import add\ndef test_x():\n    assert add(-5, 12345) == 12340\n"},
            modules=("m",),
        ),
        HiddenCheck.of_script(module="m", source="def check(f):\n    assert f(-5, 12345) == 12340\ncheck(add)"),
    ],
    ids=lambda hidden: type(hidden).__name__,
)
def test_expected_values_never_reach_the_candidate(hidden):
    async def main():
        backend = Listening()
        judge = Judge(backend)
        verdicts = [
            await judge.grade({"m.py": body}, hidden) for body in (b"def add(a, b): return a + b", b"add = abs")
        ]
        await judge.close()
        return backend.heard, [verdict.verdict for verdict in verdicts]

    heard, verdicts = asyncio.run(main())
    assert b"12345" in heard  # the tap works
    assert b"12340" not in heard
    assert b"assert" not in heard.split(b'"q"', 1)[1]
    assert verdicts == ["pass", "fail"]


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: HiddenSuite(files={"test_x.py": "x = 1"}, modules=("m",)), "no test in test_x.py"),
        (
            lambda: HiddenSuite(files={"test_x.py": "def ("}, modules=("m",)),
            "hidden test file test_x.py does not parse",
        ),
        (
            lambda: HiddenSuite(files={"test_x.py": "def test_a(): 1\n" * 2}, modules=("m",)),
            "two tests have the same name",
        ),
        (lambda: HiddenReference(module="m", function="f", reference="", inputs="", num_inputs=0), "num_inputs is 0"),
        (
            lambda: HiddenReference(module="m", function="f", reference="(", inputs=""),
            "reference of m.f does not parse",
        ),
        (lambda: HiddenCheck.of_script(module="m", source="x = 1"), "does not end in check"),
    ],
)
def test_hidden_tests_that_say_nothing_are_refused(make, problem):
    with pytest.raises(TaskError, match=problem):
        make()


def test_ids_are_read_from_the_text():
    text = "def test_a(): 1\nclass T:\n    def test_b(self): 1\n    def help(self): 1\ndef other(): 1\nasync def test_c(): 1\n"
    suite = HiddenSuite(files={"x/test_x.py": text, "helper.py": "def test_no(): 1"}, modules=("m",))
    assert suite.ids == ("x/test_x.py::test_a", "x/test_x.py::T::test_b", "x/test_x.py::test_c")


def test_a_test_that_vanishes_does_not_pass(plainly):
    text = "from m import f\ndef test_a(): assert f() == 1\ndef test_b(): assert f() == 1\nif f() == 2: del test_b\n"
    assert plainly.suite({"m.py": "def f(): return 1"}, text).verdict == "pass"
    assert (
        plainly.suite(
            {"m.py": "n = 1\ndef f():\n    global n\n    n += 1\n    return 2 if n == 2 else 1"}, text
        ).num_passed
        == 1
    )


TRUSTED = "from m import Money\ndef test_x():\n    assert Money(100) == Money(100.0)\n    assert Money(1) != Money(2)\n"
MONEY = "class Money:\n    def __init__(self, x): self.x = x\n    def __eq__(self, other): return self.x == other.x\n"


def test_objects_compare_themselves_only_where_the_suite_says_so_and_the_tier_tells(plainly):
    strict = plainly.suite({"m.py": MONEY}, TRUSTED)
    assert (strict.verdict, strict.tier) == ("fail", 1)
    assert "which compare themselves" in strict.why
    trusting = plainly.suite({"m.py": MONEY}, TRUSTED, trusting=True)
    assert (trusting.verdict, trusting.tier) == ("pass", 2)
    always = MONEY.replace("self.x == other.x", "True")
    assert plainly.suite({"m.py": always}, TRUSTED, trusting=True).verdict == "fail"
