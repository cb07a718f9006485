"""One battery for every backend: how a program ended is told as it was, a signal from a status of the same number."""

import asyncio
import signal

import pytest

from tests.sandbox.boxes import EVERY_BACKEND, a_box

pytestmark = EVERY_BACKEND

SIGNALS = ("KILL", "TERM", "SEGV", "ABRT", "HUP", "USR1", "INT", "PIPE")
EXITS = (1, 127, 129, 134, 137, 139, 143, 200, 255)


def ends(backend, *sources):
    """Status and signal of each of these lines of a shell, in one box."""

    async def go():
        async with a_box(backend) as box:
            done = [await box.exec(["sh", "-c", source]) for source in sources]
            return [(one.status, one.signal) for one in done], [one.killed_for for one in done]

    ended, killed_for = asyncio.run(go())
    assert killed_for == [None] * len(sources)
    return ended


def test_every_signal_is_one(backend):
    expected = [(None, getattr(signal, f"SIG{name}")) for name in SIGNALS]
    assert ends(backend, *(f"kill -{name} $$" for name in SIGNALS)) == expected


def test_an_exit_is_none_whatever_its_status(backend):
    assert ends(backend, *(f"exit {status}" for status in EXITS)) == [(status, None) for status in EXITS]


def test_a_signal_to_the_whole_group_is_for_the_program_alone(backend):
    survivor = "trap 'exit 3' TERM; kill -TERM 0; sleep 5"
    assert ends(backend, survivor, "kill -KILL 0") == [(3, None), (None, signal.SIGKILL)]


@pytest.mark.parametrize("word", ["exit", "cd", "nosuch"])
def test_a_word_of_the_shell_is_no_program(backend, word):
    async def go():
        async with a_box(backend) as box:
            return await box.exec([word, "3"])

    assert asyncio.run(go()).status == 127
