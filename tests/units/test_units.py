"""Numbers as text."""

import pytest

from memcore.units import (
    bytes_text,
    count_text,
    gib_text,
    rate_text,
    relative_text,
    rent_text,
    seconds_text,
    value_text,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (bytes_text(0), "0 B"),
        (bytes_text(1023), "1023 B"),
        (bytes_text(88_604_672), "84.5 MiB"),
        (bytes_text(2**30 - 1), "1.00 GiB"),
        (bytes_text(-(2**30)), "-1.00 GiB"),
        (bytes_text(123 * 2**40), "123 TiB"),
        (gib_text(2**30 * 1234.5), "1,234.50 GiB"),
        (seconds_text(0.0000012), "1.20 µs"),
        (seconds_text(0.9999), "1.00 s"),
        (seconds_text(90), "1.50 min"),
        (seconds_text(200_000), "2.31 d"),
        (rate_text(3.35e12, "B/s"), "3.35 TB/s"),
        (rate_text(989.4e12, "FLOP/s"), "989 TFLOP/s"),
        (rent_text(2), "$2.00 an hour, $1,460 a month"),
        (count_text(999_885_952), "1.00B"),
        (count_text(8_030_261_248), "8.03B"),
        (count_text(124_439_808), "124M"),
        (count_text(12), "12"),
        (count_text(1_000_000_000), "1B"),
        (count_text(15_000_000_000_000), "15T"),
    ],
)
def test_a_number_reads_well(text, value):
    assert text == value


def test_more_than_twice_as_much_is_a_factor():
    assert [relative_text(x) for x in (-0.2, 0.0, 0.152, 0.999)] == [
        *("-20.0%", "+0.0%", "+15.2%", "+99.9%"),
    ]
    assert [relative_text(x) for x in (1e-5, -4.9e-4, -5.1e-4)] == ["under 0.1%"] * 2 + ["-0.1%"]
    assert [relative_text(x) for x in (1.0, 15.951, 1234.0)] == [
        *("2.00 times", "17.0 times", "1,235 times"),
    ]
    assert value_text(15.951, "change") == "17.0 times"
    assert value_text(3.77, "difference") == "4.77 times"
