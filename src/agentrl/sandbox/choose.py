"""Which backend to use: the strongest that works here, and none below what is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from agentrl.errors import SandboxError
from agentrl.sandbox.base import Backend, Level, Support
from agentrl.sandbox.bubblewrap import BubblewrapBackend
from agentrl.sandbox.landlocked import LandlockBackend
from agentrl.sandbox.unsafe import SubprocessBackend
from agentrl.sandbox.zygote import ZygoteBackend

Factory = Callable[[], Backend]

WALLED: Mapping[str, Factory] = {
    "zygote": ZygoteBackend,
    "bubblewrap": BubblewrapBackend,
    "landlock": LandlockBackend,
}
"""Name of each backend that has walls -> how to make it. Strongest first, and of equal strength the fastest first."""

UNSAFE: Mapping[str, Factory] = {"subprocess": lambda: SubprocessBackend(allow_unsafe=True)}
"""The one that has none."""


class Choice(NamedTuple):
    """A backend, and what was found out about it."""

    backend: Backend
    support: Support


def survey(factories: Mapping[str, Factory] | None = None) -> list[Support]:
    """What each backend can do on this machine, strongest first, found out by running a program in it.

    Args:
        factories: the backends to look at; all of them when None.
    """
    chosen = {**WALLED, **UNSAFE} if factories is None else factories
    return [make().probe() for make in chosen.values()]


def choose(*, require: Level = Level.NAMESPACES, name: str = "", allow_unsafe: bool = False) -> Choice:
    """The strongest backend that works here.

    Args:
        require: refuse walls that are weaker than this.
        name: take this backend, or none.
        allow_unsafe: take what there is, be it without any walls. Only for code that you trust.

    Raises:
        SandboxError: an unknown name; nothing that works is strong enough, with what is missing and what to do.
    """
    available = {**WALLED, **UNSAFE} if allow_unsafe else dict(WALLED)
    if name and name not in available:
        raise SandboxError(_no_such(name))
    wanted = {name: available[name]} if name else available
    known = ((make, _found_out(each)) for each, make in wanted.items())
    return _first(known, Level.NONE if allow_unsafe else require)


_known: dict[str, Support] = {}


def _found_out(name: str) -> Support:
    """What this machine gives a backend. What has worked once is not tried again in the life of this process."""
    found = _known.get(name) or {**WALLED, **UNSAFE}[name]().probe()
    if found.works:
        _known[name] = found
    return found


def pick(factories: Mapping[str, Factory], *, require: Level) -> Choice:
    """The first of these that works and is strong enough.

    Raises:
        SandboxError: none is, with the reason of each.
    """
    return _first(((make, make().probe()) for make in factories.values()), require)


def _first(known: Iterable[tuple[Factory, Support]], require: Level) -> Choice:
    refused = []
    for make, support in known:
        if support.works and support.level >= require:
            return Choice(make(), support)
        refused.append(reason(support))
    raise SandboxError(_refusal(require, refused))


def reason(support: Support) -> str:
    """Why a backend will not do."""
    if not support.works:
        return f"{support.backend} does not work: {'; '.join(support.missing)}"
    return f"{support.backend} works, but its walls are only {support.level.name}"


def _no_such(name: str) -> str:
    if name in UNSAFE:
        return f"the backend {name!r} has no walls; for code that you trust say allow_unsafe=True"
    return f"there is no backend {name!r}; they are {', '.join([*WALLED, *UNSAFE])}"


def _refusal(require: Level, refused: list[str]) -> str:
    lines = "".join(f"\n  {line}" for line in refused)
    return (
        f"no sandbox here reaches the level {require.name} that is required, and nothing was run:{lines}\n"
        f"Mend one of these, or require less: Level.LANDLOCK, or allow_unsafe=True for code that you trust."
    )
