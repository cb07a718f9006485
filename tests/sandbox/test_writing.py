"""One battery for every backend: writing into a box that a program has filled, or laid traps in."""

import asyncio

import pytest

from agentrl.errors import SandboxError
from agentrl.sandbox.base import BoxFull
from tests.sandbox.boxes import EVERY_BACKEND, a_box, python

pytestmark = EVERY_BACKEND

MIB = 1 << 20
FILL_BYTES = """
    with open("filler", "wb", 0) as file:
        try:
            while True: file.write(bytes(4096))
        except OSError:
            pass
"""
FILL_FILES = """
    try:
        for number in range(100): open(f"filler{number}", "x").close()
    except OSError:
        pass
"""


def test_more_than_it_holds_is_refused_and_leaves_the_old_file(backend):
    async def go():
        async with a_box(backend, {"a": b"old"}, disk_mib=1) as box:
            with pytest.raises(BoxFull, match=r"cannot write .?a.?: the workspace is full"):
                await box.write({"a": bytes(2 * MIB)})
            assert await box.read(["a"]) == {"a": b"old"}
            assert (await box.exec(["ls", "-A"])).stdout == b"a\n"
            await box.write({"a": bytes(MIB // 2)})
            assert await box.read(["a"]) == {"a": bytes(MIB // 2)}

    asyncio.run(go())


@pytest.mark.parametrize("fill", [FILL_BYTES, FILL_FILES], ids=["bytes", "files"])
def test_a_box_that_a_program_filled_says_so_and_works_on(backend, fill):
    async def go():
        async with a_box(backend, {"a": b"1"}, disk_mib=1, files=40) as box:
            await box.exec(python(fill))
            with pytest.raises(BoxFull, match="the workspace is full"):
                await box.write({"new": bytes(8192)})
            assert await box.read(["a", "new"]) == {"a": b"1"}
            assert (await box.exec(["sh", "-c", "rm filler*; echo ok"])).stdout == b"ok\n"
            await box.write({"new": bytes(8192)})
            await box.exec(python(fill))
            await box.reset()
            assert (await box.exec(["ls", "-A"])).stdout.split()[-1:] == [b"a"]
            await box.write({"new": b"2"})
            assert await box.read(["a", "new"]) == {"a": b"1", "new": b"2"}

    asyncio.run(go())


def test_files_that_do_not_fit_are_no_start(backend):
    async def go():
        with pytest.raises(BoxFull):
            async with a_box(backend, {"a": bytes(2 * MIB)}, disk_mib=1):
                pass

    asyncio.run(go())


def test_what_stands_in_the_way_is_removed_and_never_followed(backend, tmp_path):
    (tmp_path / "secret").write_text("s")
    traps = (
        f"ln -s {tmp_path} out; ln -s {tmp_path}/secret f; mkfifo p; mkdir -p d/e; echo x > d/e/x; ln -s loop loop;"
        " mkdir shut; chmod 0 shut; echo x > plain"
    )
    paths = ("out/secret", "f", "p", "d", "loop", "shut/x", "plain/x")

    async def go():
        async with a_box(backend) as box:
            assert (await box.exec(["sh", "-c", traps])).ok
            assert await box.read([*paths, "missing"]) == {}
            for path in paths:
                await box.write({path: b"mine"})
            assert await box.read(paths) == dict.fromkeys(paths, b"mine")
            for path in ("../etc/passwd", "/etc/passwd", "half a character \ud800", ""):
                with pytest.raises(SandboxError, match="relative path"):
                    await box.write({path: b""})
                with pytest.raises(SandboxError, match="relative path"):
                    await box.read([path])

    asyncio.run(go())
    assert (tmp_path / "secret").read_text() == "s"
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]
