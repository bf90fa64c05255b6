"""Writes presets/prices.toml anew from gpuhunt's catalogue: for each GPU and cloud that it has, the
instance with the most GPUs, in the region where it is cheapest, on demand. Rows of other clouds
stay.

    pip install -e '.[dev]'
    python tests/reference/refresh_prices.py                      # fetches the catalogue
    python tests/reference/refresh_prices.py aws.csv oci.csv      # its files, named by provider
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from memcore.models import cards

PRICES = Path(__file__).resolve().parents[2] / "presets" / "prices.toml"
# gpuhunt's providers, as the table calls clouds. Offers of single machines are no list prices.
CLOUDS = {
    "aws": "AWS", "azure": "Azure", "gcp": "Google Cloud", "lambdalabs": "Lambda",
    "nebius": "Nebius", "oci": "Oracle", "runpod": "RunPod", "verda": "Verda",
}  # fmt: skip
FORM_OF = {"H100": "sxm", "H200": "sxm", "B200": "sxm", "B300": "sxm"}  # catalogues say none


def offers_in(files: Sequence[str]) -> list[Any]:
    """What gpuhunt offers on demand, of its files or as fetched."""
    import gpuhunt
    from gpuhunt._internal import storage

    if not files:
        return list(gpuhunt.Catalog(balance_resources=False).query(spot=False))
    offers = []
    for file in map(Path, files):
        with file.open(encoding="utf-8", newline="") as lines:
            offers += [item for item in storage.load(lines, provider=file.stem) if not item.spot]
    return offers


def rows_of(offers: Iterable[Any], today: date) -> list[dict[str, Any]]:
    """A row of the table for each GPU and cloud."""
    best: dict[tuple[str, str], Any] = {}
    for each in offers:
        if each.provider not in CLOUDS or not each.gpu_count or not each.gpu_name or not each.price:
            continue
        size = f" {each.gpu_memory:.0f}GB" if each.gpu_memory else ""
        gpu = cards.preset(f"{each.gpu_name} {FORM_OF.get(each.gpu_name, '')}{size}")
        key = gpu, CLOUDS[each.provider]
        if gpu and (key not in best or _rank(each) < _rank(best[key])):
            best[key] = each
    return [
        {
            "gpu": gpu,
            "cloud": f"{cloud} {each.instance_name}",
            "instance": each.instance_name,
            "gpus": each.gpu_count,
            "region": each.location,
            "usd": round(each.price / each.gpu_count, 4),
            "as_of": today.isoformat(),
            "source": f"gpuhunt, on demand: {each.price:g} per hour for {each.gpu_count}",
        }
        for (gpu, cloud), each in sorted(best.items())
    ]


def _rank(offer: Any) -> tuple[int, float, str, str]:
    """The most GPUs first, then the lowest price."""
    return -offer.gpu_count, offer.price, offer.instance_name, offer.location


def refreshed(text: str, rows: Sequence[dict[str, Any]]) -> str:
    """The table's text in which rows take the place of those of the same GPU and cloud."""
    head, *blocks = text.split("[[price]]\n")
    new = {(row["gpu"], row["cloud"].removesuffix(f" {row['instance']}")) for row in rows}
    stay = [block for block in blocks if not any(_is_of(block, *each) for each in new)]
    written = ["".join(f"{k} = {_toml(v)}\n" for k, v in row.items()) for row in rows]
    every = (block.strip() for block in (*stay, *written))
    return head + "\n\n".join(f"[[price]]\n{block}" for block in every) + "\n"


def _is_of(block: str, gpu: str, cloud: str) -> bool:
    return f'gpu = "{gpu}"\n' in block and bool(re.search(rf'^cloud = "{cloud}\b', block, re.M))


def _toml(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*")
    found = rows_of(offers_in(parser.parse_args().files), date.today())
    PRICES.write_text(refreshed(PRICES.read_text(encoding="utf-8"), found), encoding="utf-8")
    print(f"{len(found)} rows are of today")
