"""What the forked child does with a job: untrusted programs run here. Standard library only.

The child reports through ``Reporter``, one JSON line per call or test, as soon as each is known.
"""

from __future__ import annotations

import importlib
import json
import re
import signal
import sys
import types
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from typing import Any

from agentrl.sandbox import asserts
from agentrl.sandbox.values import decode, encode

Report = dict[str, Any]
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,}")
_MAX_TEXT = 500
_SOFT_SHARE = 0.9


class Overtime(BaseException):
    """The soft time limit of the job has passed."""


class Reporter:
    """Writes report lines to the private pipe, at most ``max_bytes`` of values in all."""

    def __init__(self, write: Callable[[bytes], object], max_bytes: int) -> None:
        self.write = write
        self.left = max_bytes

    def send(self, report: Report) -> None:
        """Send one report; past the limit only its bare outcome."""
        line = json.dumps(report, separators=(",", ":")).encode()
        if len(line) > self.left:
            line = json.dumps(self.bare(report), separators=(",", ":")).encode()
        self.left = max(0, self.left - len(line))
        self.write(line + b"\n")

    @staticmethod
    def bare(report: Report) -> Report:
        """The report without anything that can be long."""
        kept = {key: report[key] for key in ("status", "exception") if key in report}
        return kept | ({"value": {"o": "output over the limit"}} if "value" in report else {})


class MemoryImporter:
    """Imports a job's files from memory, ahead of everything else, as if its root were ``sys.path[0]``."""

    def __init__(self, files: dict[str, str], rewritten: frozenset[str] = frozenset()) -> None:
        self.files = files
        self.rewritten = rewritten

    def install(self) -> None:
        """Put the files first on the import path; a standard module of the same name gives way to them."""
        sys.meta_path.insert(0, self)
        for path in self.files:
            name = path.split("/")[0].removesuffix(".py")
            if name not in sys.builtin_module_names:
                sys.modules.pop(name, None)

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        """The spec of a module of the job, or None."""
        base = fullname.replace(".", "/")
        if base + "/__init__.py" in self.files:
            return spec_from_loader(fullname, self, origin=base + "/__init__.py", is_package=True)  # type: ignore[arg-type]
        if base + ".py" in self.files:
            return spec_from_loader(fullname, self, origin=base + ".py", is_package=False)  # type: ignore[arg-type]
        if any(name.startswith(base + "/") for name in self.files):
            return spec_from_loader(fullname, self, origin="", is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave the making of the module to the import system."""

    def exec_module(self, module: types.ModuleType) -> None:
        """Run the module's text; a test file's asserts are made to tell what they compared."""
        path = module.__spec__.origin if module.__spec__ is not None else None
        if not path:
            return
        module.__file__ = path
        if path in self.rewritten:
            code = asserts.compile_tests(self.files[path], path, module.__dict__)
        else:
            code = compile(self.files[path], path, "exec", dont_inherit=True)
        exec(code, module.__dict__)


def run_job(payload: bytes, reporter: Reporter, wall_s: float) -> None:
    """Carry out one encoded job and report; called once, in a process of its own."""
    job = json.loads(payload)
    MemoryImporter(job["files"], frozenset(job.get("paths", ()))).install()
    start_soft_limit(wall_s * _SOFT_SHARE)
    try:
        dispatch(job, reporter)
    except Overtime as error:  # it came between two calls
        reporter.send(failure(error))


def dispatch(job: dict[str, Any], reporter: Reporter) -> None:
    """Run the kind of job that this is."""
    if job["kind"] == "calls":
        run_calls(job["module"], job["calls"], reporter)
    elif job["kind"] == "suite":
        run_suite(job["paths"], job["files"], reporter)
    else:
        reporter.send(run_script(job["module"], job["source"], job["files"]))


def start_soft_limit(seconds: float) -> None:
    """Interrupt the running call after ``seconds``, so that it can still be named in the report."""

    def interrupt(_signal: int, _frame: object) -> None:
        raise Overtime

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def run_calls(module_name: str, calls: list[Any], reporter: Reporter) -> None:
    """One report per call. When the import fails, that is the report of every call."""
    try:
        module = importlib.import_module(module_name)
    except BaseException as error:
        for _ in calls:
            reporter.send(failure(error))
        return
    for function, arguments in calls:
        report = run_call(module, function, arguments, reporter.left)
        reporter.send(report)
        if report["status"] == "timeout":
            return


def run_call(module: types.ModuleType, function: str, arguments: list[Any], max_size: int) -> Report:
    """The encoded value of a call, or its exception."""
    try:
        value = getattr(module, function)(*map(decode, arguments))
        return {"status": "value", "value": encode(value, max_size=max_size)}
    except BaseException as error:
        return failure(error)


def run_script(module_name: str, source: str, files: dict[str, str]) -> Report:
    """The script passes only by reaching its last line."""
    try:
        module = importlib.import_module(module_name)
        namespace = {name: value for name, value in vars(module).items() if not name.startswith("__")}
        exec(compile(source, "<script>", "exec", dont_inherit=True), namespace | {"__name__": "<script>"})
    except BaseException as error:
        return failure(error) | locate(error, files | {"<script>": source}, "<script>")
    return {"status": "value", "value": None}


def run_suite(paths: list[str], files: dict[str, str], reporter: Reporter) -> None:
    """Report the list of test names, then one report per test in that order."""
    tests: list[tuple[str, str, Callable[[], Report]]] = []
    for path in paths:
        tests += load_tests(path, files)
    reporter.send({"plan": [name for name, _, _ in tests]})
    for _, _, run in tests:
        report = run()
        reporter.send(report)
        if report["status"] == "timeout":
            return


def load_tests(path: str, files: dict[str, str]) -> list[tuple[str, str, Callable[[], Report]]]:
    """The tests of a file as (name, path, runner); a file that cannot be imported is one test that fails."""
    asserts.STATE.reset()
    try:
        module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    except BaseException as error:
        report = failed_test(error, files, path)
        return [(path, path, lambda: report)]

    def runner(test: Callable[[], object]) -> Callable[[], Report]:
        return lambda: run_test(test, files, path)

    return [(f"{path}::{name}", path, runner(test)) for name, test in asserts.find_tests(module)]


def run_test(test: Callable[[], object], files: dict[str, str], path: str) -> Report:
    """Run one test function."""
    asserts.STATE.reset()
    try:
        asserts.check_ran(test())
    except BaseException as error:
        return failed_test(error, files, path)
    return {"status": "passed"}


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
        return {"status": "timeout", "exception": "TimeoutError", "message": "took too long"}
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
