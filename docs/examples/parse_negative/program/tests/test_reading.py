from amounts.reading import parse


def test_a_plain_number():
    assert parse("3") == 3


def test_blanks_and_commas():
    assert parse(" 1,250 ") == 1250


def test_a_negative_number():
    assert parse("-3") == -3
