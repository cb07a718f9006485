"""Whole programs on standard input and output: honest ones in many styles pass, everything else does not."""
# ruff: noqa: E501  programs in one line are easier to compare

import asyncio
import subprocess
import sys
import uuid

import pytest

from agentrl.errors import SandboxError, TaskError
from agentrl.rewards.judge import HiddenPrograms, Judge, ProgramCase
from agentrl.sandbox.base import BoxLimits, Spec
from agentrl.sandbox.unsafe import SubprocessBackend
from tests.rewards.judge.conftest import Grader, as_bytes
from tests.rewards.judge.programs import ENDLESS, FAILING, FORGED, HONEST, RIGHT, SIX, SUM, echo, program


def wrong_twin(name):
    files, hidden, (old, new) = HONEST[name]
    wrong = {path: text.replace(old, new) for path, text in files.items()}
    assert wrong != files
    return wrong, hidden


@pytest.fixture(scope="session")
def verdicts(grade):
    """(name, whether it is the honest one) -> verdict."""
    jobs = {(name, True): HONEST[name][:2] for name in HONEST} | {(name, False): wrong_twin(name) for name in HONEST}
    return dict(zip(jobs, grade.all(jobs.values(), at_once=4), strict=True))


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_program_passes(verdicts, name):
    verdict = verdicts[name, True]
    assert verdict.verdict == "pass", verdict.why
    assert verdict.num_passed == verdict.num_tests == len(HONEST[name][1].cases)
    assert (verdict.reward, verdict.tier, verdict.repeatable) == (1.0, 1, True)


@pytest.mark.parametrize("name", HONEST)
def test_its_wrong_twin_fails(verdicts, name):
    assert (verdicts[name, False].verdict, verdicts[name, False].reward) == ("fail", 0.0)


@pytest.mark.parametrize("name", FAILING)
def test_what_is_not_right_fails(grade, name):
    source, reason = FAILING[name]
    verdict = grade(program(source), SUM)
    assert (verdict.verdict, verdict.reward, verdict.num_passed) == ("fail", 0.0, 0), verdict.why
    assert reason in verdict.why


@pytest.mark.parametrize("name", ENDLESS)
def test_a_program_without_measure_fails(grade, name):
    source, reason = ENDLESS[name]
    verdict = grade(program(source), HiddenPrograms(program="main.py", cases=SUM.cases[:1], cpu_s=1))
    assert (verdict.verdict, verdict.reward) == ("fail", 0.0), verdict.why
    assert reason in verdict.why


def test_after_one_that_is_out_of_time_no_case_is_run(plain_programs):
    verdict = plain_programs(program("import time\ntime.sleep(9)"), SUM)
    assert (verdict.num_passed, verdict.repeatable) == (0, False)
    assert verdict.why == "0: ended for its use of time; 1: not run; 2: not run"


@pytest.mark.parametrize("name", FORGED)
def test_a_forgery_fails_and_its_honest_twin_passes(grade, name):
    forged, honest = FORGED[name]
    assert grade(program(forged), SIX).verdict == "fail"
    assert grade(program(honest), SIX).verdict == "pass"


SPY = """import os, re
for pid in os.listdir('/proc'):
    for name in ('cmdline', 'environ'):
        try: found = re.search(rb'answer-[0-9a-f]{32}', open(f'/proc/{pid}/{name}', 'rb').read())
        except OSError: continue
        if found: print(found.group().decode()); raise SystemExit"""


def secret():
    """Two cases whose answer nothing but this verdict knows, so that no other process of the machine tells it."""
    answer = f"answer-{uuid.uuid4().hex}"
    return answer, HiddenPrograms(program="main.py", cases=(ProgramCase(stdout=f"{answer}\n"),) * 2)


def test_the_answer_stands_in_the_words_of_no_process(grade):
    answer, hidden = secret()
    verdict = grade(program(SPY), hidden)
    assert (verdict.verdict, verdict.num_passed) == ("fail", 0), verdict.why
    assert grade(program(f"print({answer!r})"), hidden).verdict == "pass"


def test_where_a_process_has_the_answer_among_its_words_and_there_are_no_walls_it_is_found(plain_programs):
    answer, hidden = secret()
    with subprocess.Popen([sys.executable, "-c", "input()", answer], stdin=subprocess.PIPE) as teller:
        verdict = plain_programs(program(SPY), hidden)
        teller.communicate(b"\n")
    assert (verdict.verdict, verdict.num_passed) == ("pass", 2), verdict.why


@pytest.fixture(scope="module")
def plain_programs():
    """Grades in boxes that only have limits, for what does not depend on walls."""
    grader = Grader(SubprocessBackend(allow_unsafe=True), wall_s=2.0)
    yield grader
    grader.close()


def test_without_a_fresh_workspace_the_next_case_would_see_the_last():
    async def main():
        backend = SubprocessBackend(allow_unsafe=True)
        forged = FORGED["what an earlier case left"][0]
        box = await backend.start(Spec(files=as_bytes(program(forged, **{".agentrl/launcher.py": ""}))))
        found = [(await box.exec(["python", "-I", "-S", "main.py"])).stdout for _ in range(2)]
        await backend.close()
        return found

    assert asyncio.run(main()) == [b"", b"6\n"]


def test_an_answer_that_cannot_be_kept_whole_is_an_error(plain_programs):
    long = HiddenPrograms(program="main.py", cases=(ProgramCase(stdout="x" * 65_536),))
    verdict = plain_programs(program("print('x' * 65536, end='')"), long)
    assert (verdict.verdict, verdict.reward) == ("error", None)
    assert "give the judge limits with output_bytes above 65536" in verdict.why


def test_a_program_that_is_missing_fails(plain_programs):
    assert plain_programs({"other.py": RIGHT}, SUM).verdict == "fail"


class Empty(SubprocessBackend):
    """Its boxes have no interpreter."""

    async def start(self, spec):
        box = await super().start(spec)

        async def exec_nothing(argv, **more):
            return await type(box).exec(box, ["/bin/sh", "-c", "echo no python >&2; exit 127"], **more)

        box.exec = exec_nothing
        return box


def test_a_box_without_an_interpreter_is_an_error():
    async def main():
        backend = Empty(allow_unsafe=True)
        judge = Judge(backend, limits=BoxLimits(wall_s=2.0))
        try:
            return await judge.grade(as_bytes(program(RIGHT)), SUM)
        finally:
            await judge.close()
            await backend.close()

    verdict = asyncio.run(main())
    assert (verdict.verdict, verdict.reward) == ("error", None)
    assert "no Python runs in the box (status 127): no python" in verdict.why


def test_the_box_never_holds_an_answer(plain_programs):
    look = "import os\nprint([open(os.path.join(d, n)).read() for d, _, names in os.walk('.') for n in names if 'launcher' in n])"
    verdict = plain_programs(program(look), echo(ProgramCase(stdin="question", stdout="answer-31415")))
    assert verdict.verdict == "fail"
    kept = []

    class Listening(SubprocessBackend):
        async def start(self, spec):
            box = await super().start(spec)
            write, execute = box.write, box.exec

            async def heard(files):
                kept.extend(files.values())
                await write(files)

            async def run(argv, *, stdin=b""):
                kept.extend([" ".join(argv).encode(), stdin])
                return await execute(argv, stdin=stdin)

            box.write, box.exec = heard, run
            return box

    grader = Grader(Listening(allow_unsafe=True))
    grader(program("print('x')"), echo(ProgramCase(stdin="question", stdout="answer-31415")))
    grader.close()
    assert any(b"question" in data for data in kept)  # the tap works
    assert not any(b"31415" in data for data in kept)


CASES = (ProgramCase(stdout="1"),)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"program": "../main.py"}, "program '../main.py': give a path such as src/main.py"),
        ({"program": "/main.py"}, "program '/main.py'"),
        ({"program": "tool run"}, "program 'tool run'"),
        ({"program": "-c.py"}, "program '-c.py'"),
        ({"program": ""}, "program ''"),
        ({"cases": ()}, "no case expects any output"),
        ({"cases": (ProgramCase(stdout=" \n"),)}, "no case expects any output"),
        ({"compare": "words"}, "compare 'words': write one of exact, lines, numbers"),
        ({"tolerance": 1.0}, "tolerance is 1.0"),
        ({"cpu_s": 0.5}, "cpu_s is 0.5"),
    ],
)
def test_cases_that_make_no_sense_are_refused_with_the_task(more, problem):
    with pytest.raises(TaskError, match=r"^tasks/7: ") as caught:
        HiddenPrograms(**{"program": "main.py", "cases": CASES, "task_id": "tasks/7", **more})
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"stdout": ()}, "without a right answer"),
        ({"stdout": "1", "arguments": ("\0",)}, "no program can be given a NUL"),
        ({"stdout": "1", "arguments": ("a" * 40_000,)}, "arguments of 40000 bytes; give 32768 at most"),
        ({"stdout": "1", "arguments": ("\ud800",)}, "half a character"),
        ({"stdout": "\ud800"}, "half a character"),
        ({"stdout": "1", "stdin": "\udfff"}, "half a character"),
        ({"stdout": "1", "status": 256}, "status is 256"),
    ],
)
def test_a_case_that_makes_no_sense_is_refused(more, problem):
    with pytest.raises(TaskError, match=problem):
        ProgramCase(**more)


def test_a_lost_box_is_an_error():
    class Lost(SubprocessBackend):
        async def start(self, spec):
            raise SandboxError("no box today")

    grader = Grader(Lost(allow_unsafe=True))
    verdict = grader(program(RIGHT), SUM)
    grader.close()
    assert (verdict.verdict, verdict.why) == ("error", "no box today")


def test_words_as_long_as_may_be_are_given(grade):
    case = ProgramCase(arguments=("x" * 32_768,), stdout="32768")
    assert grade(program("import sys\nprint(len(sys.argv[1]))"), echo(case)).verdict == "pass"
