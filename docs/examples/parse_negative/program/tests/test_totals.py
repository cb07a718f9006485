from amounts.totals import total


def test_two_lines():
    assert total(["3", "", "1,250"]) == 1253
