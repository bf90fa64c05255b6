"""Cluster: the chunks of a search on the workers of a Dask cluster (the extra [cluster]).

A chunk is a pure function of what it holds, so that a table is the same wherever it is made.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from memcore.errors import refusal, shown
from memcore.search.found import Spread

TIMEOUT = 10.0  # seconds until a scheduler has to answer
FIELD = "scheduler"


@contextlib.contextmanager
def workers(address: str) -> Iterator[Spread]:
    """Who judges chunks for a search: the workers of the scheduler at an address, 'tcp://host:8786'.

    Raises PlanError without Dask, where nobody answers, and where the workers have no Memplan or
    another version of it.
    """
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError:
        said = "Dask is not installed: pip install 'memplan[cluster]'"
        raise refusal(FIELD, said) from None
    try:
        client = distributed.Client(address, timeout=TIMEOUT, set_as_default=False)
    except (OSError, TimeoutError, ValueError):
        raise refusal(FIELD, f"no Dask scheduler answers at {shown(address)}") from None
    with client:
        _check(client.run(_version))

        def spread(judge: Callable[[Any], Any], chunks: Sequence[Any]) -> Iterator[Any]:
            futures = client.map(judge, chunks, pure=False)
            try:
                for future in futures:
                    yield future.result()
            finally:
                client.cancel(futures)

        yield spread


def _version() -> str:
    """Of the Memplan on a worker, or ''."""
    try:
        return str(importlib.import_module("memcore").__version__)
    except ImportError:
        return ""


def _check(versions: dict[str, str]) -> None:
    here = _version()
    if not versions:
        raise refusal(FIELD, "it has no workers")
    for worker, version in versions.items():
        if version != here:
            has = f"Memplan {version}, not {here}" if version else "no Memplan"
            raise refusal(FIELD, f"worker {shown(worker)} has {has}")
