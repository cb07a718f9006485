import pytest
from amounts.reading import parse
from amounts.totals import total


@pytest.mark.parametrize(("text", "number"), [("-3", -3), ("-1,250", -1250), (" -70 ", -70), ("0", 0), ("8", 8)])
def test_parse(text, number):
    assert parse(text) == number


@pytest.mark.parametrize("text", ["", "--", "three", "1-2"])
def test_no_number(text):
    with pytest.raises(ValueError):  # noqa: PT011 (its text is free)
        parse(text)


def test_total():
    assert total(["-3", "5", " "]) == 2
    assert total([]) == 0
