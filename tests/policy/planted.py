"""C sources with one fault each, that a plausible mistake would make, in the place of the right ones."""

from pathlib import Path
from typing import NamedTuple

import pytest

from agentrl.policy import compiled


class Fault(NamedTuple):
    """A fault: in which file what stands where something else should."""

    name: str
    file: str
    right: str
    wrong: str


def planted(folder: Path, fault: Fault | None, name: str, patch: pytest.MonkeyPatch) -> Path:
    """The C source of a name among copies of all, one of them with the fault; compiled quickly, and known to nobody.

    Args:
        folder: for the copies and for what is compiled.
        fault: none for a control.
        name: of the source, such as ``ops.c``.
        patch: undoes it.
    """
    for path in Path(compiled.__file__).parent.glob("*.[ch]"):
        text = path.read_text()
        if fault is not None and fault.file == path.name:
            assert text.count(fault.right) == 1, (
                f"{fault.right!r} stands {text.count(fault.right)} times in {path.name}"
            )
            text = text.replace(fault.right, fault.wrong)
        (folder / path.name).write_text(text)
    patch.setenv("XDG_CACHE_HOME", str(folder))
    patch.setattr(compiled, "_known", {})
    patch.setattr(compiled, "FLAGS", ("-O0", "-fPIC", "-shared"))
    patch.setattr(compiled, "OWN_PROCESSOR", ())
    return folder / name


EPSILON = Fault(
    "a norm without epsilon", "layers.h", "sqrt(sum / (REAL)width + (REAL)epsilon)", "sqrt(sum / (REAL)width)"
)
MEAN = Fault("a norm by the sum of squares", "layers.h", "sqrt(sum / (REAL)width +", "sqrt(sum +")
SINE = Fault("a sine's sign", "layers.h", "low * cosine[e] - high * sine[e]", "low * cosine[e] + high * sine[e]")
PAIRS = Fault(
    "a half that was turned already",
    "layers.h",
    "REAL low = x[e], high = x[e + half];\n        out[e] = low * cosine[e] - high * sine[e];\n        "
    "out[e + half] = high * cosine[e + half] + low * sine[e + half];",
    "REAL high = x[e + half];\n        out[e] = x[e] * cosine[e] - high * sine[e];\n        "
    "out[e + half] = high * cosine[e + half] + out[e] * sine[e + half];",
)
SILU = Fault("a gate without silu", "layers.h", "return a / (1 + exponential(-a)) * b;", "return a * b;")
SIGMOID = Fault(
    "a gate by the sigmoid", "layers.h", "return a / (1 + exponential(-a)) * b;", "return b / (1 + exponential(-a));"
)
SHARED = (EPSILON, MEAN, SINE, PAIRS, SILU, SIGMOID)
"""Faults in what sampling and training share."""
