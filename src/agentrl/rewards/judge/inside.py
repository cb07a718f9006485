"""Runs one test after the other in the candidate's own process, inside a box, for suites that cannot run elsewhere.

Standard library only, compiled together with `fixtures` and `suites`. It is told an id on descriptor 3 and answers
whether that test passed. The candidate can change all of it, so that its word alone decides nothing: see `canaries`.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import types
from typing import Any

from agentrl.rewards.judge.suites import CONFTEST, Tests

CHANNEL = 3


def exactly(count: int) -> bytes:
    """So many bytes from the judge; ends the process when it is gone."""
    data = b""
    while len(data) < count:
        part = os.read(CHANNEL, count - len(data))
        if not part:
            os._exit(0)
        data += part
    return data


def send(message: object) -> None:
    """One message to the judge."""
    body = json.dumps(message).encode()
    data = len(body).to_bytes(4, "big") + body
    while data:
        data = data[os.write(CHANNEL, data) :]


def module_of(path: str) -> types.ModuleType:
    """The module of a test file."""
    return importlib.import_module(path.removesuffix(".py").replace("/", "."))


def run_coroutine(coroutine: Any) -> None:
    """Run a coroutine to its end. To import what does that takes as long as the start of all else here."""
    importlib.import_module("asyncio").run(coroutine)


def conftests() -> list[str]:
    """The files of the workspace that have fixtures for those beside and below them."""
    found = [os.path.relpath(os.path.join(folder, CONFTEST)) for folder, _, names in os.walk(".") if CONFTEST in names]
    return [path.replace(os.sep, "/") for path in found]


def main() -> None:
    """Answer until the judge hangs up."""
    sys.path[:0] = [os.getcwd()]
    sys.path.append(os.path.join(os.getcwd(), ".agentrl", "lib"))
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    send("ready")
    tests = Tests(importlib.import_module("pytest"), module_of, conftests(), run_coroutine)
    while True:
        name = json.loads(exactly(int.from_bytes(exactly(4), "big")))
        try:
            tests.run(name)
            answer = True
        except BaseException:  # an exit or an interrupt of the candidate's is a failed test
            answer = False
        send(answer)


if __name__ == "__main__":
    main()
