"""Untrusted programs in real boxes: what they give, and what they cannot do."""

import textwrap

import pytest

from agentrl.sandbox import Calls, Job, JobResult, Limits
from agentrl.sandbox.values import Opaque
from tests.pools import open_pool


def program(source, *calls, function="f", **more_files):
    files = {"m.py": textwrap.dedent(source)} | {
        f"{name}.py": textwrap.dedent(text) for name, text in more_files.items()
    }
    return Job(files=files, run=Calls(module="m", calls=tuple((function, call) for call in calls)))


def run(pool, source, *calls, **more) -> JobResult:
    return pool.run_sync([program(source, *calls, **more)])[0]


def statuses(result):
    return [outcome.status for outcome in result.outcomes]


def test_values_come_back_with_their_exact_types(pool):
    result = run(pool, "def f(x):\n    return x", (1,), (True,), (1.0,), ((1, [2]),), ({1: {2}},), (b"\0",), (None,))
    assert [outcome.value for outcome in result.outcomes] == [1, True, 1.0, (1, [2]), {1: {2}}, b"\0", None]
    assert type(result.outcomes[1].value) is bool
    assert result.end == "finished"


def test_an_exception_is_named_and_the_next_call_still_runs(pool):
    result = run(pool, "def f(x):\n    return 6 // x", (0,), (3,))
    first, second = result.outcomes
    assert (first.status, first.exception) == ("raised", "ZeroDivisionError")
    assert "division" in first.message
    assert second.value == 2


def test_every_call_gets_fresh_arguments(pool):
    shared = [1]
    result = run(pool, "def f(xs):\n    xs.append(1)\n    return len(xs)", (shared,), (shared,))
    assert [outcome.value for outcome in result.outcomes] == [2, 2]
    assert shared == [1]


def test_a_standard_module_that_was_warmed_up_is_as_new(pool):
    source = "import decimal\ndef f():\n    seen = hasattr(decimal, 'mark')\n    decimal.mark = 1\n    return seen"
    assert [run(pool, source, (), function="f").outcomes[0].value for _ in range(2)] == [False, False]


def test_links_and_hidden_files_are_cleaned_up_and_lead_nowhere(pool, tmp_path):
    (tmp_path / "kept").write_text("x")
    source = f"""
        import os
        def f(tag):
            seen = os.listdir(".")
            os.makedirs(".a/b"); os.symlink({str(tmp_path)!r}, "link"); os.symlink({str(tmp_path)!r}, ".a/link")
            return seen
    """
    for tag in (1, 2):
        assert run(pool, source, (tag,)).outcomes[0].value == []
    assert (tmp_path / "kept").exists()


def test_one_job_leaves_nothing_behind_for_the_next(pool):
    source = """
        import math, os
        def f(tag):
            seen = (hasattr(math, "mark"), os.listdir("."))
            math.mark = True
            open("left", "w").write("x")
            os.makedirs("dir/inner")
            return seen
    """
    for tag in (1, 2):
        assert run(pool, source, (tag,)).outcomes[0].value == (False, [])


def test_then_the_files_are_imported_anew(pool):
    files = {"m.py": "from n import seen\ndef f(x):\n    seen.append(x)\n    return len(seen)\n", "n.py": "seen = []\n"}
    job = Job(files=files, run=Calls(module="m", calls=(("f", (1,)), ("f", (1,))), then=(("f", (1,)),)))
    assert [outcome.value for outcome in pool.run_sync([job])[0].outcomes] == [1, 2, 1]


def test_nothing_more_is_called_when_time_was_over(brisk_pool):
    source = "def f(x):\n    while x: pass\n    return 1\n"
    job = Job(files={"m.py": source}, run=Calls(module="m", calls=(("f", (0,)), ("f", (1,))), then=(("f", (0,)),)))
    result = brisk_pool.run_sync([job])[0]
    assert statuses(result) == ["value", "timeout", "timeout"]
    assert result.repeatable


@pytest.mark.parametrize(
    ("source", "exception"),
    [
        ("def f(:", "SyntaxError"),
        ("import nowhere", "ModuleNotFoundError"),
        ("x = 1 / 0", "ZeroDivisionError"),
        ("raise SystemExit(0)", "SystemExit"),
        ("x = 1", "AttributeError"),
    ],
)
def test_a_module_without_the_function_fails_every_call(pool, source, exception):
    result = run(pool, source, (1,), (2,))
    assert [(o.status, o.exception) for o in result.outcomes] == [("raised", exception)] * 2


@pytest.mark.parametrize(
    "death", ["os._exit(0)", "os.kill(os.getpid(), 9)", "os.abort()", "os.closerange(0, 99) or os._exit(0)"]
)
def test_a_call_that_dies_takes_the_rest_with_it(pool, death):
    result = run(pool, f"import os\ndef f(x):\n    if x == 2: {death}\n    return x", (1,), (2,), (3,))
    assert statuses(result) == ["value", "died", "died"]


@pytest.mark.parametrize("ending", ["sys.exit(0)", "raise KeyboardInterrupt", "raise GeneratorExit"])
def test_a_call_that_exits_has_raised(pool, ending):
    assert statuses(run(pool, f"import sys\ndef f():\n    {ending}", (), ())) == ["raised", "raised"]


def test_what_a_program_prints_or_reads_goes_nowhere(pool):
    source = """
        import sys, os
        def f():
            print("x" * 1_000_000)
            os.write(1, b"forged"); os.write(2, b"forged")
            return sys.stdin.read()
    """
    assert run(pool, source, ()).outcomes[0].value == ""


def test_hash_and_random_are_the_same_in_every_box():
    source = "import random\ndef f():\n    return hash('x'), random.random(), list({'a', 'b', 'c', 'd'})"
    results = []
    for _ in range(2):
        with open_pool(1) as pool:
            results.append(run(pool, source, ()).outcomes[0])
    assert results[0].status == "value"
    assert results[0] == results[1]


def test_the_environment_of_the_parent_stays_with_it(monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "hunter2")
    with open_pool(1) as fresh:
        found = run(fresh, "import os\ndef f():\n    return dict(os.environ)", ()).outcomes[0].value
    assert "SECRET_KEY" not in found
    fixed = {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "LC_ALL": "C.UTF-8", "TZ": "UTC"}
    assert {name: found[name] for name in fixed} == fixed


def test_our_own_package_is_not_importable(pool):
    assert run(pool, "import agentrl\ndef f():\n    return 1", ()).outcomes[0].exception == "ModuleNotFoundError"


def test_an_object_comes_back_opaque(pool):
    value = run(pool, "class A:\n    def __eq__(self, o): return True\ndef f():\n    return A()", ()).outcomes[0].value
    assert isinstance(value, Opaque)


def test_memory_is_limited():
    with open_pool(1, Limits(memory_mib=128)) as pool:
        result = run(pool, "def f(n):\n    return len(bytearray(n << 20))", (8,), (512,))
    assert result.outcomes[0].value == 8 << 20
    assert result.outcomes[1].exception == "MemoryError"


def test_a_value_over_the_output_limit_is_opaque_and_the_next_is_not():
    with open_pool(1, Limits(output_bytes=1000)) as pool:
        result = run(pool, "def f(n):\n    return 'x' * n", (10,), (5000,), (10,))
    assert [type(outcome.value) for outcome in result.outcomes] == [str, Opaque, str]


def test_a_flood_on_every_file_is_stopped(hasty_pool):
    source = """
        import os
        def f():
            while True:
                for fd in range(64):
                    try:
                        os.write(fd, b"x" * 65536)
                    except OSError:
                        pass
    """
    assert statuses(run(hasty_pool, source, ())) == ["died"]


@pytest.mark.parametrize(
    "body",
    [
        "while True: pass",
        "time.sleep(60)",
        "while True:\n        try: time.sleep(60)\n        except BaseException: pass",
        "signal.signal(signal.SIGALRM, signal.SIG_IGN); time.sleep(60)",
        "os.closerange(3, 99); time.sleep(60)",
        "'a' * 30 + str(10 ** 10 ** 8)",
    ],
)
def test_a_call_that_never_ends_does(hasty_pool, body):
    result = run(
        hasty_pool, f"import os, signal, time\ndef f(x):\n    if x == 1: return 7\n    {body}", (1,), (2,), (3,)
    )
    assert result.outcomes[0].value == 7
    assert statuses(result)[1:] in (["timeout", "timeout"], ["died", "died"])  # died: it closed its own report
    assert result.outcomes[1].exception in ("TimeoutError", "ProcessDied")


LOOP = "import signal\ndef f(x):\n    if x: return x\n    while True:\n        "
SWALLOW = "try: sum(range(100_000))\n        except BaseException: pass"  # the interrupt comes inside of the sum


@pytest.fixture(scope="module")
def brisk_pool():
    """The limits of training: a loop costs a tenth of a second of processor time, whatever else the machine does."""
    with open_pool(1, Limits(wall_s=30.0, cpu_s=0.1)) as pool:
        yield pool


def test_processor_time_is_limited_and_the_call_that_used_it_up_is_named(brisk_pool):
    result = run(brisk_pool, LOOP + "pass", (7,), (0,), (8,))
    assert statuses(result) == ["value", "timeout", "timeout"]
    assert (result.end, result.repeatable) == ("timeout", True)
    assert (result.outcomes[1].exception, result.outcomes[1].message) == ("TimeoutError", "took too long")


def test_waiting_takes_no_processor_time(brisk_pool):
    result = run(brisk_pool, "import time\ndef f():\n    time.sleep(0.3)\n    return 1", ())
    assert result.outcomes[0].value == 1


BLOCK = "signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals) - {9})\n        "


@pytest.mark.parametrize("body", [SWALLOW, BLOCK + SWALLOW])
def test_a_program_that_resists_the_interrupt_is_killed_and_its_end_not_remembered(brisk_pool, body):
    result = run(brisk_pool, LOOP + body, (7,), (0,), (8,))
    assert statuses(result) == ["value", "timeout", "timeout"]
    assert not result.repeatable
    assert brisk_pool.stats.restarts == 0


def test_a_whole_module_that_loops_is_a_timeout_of_every_call(brisk_pool):
    assert statuses(run(brisk_pool, "while True: pass", (1,), (2,))) == ["timeout", "timeout"]


def test_daemons_do_not_outlive_their_job(hasty_pool):
    source = """
        import os, time
        def f():
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    time.sleep(60)
                os._exit(0)
            return 1
        def siblings():
            worker = os.getppid()
            return len(open(f"/proc/{worker}/task/{worker}/children").read().split())
    """
    assert run(hasty_pool, source, ()).outcomes[0].value == 1
    assert run(hasty_pool, source, (), function="siblings").outcomes[0].value == 1  # the one that asks


def test_modules_of_a_package_import_each_other(pool):
    job = Job(
        files={
            "shop/__init__.py": "from shop.prices import PRICE",
            "shop/prices.py": "PRICE = 3",
            "plain/deep/part.py": "from shop import PRICE\ndef f(n):\n    return n * PRICE, __file__, __name__",
        },
        run=Calls(module="plain.deep.part", calls=(("f", (2,)),)),
    )
    assert pool.run_sync([job])[0].outcomes[0].value == (6, "plain/deep/part.py", "plain.deep.part")


def test_a_file_of_the_workspace_wins_over_a_standard_module_of_its_name(pool):
    result = run(pool, "import statistics\ndef f():\n    return statistics.MINE", (), statistics="MINE = 1")
    assert result.outcomes[0].value == 1
