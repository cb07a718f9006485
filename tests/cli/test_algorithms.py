"""What `agentrl algorithms` prints."""

import json

import pytest

from agentrl.catalogue import CATALOGUE
from agentrl.cli import main


def printed(capsys, monkeypatch, *words):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as left:
        main(["algorithms", *words])
    return left.value.code, capsys.readouterr()


def test_all_are_listed_with_a_line_each(capsys, monkeypatch):
    status, said = printed(capsys, monkeypatch)
    assert status == 0
    names = [line.split()[0] for line in said.out.splitlines() if line and not line.startswith(" ")]
    assert names == ["name", *CATALOGUE]


@pytest.mark.parametrize("name", CATALOGUE)
def test_one_is_described_whole(capsys, monkeypatch, name):
    status, said = printed(capsys, monkeypatch, name)
    assert status == 0
    text = " ".join(said.out.split())
    known = CATALOGUE[name]
    for part in (known.title, known.source, *known.parameters):
        assert " ".join(part.split()) in text
    assert known.credit.split("(")[0].strip() in text


def test_json_is_the_catalogue(capsys, monkeypatch):
    _, said = printed(capsys, monkeypatch, "--json")
    assert [one["name"] for one in json.loads(said.out)] == list(CATALOGUE)
    _, said = printed(capsys, monkeypatch, "dapo", "--json")
    assert json.loads(said.out)["parameters"] == {"clip_low": 0.2, "clip_high": 0.28}


def test_a_typo_is_answered_with_the_nearest_name(capsys, monkeypatch):
    status, said = printed(capsys, monkeypatch, "grppo")
    assert status == 2
    assert "did you mean 'grpo'" in said.err


def test_a_name_like_none_gets_all_of_them_and_no_guess(capsys, monkeypatch):
    status, said = printed(capsys, monkeypatch, "xx")
    assert status == 2
    assert said.err == f"error: no algorithm 'xx'; they are {', '.join(CATALOGUE)}\n"
