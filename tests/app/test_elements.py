"""What presets/pages.toml declares of charts, tables and texts, against the pages that use it."""

import re
from pathlib import Path

import pytest

from app import elements

APP = Path(elements.__file__).parent
CODE = "\n".join(p.read_text(encoding="utf-8") for p in APP.rglob("*.py"))


@pytest.mark.parametrize("kind", ["charts", "tables", "texts", "figures"])
def test_all_that_is_declared_is_on_a_page(kind: str) -> None:
    for name in elements.PAGES[kind]:
        last = name.removeprefix("report_").removeprefix("measure_")
        assert re.search(rf'"({name}|{last})"|\'{last}\'', CODE), f"nobody shows {kind}.{name}"
