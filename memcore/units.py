"""Units: the only place that turns bytes, seconds and FLOPs into text, and back.

GB is 10^9 bytes and GiB is 2^30 bytes; the two words are never mixed. A Gbit is 10^9 bits.
"""

from __future__ import annotations

import math
import re

KiB, MiB, GiB, TiB = 2**10, 2**20, 2**30, 2**40
GB = 10**9
MINUTE, HOUR, DAY = 60, 3_600, 86_400  # seconds
MILLION = 10**6
Gbit = GB // 8

ROUNDS_UP = 0.9995  # with three digits, from here on a number is one of the next unit

_BINARY = ((TiB, "TiB"), (GiB, "GiB"), (MiB, "MiB"), (KiB, "KiB"))
_DECIMAL = ((10**15, "P"), (10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))
_COUNT = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K"))
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMBT]?)\s*", re.IGNORECASE)


def _significant(value: float) -> str:
    """A number with three significant digits and no exponent: 0.0123, 1.23, 12.3, 123, 1,234."""
    if value == 0:
        return "0"
    if abs(value) < 1:
        value = float(f"{value:.3g}")  # 0.9999 is 1.00, not 1.000
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def bytes_text(n: float) -> str:
    """Bytes as KiB, MiB, GiB or TiB: 88604672 -> '84.5 MiB'."""
    sign, n = ("-" if n < 0 else ""), abs(n)
    for size, name in _BINARY:
        if n >= size * ROUNDS_UP:
            return f"{sign}{_significant(n / size)} {name}"
    return f"{sign}{n:.0f} B"


def gib_text(n: float) -> str:
    """Bytes always as GiB, two decimals: for columns and axes that must not change their unit."""
    return f"{n / GiB:,.2f} GiB"


def seconds_text(s: float) -> str:
    """Seconds as us, ms, s, min, h or d."""
    for size, name in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min"), (1, "s"), (1e-3, "ms")):
        if s >= size * ROUNDS_UP:
            return f"{_significant(s / size)} {name}"
    return f"{_significant(s * 1e6)} µs"


def seconds_or_dash(seconds: float | None) -> str:
    """The same of seconds that a table may lack."""
    return "-" if seconds is None else seconds_text(seconds)


def signed_seconds(s: float) -> str:
    """A difference of seconds: -0.38 -> '-380 ms'."""
    return f"{'-' if s < 0 else '+'}{seconds_text(abs(s))}" if s else "0 s"


def signed_bytes(n: float) -> str:
    """A difference of bytes: '+1.50 GiB'."""
    return f"+{bytes_text(n)}" if n > 0 else bytes_text(n)


def relative_text(share: float, decimals: int = 1) -> str:
    """A relative difference, from twice as much on as a factor, which people read more easily:
    0.152 -> '+15.2%', -0.2 -> '-20.0%', 15.95 -> '17.0 times', -1e-5 -> 'under 0.1%'."""
    if 0 < abs(share) < 0.5 * 10 ** -(decimals + 2):
        return f"under {10.0**-decimals:g}%"
    return f"{_significant(1 + share)} times" if share >= 1 else f"{share:+.{decimals}%}"


def energy_text(joules: float) -> str:
    """Joules, from a watt-hour on as Wh, kWh, MWh ...: 3.6e6 -> '1.00 kWh'."""
    hours = joules / HOUR
    return rate_text(hours, "Wh") if hours >= ROUNDS_UP else f"{_significant(joules)} J"


def money_text(amount: float) -> str:
    """US dollars: 1234.5 -> '$1,234', 0.123 -> '$0.123'."""
    return f"${_significant(amount)}" if amount < 1000 else f"${amount:,.0f}"


def hours_text(hours: float) -> str:
    """GPU-hours with three significant digits: 0.445, 20.5, 1,234."""
    return _significant(hours)


HOURS_A_MONTH = 730  # a twelfth of a year of 365 days, as clouds bill


def rent_text(an_hour: float) -> str:
    """US dollars an hour, and what a month of it comes to: 2 -> '$2.00 an hour, $1,460 a month'."""
    return f"{money_text(an_hour)} an hour, {money_text(HOURS_A_MONTH * an_hour)} a month"


def rate_text(per_second: float, unit: str) -> str:
    """A decimal rate: (3.35e12, 'B/s') -> '3.35 TB/s'."""
    for size, prefix in _DECIMAL:
        if per_second >= size * ROUNDS_UP:
            return f"{_significant(per_second / size)} {prefix}{unit}"
    return f"{_significant(per_second)} {unit}"


def count_text(n: float) -> str:
    """A count as K, M, B or T: 8030261248 -> '8.03B'; a whole billion -> '1B'."""
    for size, name in _COUNT:
        if n >= size and n % size == 0:
            return f"{n // size:,.0f}{name}"
        if n >= size * ROUNDS_UP:
            return f"{_significant(n / size)}{name}"
    return f"{n:.0f}"


def parse_count(text: str) -> int:
    """A model size in words, '7B' or '350M' or '1.5T', as a number of parameters.

    Raises ValueError naming the form that is expected.
    """
    match = _SIZE.fullmatch(text)
    if not match:
        raise ValueError(f"{text[:40]!r} is not a size such as '350M', '7B' or '1.5T'")
    scale = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}[match[2].upper()]
    return round(float(match[1]) * scale)


def value_text(value: object, unit: str) -> str:
    """A value of an explanation for people: 535 ms, 20.6 GiB, 39.8%."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return " to ".join(value_text(v, unit) for v in value)
    if not isinstance(value, (int, float)):
        return str(value)
    if math.isinf(value):
        return "never ends"
    if unit == "bytes":
        return bytes_text(value)
    if unit == "seconds":
        return seconds_text(value)
    if unit in ("FLOP", "FLOP/s", "B/s", "W"):
        return rate_text(value, unit) if value else f"0 {unit}"
    if unit == "J":
        return energy_text(value)
    if unit == "USD":
        return money_text(value)
    if unit == "GPU-hours":
        return f"{hours_text(value)} {unit}"
    if unit == "share":
        return f"{value:.1%}"
    if unit == "change":
        return relative_text(value)
    if unit == "difference":
        return relative_text(value, 3) if value else "0"
    number = f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
    if abs(value) >= 10_000 and isinstance(value, float):
        number = f"{value:,.0f}"
    if value == 1 and unit.isalpha():
        unit = unit.removesuffix("s")
    return f"{number} {unit}".rstrip()


def exact_text(value: object, unit: str) -> str:
    """A value as a formula writes it: whole bytes in full."""
    if unit == "bytes" and isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"{value:,.0f} B"
    return value_text(value, unit)
