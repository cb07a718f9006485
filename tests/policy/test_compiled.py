"""C sources are compiled once, and are done without where they cannot be."""

import ctypes
import shutil

import pytest

from agentrl.policy import compiled, native
from agentrl.policy.compiled import library, problems, refuse, telling

needs_compiler = pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler here")


TRIPLE = "double triple(double x) { return 3 * x; }"


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    """What other tests of this process found is not told here, nor the other way round."""
    monkeypatch.setattr(compiled, "_known", {})


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "agentrl"


def write(folder, text, name="made.c"):
    source = folder / name
    source.write_text(text)
    return source


def triple(found, number):
    found.triple.restype, found.triple.argtypes = ctypes.c_double, (ctypes.c_double,)
    return found.triple(number)


@needs_compiler
def test_a_source_is_compiled_once_for_each_of_its_forms(cache, tmp_path, monkeypatch):
    source = write(tmp_path, "double triple(double x) { return FACTOR * x; }")
    assert triple(library(source, ["-DFACTOR=3"]), 2.0) == 6.0
    assert triple(library(source, ["-DFACTOR=5"]), 2.0) == 10.0
    assert len(list(cache.glob("made-*.so"))) == 2
    monkeypatch.setattr(compiled, "_compiled", lambda *_: pytest.fail("compiled again"))
    assert triple(library(source, ["-DFACTOR=3"]), 1.0) == 3.0


@needs_compiler
def test_a_changed_source_is_another_library(cache, tmp_path):
    for factor in (3, 4):
        source = write(tmp_path, f"double triple(double x) {{ return {factor} * x; }}")
        assert triple(library(source), 1.0) == factor
    assert len(list(cache.iterdir())) == 2  # and nothing half done beside them


@needs_compiler
def test_a_source_with_a_fault_is_done_without(cache, tmp_path):
    assert library(write(tmp_path, "double triple(double x) { return")) is None
    assert not list(cache.glob("*.so"))


def test_without_a_compiler_there_is_none(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert library(write(tmp_path, "double triple(double x) { return 3 * x; }")) is None


@needs_compiler
def test_where_the_cache_cannot_be_written_the_folder_of_temporary_files_is_taken(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(write(tmp_path, "", "no folder")))
    monkeypatch.setattr(compiled.tempfile, "gettempdir", lambda: str(tmp_path))
    source = write(tmp_path, "double triple(double x) { return 3 * x; }")
    assert triple(library(source), 1.0) == 3.0
    assert list(tmp_path.glob("agentrl-*/made-*.so"))


@needs_compiler
def test_a_folder_that_others_can_write_to_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(compiled.tempfile, "gettempdir", lambda: str(tmp_path))
    folder = tmp_path / "home" / "agentrl"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    source = write(tmp_path, "double triple(double x) { return 3 * x; }")
    assert triple(library(source), 1.0) == 3.0
    assert list(folder.iterdir()) == []
    assert list(tmp_path.glob("agentrl-*/made-*.so"))


@needs_compiler
def test_a_folder_of_somebody_else_is_left_alone(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(compiled.os, "getuid", lambda: 12345)
    monkeypatch.setattr(compiled.tempfile, "gettempdir", lambda: str(tmp_path))
    assert library(write(tmp_path, "double triple(double x) { return 3 * x; }")) is None


# What is told.


def told(*sources):
    lines = []
    with telling(lines.append):
        for source in sources:
            library(source)
    return lines


@needs_compiler
def test_where_all_is_well_nothing_is_told(cache, tmp_path):
    source = write(tmp_path, TRIPLE)
    assert told(source, source) == []
    assert problems() == ()


def test_that_there_is_no_compiler_is_told_once_with_what_to_do(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    (line,) = told(write(tmp_path, TRIPLE), write(tmp_path, TRIPLE, "other.c"))
    assert line.startswith("no C compiler was found (cc, gcc, clang): torch computes instead, which is slower.")
    assert "Install one" in line
    assert problems() == (line,)
    assert native.kernels.__wrapped__(8) is None  # as the sampler asks
    assert told() == [line]  # the next run of this process hears it too


@needs_compiler
def test_what_a_compiler_says_is_kept_and_told_where(cache, tmp_path):
    source = write(tmp_path, "double triple(double x) { return 3 * unknown; }")
    (line,) = told(source, source)
    (kept,) = (path for path in cache.glob("made-*.txt") if line.endswith(str(path)))
    assert line.startswith(f"made.c could not be compiled by {compiled.compiler()}: torch computes instead")
    command, status, _, *said = kept.read_text().splitlines()
    assert str(source) in command
    assert status == "status 1"
    assert "unknown" in "".join(said)


@needs_compiler
def test_what_it_said_is_removed_when_it_compiles(cache, tmp_path, monkeypatch):
    source, working = write(tmp_path, TRIPLE), compiled.subprocess.run
    monkeypatch.setattr(compiled.subprocess, "run", lambda command, **options: working(["false"], **options))
    assert library(source) is None
    assert len(list(cache.glob("*.txt"))) == 2  # with the processor's own instructions, and without
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert triple(library(source), 2.0) == 6.0
    assert len(list(cache.glob("*.txt"))) == 1


@needs_compiler
def test_where_nothing_can_be_kept_it_is_told(tmp_path, monkeypatch):
    source, no_folder = write(tmp_path, TRIPLE), write(tmp_path, "", "no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(no_folder))
    monkeypatch.setattr(compiled.tempfile, "gettempdir", lambda: str(no_folder))
    (line,) = told(source)
    assert "no folder for it can be written to" in line


@needs_compiler
def test_what_is_no_library_is_told(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(compiled.tempfile, "gettempdir", lambda: str(tmp_path))
    source = write(tmp_path, TRIPLE)
    library(source)
    assert len(list(cache.glob("*.so"))) == 1
    assert triple(library(source), 1.0) == 3.0
    monkeypatch.setattr(compiled.ctypes, "CDLL", lambda path: (_ for _ in ()).throw(OSError(f"{path}: not mapped")))
    (line,) = told(source)
    assert line.endswith("not mapped")


def test_what_is_refused_is_told_once(tmp_path):
    lines = []
    with telling(lines.append):
        for _ in range(2):
            refuse(tmp_path / "made.c", "torch")
    refuse(tmp_path / "other.c", "torch")  # nobody listens
    assert lines == [f"what {compiled.compiler()} made of made.c gives other numbers than torch: {compiled._INSTEAD}"]
    assert len(problems()) == 2
