"""The tool `shell` on every backend: what stays from call to call, what is shown, and what nothing can break."""

import asyncio
import contextlib
import json
import random
import re
import shlex
import time
from functools import partial
from pathlib import Path

import pytest

from agentrl.tasks.shell.output import as_seen
from tests.tasks.shell.worlds import EVERY_BACKEND, ONE_BACKEND, needs_walls

ANEW = "a new one was started, without the variables, functions, options and jobs of the old]"
NEXT = "the next call starts a new one]"
GOES_ON = "the shell goes on, its background jobs were ended]"


def all_of(world, *commands, **limits):
    """What a shell answers to some commands in turn."""

    async def scenario(tools):
        return [await tools.shell(*([command] if isinstance(command, str) else command)) for command in commands]

    return world.play(scenario, **limits)


@EVERY_BACKEND
def test_what_a_shell_holds_stays_from_call_to_call(world):
    answers = all_of(
        world,
        "mkdir -p a/b && cd a/b; x=1; export Y=2; f() { echo f$1; }; alias hi='echo hello'; set -o pipefail",
        "basename $PWD; echo $x; bash -c 'echo $Y'; f 3; hi; false | true; echo $?",
        "exec 3> kept; sleep 60 &",
        "echo through >&3; cat kept; jobs | tr -s ' '",
        "kill %1; false",
        "echo $?",
    )
    assert answers[0] == "[no output]"
    assert answers[1] == "b\n1\n2\nf3\nhello\n1"
    assert re.fullmatch(r"\[1\] \d+", answers[2])
    assert answers[3] == "through\n[1]+ Running sleep 60 &"
    assert answers[4].endswith("[exit status 1]")
    assert answers[5].endswith("1")


@ONE_BACKEND
def test_output_and_errors_come_in_the_order_in_which_they_were_printed(world):
    [text] = all_of(world, "for i in 1 2 3; do echo out $i; echo err $i >&2; done; ended() { return 4; }; ended")
    assert text == "out 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3\n[exit status 4]"


@ONE_BACKEND
def test_standard_input_is_at_its_end(world):
    read, cat, python = all_of(
        world, 'read line; echo "$?[$line]"', "cat; echo done", "python -I -S -c 'print(repr(open(0).read()))'"
    )
    assert (read, cat, python) == ("1[]", "done", "''")


@EVERY_BACKEND
def test_commands_that_are_hard_to_read_are_answered_and_the_next_one_too(world):
    with_proc = world.name != "landlock"
    answer_to = {
        "cat <<END\nhi 'there\nEND": "hi 'there",
        "cat <<END\nhi\n  END": "hi\n  END",  # after a warning
        "echo 'open": "unexpected EOF while looking for matching `''\n[exit status 2]",
        "for x in 1 2; do echo $x": "unexpected end of file\n[exit status 2]",
        "echo said # not 'this": "said",
        "cat": "[no output]",
        "cat <<A | awk '{print $1}' - <(cat <<B\nb 2\nB\n)\na 1\nA": "a\nb" if with_proc else "",
        "echo \"it's\" '\"' \\' $'\\'' !x !!": "it's \" ' ' !x !!",
        "": "[no output]",
        "exec > log; echo hidden": "[no output]",
        "exec >&- 2>&-; echo nowhere": "[exit status 1]",
        "no-such-program": "bash: no-such-program: command not found\n[exit status 127]",
        "(kill -SEGV $BASHPID)": "[exit status 139, which is that of a program ended by SIGSEGV]",
        "set -u; echo $nothing; echo after": "bash: nothing: unbound variable\n[exit status 1]",
    }

    async def scenario(tools):
        await tools.shell("mkdir here; cd here")
        return [(await tools.shell(command), await tools.shell("echo alive; basename $PWD")) for command in answer_to]

    for (first, second), answer in zip(world.play(scenario), answer_to.values(), strict=True):
        assert first.endswith(answer)
        assert second == "alive\nhere"


@ONE_BACKEND
def test_any_text_is_a_command_that_is_answered(world):
    needs_walls(world)
    rng = random.Random(7)
    signs = [*"'\"`$(){}[]<>|&;#!*?~\n\t \\=-", "a", "0", "é", "<<", "EOF", "\nEOF\n", "if ", "; done", "echo "]

    async def scenario(tools):
        for _ in range(25):
            text = "".join(rng.choices(signs, k=rng.randrange(1, 14)))
            await tools.shell(text, 2.0)
            assert (await tools.shell("echo; echo alive")).endswith("alive"), text
            assert await tools.shell("printf %s " + shlex.quote(text + ".")) == as_seen(text + ".")

    world.play(scenario)


def num_running(*words):
    """How many processes of this machine, boxes included, have this command line."""
    wanted, found = "\0".join((*words, "")).encode(), 0
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            found += place.read_bytes() == wanted
    return found


@EVERY_BACKEND
def test_a_command_is_interrupted_at_its_deadline_with_all_that_it_started(world):
    begin = time.monotonic()
    answers = all_of(
        world,
        "x=5",
        ("printf started; sleep 31.25 & (sleep 31.25; true) & (sleep 31.25; true)", 1.0),
        # the shell hears of an ended job a moment later
        'echo $x; for n in $(seq 99); do test "$(jobs -r)" || break; sleep 0.1; done; jobs -r; true',
        ("while :; do :; done; echo never", 0.3),
        ("python -I -S -c 'import time; time.sleep(35)'", 0.3),
        "echo $x",
    )
    assert time.monotonic() - begin < 31  # which the first would take by itself
    assert answers[1].startswith("started[1] ")
    assert answers[1].endswith(f"[interrupted after 1 s; {GOES_ON}")
    assert answers[2].splitlines()[-1] == "5"
    assert answers[3] == f"[interrupted after 0.3 s; {GOES_ON}"
    assert answers[4].splitlines()[-1] == f"[interrupted after 0.3 s; {GOES_ON}"
    assert answers[5] == "5"


async def left_by_an_interrupt(tools, within_s=25.0):
    await tools.shell("sleep 31.75 & (sleep 31.75; true) & sleep 31.75", 0.5)
    end = time.monotonic() + within_s
    while left := num_running("sleep", "31.75"):
        if time.monotonic() > end:
            break
        await asyncio.sleep(0.02)
    return left


@EVERY_BACKEND
def test_nothing_that_an_interrupted_command_started_goes_on(world):
    assert world.play(left_by_an_interrupt) == 0


@ONE_BACKEND
def test_the_test_of_what_goes_on_sees_it(world, changed_inside):
    changed_inside("os.killpg(self.pid, signal.SIGTERM)", "pass")
    assert world.play(partial(left_by_an_interrupt, within_s=0.1)) > 0


@ONE_BACKEND
def test_a_command_that_does_not_stop_costs_the_shell_but_neither_files_nor_folder(world):
    answers = all_of(world, "mkdir d; cd d; x=1", ("trap '' INT; touch made; sleep 31; sleep 32", 0.3), "echo [$x]; ls")
    assert answers[1] == f"[interrupted after 0.3 s and did not stop; {ANEW}"
    assert answers[2] == "[]\nmade"


@EVERY_BACKEND
def test_a_shell_that_is_ended_is_replaced(world):
    answer_to = {
        "exit 3": f"exit\n[the shell itself ended with status 3; {ANEW}",
        "exec echo replaced": f"replaced\n[the shell itself ended with status 0; {ANEW}",
        "set -e; false; echo never": f"[the shell itself ended with status 1; {ANEW}",
        "kill -9 $$": f"[the shell itself ended by SIGKILL; {ANEW}",
        "kill -9 $PPID": f"[everything in the shell was ended: its processes were killed; {NEXT}",
    }

    async def scenario(tools):
        await tools.shell("touch made")
        return [(await tools.shell(command), await tools.shell("echo alive; ls")) for command in answer_to]

    for (first, second), answer in zip(world.play(scenario), answer_to.values(), strict=True):
        assert first == answer
        assert second == "alive\nmade\nprogram.py\ntest_program.py"


@ONE_BACKEND
def test_a_shell_that_ended_between_two_calls_is_replaced_and_says_so(world):
    async def scenario(tools):
        await tools.shell("(sleep 0.05; kill -9 $$; sleep 0.1; echo > ended) & sleep 0")
        while not await tools.environment._box.read(["ended"]):
            await asyncio.sleep(0.01)
        return await tools.shell("echo not run"), await tools.shell("echo alive")

    first, second = world.play(scenario)
    assert first == f"[the shell had ended since the last command, so that this one was not run; {ANEW}"
    assert second == "alive"


@ONE_BACKEND
def test_nothing_that_is_printed_is_taken_for_the_end_of_a_command(world):
    marks = r"printf '%s 0 /\0' $(seq 99) >&9; printf '0 /\0'; printf '0 /\0' > /proc/$$/fd/9"
    answers = all_of(world, f"({marks}) 2>/dev/null; sleep 0.2; echo end", "echo next", "pwd")
    assert answers[0].endswith("end")
    assert answers[1] == "next"
    assert answers[2].count("\n") == 0


@ONE_BACKEND
def test_functions_that_hide_what_the_shell_is_driven_with_harm_only_themselves(world):
    answers = all_of(world, ("builtin() { :; }; printf() { :; }; echo said", 0.5), "echo alive")
    assert answers == [f"said\n[interrupted after 0.5 s and did not stop; {ANEW}", "alive"]


@ONE_BACKEND
def test_the_middle_of_a_long_output_is_left_out_and_counted(world):
    sizes = (999, 1000, 1001, 4000, 300_000)
    texts = all_of(world, *(f'python -I -S -c \'print("x" * {size}, end="")\'' for size in sizes), output_chars=1000)
    assert texts[:2] == ["x" * 999, "x" * 1000]
    for text, size in zip(texts[2:], sizes[2:], strict=True):
        left_out = f"\n[... {size - 1000:,} of {size:,} characters left out here ...]\n"
        assert text == "x" * 500 + left_out + "x" * 500


@ONE_BACKEND
def test_an_output_without_end_is_stopped(world):
    answers = all_of(world, "yes", "cat /dev/zero", "echo alive", output_chars=100)
    for text in answers[:2]:
        assert text.endswith(f"[interrupted, as it had printed more than 16 MiB; {GOES_ON}")
        assert len(text) < 300
    assert answers[2] == "alive"


@ONE_BACKEND
def test_bytes_that_are_no_text_are_shown_and_names_of_files_of_them_can_be_used(world):
    answers = all_of(
        world,
        r"printf '\xf0\x28'",
        "python -I -S -c 'import sys; sys.stdout.buffer.write(bytes(range(128, 256)))'",
        r"touch $'caf\xe9'; ls caf*",
        r"rm $'caf\xe9' && ls caf*",
    )
    assert answers[0] == "\ufffd("
    assert answers[1] == "\ufffd" * 128
    assert answers[2] == "caf\ufffd"
    assert "No such file" in answers[3]


@ONE_BACKEND
def test_what_cannot_be_a_command_or_a_time_is_refused(world):
    async def scenario(tools):
        odd = [await tools.observe("shell", command=text) for text in ("echo \udc80", "echo \0")]
        times = [await tools.observe("shell", command="true", timeout=time) for time in (0, -1.0, float("nan"))]
        long = await tools.observe("shell", command="sleep 9", timeout=1e9)
        return odd, times, long

    odd, times, long = world.play(scenario, call_s=0.2)
    assert all(answer.error and "half a character" in answer.content for answer in odd)
    assert all(answer.error and "above 0, at most 0.2" in answer.content for answer in times)
    assert long.content.startswith("[interrupted after 0.2 s;")
    assert json.loads(json.dumps([answer.content for answer in odd]))


@ONE_BACKEND
def test_a_call_that_was_given_up_does_not_answer_the_next(world):
    async def scenario(tools):
        await tools.shell("x=1")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await tools.shell("sleep 9; echo old")
        return await tools.shell("echo new [$x]")

    assert world.play(scenario) == "new []"


@ONE_BACKEND
@pytest.mark.parametrize(
    "lie",
    [
        "os.write(CHANNEL, b'\\xff' * 4000)",
        "os.write(CHANNEL, REPLY.pack(DONE, 0, 0, 1 << 31, 0))",
        "os.write(CHANNEL, REPLY.pack(77, -5, 1 << 60, 0, 0))",
        "os._exit(0)",
    ],
)
def test_a_supervisor_that_lies_is_heard_without_harm(world, changed_inside, lie):
    changed_inside("        kept = Kept()\n        gone", f"        {lie}\n        kept = Kept()\n        gone")
    [text] = all_of(world, "echo real", output_chars=100)
    assert len(text) < 300


@EVERY_BACKEND
def test_there_is_no_network(world):
    needs_walls(world)
    source = "import socket; socket.create_connection(('127.0.0.1', 9))"
    [text] = all_of(world, f'python -I -S -c "{source}"')
    assert "PermissionError" in text


@EVERY_BACKEND
def test_too_many_processes_do_not_outlive_the_call_that_waits_for_them(world):
    needs_walls(world)
    bomb = "import os, time\nfor _ in range(300):\n  try: os.fork()\n  except OSError: pass\ntime.sleep(9)"
    answers = all_of(world, (f'python -I -S -c "{bomb}" & sleep 0.5; true', 1.0), ("ls", 1.0), ("ls", 6.0))
    assert answers[2].endswith("program.py\ntest_program.py")
    answers = all_of(world, (":(){ :|:& };: ; sleep 0.2", 1.0), ("ls", 1.0), ("ls", 6.0))
    assert answers[2].endswith("program.py\ntest_program.py")


@EVERY_BACKEND
def test_too_much_memory_of_many_ends_all_and_the_next_call_works(world):
    hold = "import time; x = bytearray(90 << 20); x[::4096] = b'x' * len(x[::4096]); time.sleep(9)"
    each = f'for i in 1 2 3 4; do python -I -S -c "{hold}" & done; wait'
    answers = all_of(world, each, "echo alive", memory_mib=160)
    why = "more than 160 MiB of memory were used in all"
    assert answers == [f"[everything in the shell was ended: {why}; {NEXT}", "alive"]


@EVERY_BACKEND
def test_a_full_disk_is_an_answer_and_the_next_call_works(world):
    fill = "for i in 1 2 3 4 5 6; do head -c 1000000 /dev/zero > big$i; done; sync; sleep 0.2; true"

    async def scenario(tools):
        first = await tools.shell(fill)
        edited = await tools.edit("program.py", "n + n", "n * 2 # " + "x" * 100_000)
        return first, edited, await tools.shell("cat program.py | cut -c 1-40; rm -f big*; echo alive")

    first, edited, last = world.play(scenario, disk_mib=4)
    bounded = world.name != "subprocess"
    assert ("No space left on device" if bounded else "the files were put back to those of the start") in first
    assert edited == ("error: 'program.py': No space left on device" if bounded else "edited program.py")
    assert last.startswith("def double(n):\n    return n ")
    assert last.endswith("alive")


@EVERY_BACKEND
def test_a_daemon_lives_through_the_attempt_and_not_longer(world):
    async def scenario(tools):
        daemon = "setsid sh -c 'while :; do echo x >> beat; sleep 0.02; done' > /dev/null 2>&1 &"
        await tools.shell(f"{daemon} until test -s beat; do sleep 0.02; done")
        alive = await tools.shell("a=$(wc -c < beat); until test $(wc -c < beat) -gt $a; do sleep 0.02; done; echo $?")
        await tools.scores()
        box = tools.environment._box
        first = await box.read(["beat"])
        await asyncio.sleep(0.1)
        return alive, first["beat"] == (await box.read(["beat"]))["beat"]

    assert world.play(scenario) == ("0", True)
