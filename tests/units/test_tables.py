import pytest
from tables import each


def test_every_row_is_asked_and_each_that_fails_is_named():
    asked = []

    @each("x, y", [(1, 2), (2, 2), pytest.param(3, 0, id="three"), (4, 4)])
    def ask(x, y):
        asked.append(x)
        if x == 4:
            pytest.skip("not this one")
        assert x < y

    with pytest.raises(pytest.fail.Exception) as failed:
        ask()
    assert asked == [1, 2, 3, 4]
    first, *said = str(failed.value).splitlines()
    assert first == "2 of 4 rows fail:"
    assert [line[:5] for line in said if "AssertionError" in line] == ["2 2: ", "three"]
