"""Many rows asked by one test: pytest need not collect, run and report each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import pytest

SHOWN = 20  # rows that fail, of which a test says how


def each(
    names: str,
    rows: Iterable[Any] | Callable[[], Iterable[Any]],
    ids: Callable[[Any], object] = str,
) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """As `pytest.mark.parametrize`, but one test, which asks every row and says all that fail.
    What gives the rows is called by the test: not every worker that collects needs them."""
    words = [name.strip() for name in names.split(",")]

    def over(ask: Callable[..., None]) -> Callable[[], None]:
        @wraps(ask)
        def asked(**fixtures: Any) -> None:
            given = rows() if callable(rows) else rows
            table = [_row(row, len(words) == 1, ids) for row in given]
            assert table, "no row is asked"
            failed, answered = [], 0
            for values, name in table:
                try:
                    ask(**dict(zip(words, values, strict=True)), **fixtures)
                except pytest.skip.Exception:
                    continue
                except Exception as error:
                    failed.append(f"{name}: {type(error).__name__} {error}")
                answered += 1
            if not answered:
                pytest.skip("every row is skipped")
            if failed:
                many = f"{len(failed)} of {len(table)} rows fail:\n"
                pytest.fail(many + "\n".join(failed[:SHOWN]), pytrace=False)

        signature = inspect.signature(ask)
        fixtures = [p for name, p in signature.parameters.items() if name not in words]
        asked.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
        return asked

    return over


def _row(row: Any, one: bool, ids: Callable[[Any], object]) -> tuple[tuple[Any, ...], str]:
    if hasattr(row, "values") and hasattr(row, "marks"):  # of pytest.param
        return tuple(row.values), row.id or str(row.values)
    return ((row,), str(ids(row))) if one else (tuple(row), " ".join(str(ids(v)) for v in row))
