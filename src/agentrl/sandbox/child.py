"""What is done with a job inside of a box: untrusted programs run here. Standard library only.

It reports through ``Reporter``, one JSON line per call or test, as soon as each is known.
"""

from __future__ import annotations

import json
import re
import signal
import types
from collections.abc import Callable, Mapping
from typing import Any

from agentrl.sandbox import asserts
from agentrl.sandbox.importer import MemoryImporter
from agentrl.sandbox.values import decode, encode

Report = dict[str, Any]
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,}")
_MAX_TEXT = 500
_SOFT_SHARE = 0.9
_REHEARSALS = 20
_REHEARSED_TESTS = """from m import f
def test_1():
    assert f(1) == 1
def test_2():
    assert f(2) == 3
def test_3():
    assert f() == 3
"""
_as_json = json.JSONEncoder(check_circular=False, separators=(",", ":")).encode
_PASSED = {"status": "passed"}
_PASSED_LINE = _as_json(_PASSED).encode()


class Overtime(BaseException):
    """A soft time limit has passed; ``clock`` says which, ``processor`` or ``wall``."""

    def __init__(self, clock: str) -> None:
        super().__init__(clock)
        self.clock = clock


class Reporter:
    """Writes report lines to the private pipe, at most ``max_bytes`` of values in all."""

    def __init__(self, write: Callable[[bytes], object], max_bytes: int) -> None:
        self.write = write
        self.left = max_bytes

    def send(self, report: Report) -> None:
        """Send one report; past the limit only its bare outcome."""
        line = _line(report)
        if len(line) > self.left:
            line = _as_json(self.bare(report)).encode()
        self.left = max(0, self.left - len(line))
        self.write(line + b"\n")

    @staticmethod
    def bare(report: Report) -> Report:
        """The report without anything that can be long."""
        kept = {key: report[key] for key in ("status", "exception", "clock") if key in report}
        return kept | ({"value": {"o": "output over the limit"}} if "value" in report else {})


def _line(report: Report) -> bytes:
    """The report as JSON; the two that are most frequent are quickly written."""
    if report is _PASSED:
        return _PASSED_LINE
    value = report.get("value")
    if type(value) is int:
        return b'{"status":"value","value":%d}' % value
    return _as_json(report).encode()


def catch_time_signals() -> None:
    """Have the two clocks' signals interrupt what runs, so that it can still be named in the report."""
    signal.signal(signal.SIGALRM, _on_wall_clock)
    signal.signal(signal.SIGPROF, _on_processor_clock)


def _on_wall_clock(_signal: int, _frame: object) -> None:
    raise Overtime("wall")


def _on_processor_clock(_signal: int, _frame: object) -> None:
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # whoever swallows this one is ended by the next
    _spent.append(True)
    raise Overtime("processor")


_spent: list[bool] = []


def start_processor_clock(cpu_s: float) -> None:
    """Interrupt after ``cpu_s`` of processor time from now, and end the process after twice that."""
    if _spent:
        _spent.clear()
        signal.signal(signal.SIGPROF, _on_processor_clock)
    signal.setitimer(signal.ITIMER_PROF, cpu_s, cpu_s)


def rehearse() -> None:
    """Run harmless jobs before a fork, so that the child finds its own code warm: interpreted often enough to be
    specialised, its memory touched already."""
    files = {"m.py": "def f(x):\n    return x\n", "test_m.py": _REHEARSED_TESTS}
    for _ in range(_REHEARSALS):
        importer = MemoryImporter(files, frozenset(("test_m.py",)))
        importer.install()
        reporter = Reporter(len, 1 << 20)
        run_calls(importer, "m", [["f", [1]], ["f", [[1, "x"]]], ["g", []]], reporter)
        run_suite(importer, ["test_m.py"], reporter)
        importer.remove()


def run_job(
    job: dict[str, Any], reporter: Reporter, wall_s: float, cpu_s: float, compiled: Mapping[str, types.CodeType]
) -> None:
    """Carry out one job and report; called once, in a process of its own."""
    signal.setitimer(signal.ITIMER_REAL, wall_s * _SOFT_SHARE)
    if job["kind"] == "batch":
        run_batch(job["parts"], reporter, cpu_s)
        return
    start_processor_clock(cpu_s)
    importer = MemoryImporter(job["files"], frozenset(job.get("paths", ())), compiled)
    importer.install()
    try:
        dispatch(job, importer, reporter)
    except Overtime as error:  # it came between two calls
        reporter.send(failure(error))


def dispatch(job: dict[str, Any], importer: MemoryImporter, reporter: Reporter) -> None:
    """Run the kind of job that this is."""
    if job["kind"] == "calls":
        run_all_calls(importer, job, reporter)
    else:
        run_suite(importer, job["paths"], reporter)


def run_batch(parts: list[dict[str, Any]], reporter: Reporter, cpu_s: float) -> None:
    """One line a part, with its reports. A part whose processor time is over costs no other part."""
    for part in parts:
        lines: list[bytes] = []
        importer = MemoryImporter(part["files"], frozenset(part.get("paths", ())))
        importer.install()
        own = Reporter(lines.append, reporter.left)
        start_processor_clock(cpu_s)
        try:
            dispatch(part, importer, own)
        except Overtime as error:  # it came between two calls
            own.send(failure(error))
        importer.remove()
        reporter.write(b"[" + b",".join(line[:-1] for line in lines) + b"]\n")


def run_all_calls(importer: MemoryImporter, job: dict[str, Any], reporter: Reporter) -> None:
    """The job's calls and, unless time is over, those that a fresh program is to make."""
    if run_calls(importer, job["module"], job["calls"], reporter) and job["then"]:
        importer.renew()
        run_calls(importer, job["module"], job["then"], reporter)


def run_calls(importer: MemoryImporter, module_name: str, calls: list[Any], reporter: Reporter) -> bool:
    """One report per call; whether all came in time. When the import fails, that is the report of every call."""
    try:
        module = importer.load(module_name)
    except BaseException as error:
        for _ in calls:
            reporter.send(failure(error))
        return not isinstance(error, Overtime)
    for function, arguments in calls:
        report = run_call(module, function, arguments, reporter.left)
        reporter.send(report)
        if report["status"] == "timeout":
            return False
    return True


def run_call(module: types.ModuleType, function: str, arguments: list[Any], max_size: int) -> Report:
    """The encoded value of a call, or its exception."""
    try:
        value = getattr(module, function)(*map(decode, arguments))
        return {"status": "value", "value": encode(value, max_size=max_size)}
    except BaseException as error:
        return failure(error)


def run_suite(importer: MemoryImporter, paths: list[str], reporter: Reporter) -> None:
    """Report the list of test names, then one report per test in that order."""
    tests: list[tuple[str, str, Callable[[], Report]]] = []
    for path in paths:
        tests += load_tests(importer, path)
    reporter.send({"plan": [name for name, _, _ in tests]})
    for _, _, run in tests:
        report = run()
        reporter.send(report)
        if report["status"] == "timeout":
            return


def load_tests(importer: MemoryImporter, path: str) -> list[tuple[str, str, Callable[[], Report]]]:
    """The tests of a file as (name, path, runner); a file that cannot be imported is one test that fails."""
    asserts.STATE.reset()
    try:
        module = importer.load(path.removesuffix(".py").replace("/", "."))
    except BaseException as error:
        report = failed_test(error, importer.files, path)
        return [(path, path, lambda: report)]

    def runner(test: Callable[[], object]) -> Callable[[], Report]:
        return lambda: run_test(test, importer.files, path)

    return [(f"{path}::{name}", path, runner(test)) for name, test in asserts.find_tests(module)]


def run_test(test: Callable[[], object], files: dict[str, str], path: str) -> Report:
    """Run one test function."""
    asserts.STATE.reset()
    try:
        asserts.check_ran(test())
    except BaseException as error:
        return failed_test(error, files, path)
    return _PASSED


def failed_test(error: BaseException, files: dict[str, str], path: str) -> Report:
    """The report of a test that raised ``error``, with what its running assert compared."""
    report = failure(error) | locate(error, files, path)
    comparison = asserts.STATE.comparison()
    if isinstance(error, AssertionError) and "got" in comparison:
        report["status"] = "failed"
    return report | {name: shorten(text) for name, text in comparison.items()}


def failure(error: BaseException) -> Report:
    """The report of an exception: class name and message."""
    if isinstance(error, Overtime):
        told = {"exception": "TimeoutError", "message": "took too long"}
        return {"status": "timeout", "clock": error.clock} | told
    try:
        message = str(error.msg if isinstance(error, SyntaxError) else error)
    except BaseException:
        message = "(its message cannot be read)"
    return {"status": "raised", "exception": type(error).__name__, "message": shorten(message)}


def locate(error: BaseException, files: dict[str, str], path: str) -> Report:
    """The last line of ``path`` that ran, and the innermost place in ``files`` that raised."""
    report: Report = {}
    trace = error.__traceback__
    while trace is not None:
        name, number = trace.tb_frame.f_code.co_filename, trace.tb_lineno
        if name in files:
            report["where"] = f"{name}:{number}"
        if name == path:
            report["line"] = shorten(files[path].split("\n")[number - 1].strip())
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and isinstance(error.filename, str) and error.filename in files:
        report["where"] = f"{error.filename}:{error.lineno}"
    return report


def shorten(text: str) -> str:
    """At most 500 characters, without memory addresses, which differ between runs."""
    text = _ADDRESS.sub("0x...", str(text))
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 3] + "..."
