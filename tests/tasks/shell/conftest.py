"""Worlds that tests share."""

import pytest

from agentrl.tasks.shell import inside
from tests.tasks.shell.worlds import World


@pytest.fixture(scope="package")
def worlds():
    made = {}
    yield made
    for world in made.values():
        world.close()


@pytest.fixture
def world(request, worlds):
    if request.param not in worlds:
        worlds[request.param] = World(request.param)
    return worlds[request.param]


@pytest.fixture
def changed_inside(monkeypatch, tmp_path):
    """Send another supervisor into boxes: ours with one part replaced."""

    def change(part, other):
        with open(inside.__file__) as file:
            source = file.read()
        assert source.count(part) == 1
        (tmp_path / "inside.py").write_text(source.replace(part, other))
        monkeypatch.setattr(inside, "__file__", str(tmp_path / "inside.py"))

    return change
