"""C sources are compiled once, and are done without where they cannot be."""

import ctypes
import shutil

import pytest

from agentrl.policy import compiled
from agentrl.policy.compiled import library

needs_compiler = pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler here")


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
