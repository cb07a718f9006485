"""Words of the command line become overrides, in any order and in both spellings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.cli.overrides import split_overrides
from agentrl.errors import ConfigError


@pytest.mark.parametrize(
    "words",
    [
        ["bugfix-tiny", "--rl.steps", "10", "--seed=-1"],
        ["--rl.steps=10", "bugfix-tiny", "--seed", "-1"],
        ["--rl.steps", "10", "--seed=-1", "bugfix-tiny"],
    ],
)
def test_both_spellings_in_any_order(words: list[str]) -> None:
    assert split_overrides(words) == (["bugfix-tiny"], {"rl.steps": "10", "seed": "-1"})


@given(value=st.text())
def test_after_an_equals_sign_every_text_is_a_value(value: str) -> None:
    # a path with "=" and "," arrives unchanged (case C05)
    assert split_overrides([f"--a.b={value}"]) == ([], {"a.b": value})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rl.steps"], "--rl.steps has no value; write --rl.steps VALUE or --rl.steps=VALUE"),
        (["--rl.steps", "--seed", "1"], "--rl.steps has no value"),
        (["--=3"], "'--=3' has no name; write --KEY VALUE or --KEY=VALUE"),
        (["--seed", "1", "--seed=2"], "'--seed=2': seed is given twice; leave one of them out"),
    ],
)
def test_what_is_no_override_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        split_overrides(words)
    assert message in str(caught.value)
