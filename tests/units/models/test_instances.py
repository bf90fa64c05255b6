"""Instances of clouds as names of GPUs, and the script that writes prices anew."""

from __future__ import annotations

import importlib.util
import tomllib
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from memcore.models import cards, catalog

SCRIPT = Path(__file__).resolve().parents[2] / "reference" / "refresh_prices.py"
spec = importlib.util.spec_from_file_location("refresh_prices", SCRIPT)
assert spec
assert spec.loader
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)


def test_an_instance_is_a_name_of_its_gpu(memplan: Any) -> None:
    assert cards.preset("p5.48xlarge") == "h100-sxm-80gb"
    assert cards.preset("bm.gpu.h200.8") == "h200-sxm-141gb"
    assert cards.preset("p5.96xlarge") == ""
    ran = memplan("evaluate", "7B", "--gpu", "p5en.48xlarge")
    assert "8 x NVIDIA H200" in ran.out
    assert "'p5en.48xlarge' is taken for h200-sxm-141gb, of which it has 8" in ran.err
    served = memplan("search", "7B", "--serve", "--users", 4, "--gpu", "p5en.48xlarge", "--json")
    assert served.json["best"]


def test_every_instance_has_gpus_and_one_gpu() -> None:
    rows = [row for gpu in catalog.priced_gpus() for row in catalog.prices(gpu).values()]
    named = [row for row in rows if "instance" in row]
    assert len({row["instance"].lower() for row in named}) == len(named) > 15
    for row in named:
        assert cards.preset(row["instance"]) == row["gpu"]
        assert row["cloud"].endswith(row["instance"])
        assert 1 <= row["gpus"] <= 72


CSV = """\
instance_name,location,price,cpu,memory,gpu_count,gpu_name,gpu_memory,spot,disk_size
p5.48xlarge,us-east-1,55.04,192,2048,8,H100,80,False,
p5.48xlarge,us-west-2,52.0,192,2048,8,H100,80,False,
p5.48xlarge,us-west-2,20.0,192,2048,8,H100,80,True,
p5.4xlarge,us-east-1,4.0,16,256,1,H100,80,False,
m7i.large,us-east-1,0.1,2,8,0,,,False,
x9.large,us-east-1,0.1,2,8,1,NOSUCH,8,False,
"""


def offer(**values: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"provider": "aws", "gpu_memory": 80.0, **values})


def test_prices_are_written_anew_from_a_catalogue() -> None:
    every = [
        offer(instance_name="p5.48xlarge", location=at, price=usd, gpu_count=8, gpu_name="H100")
        for at, usd in (("us-east-1", 55.04), ("us-west-2", 52.0))
    ]
    every += [
        offer(instance_name="p5.4xlarge", location="a", price=4.0, gpu_count=1, gpu_name="H100"),
        offer(instance_name="m7i.large", location="a", price=0.1, gpu_count=0, gpu_name=None),
        offer(instance_name="x9.large", location="a", price=0.1, gpu_count=1, gpu_name="NOSUCH"),
    ]
    (row,) = script.rows_of(every, date(2026, 11, 29))
    assert row == {
        "gpu": "h100-sxm-80gb", "cloud": "AWS p5.48xlarge", "instance": "p5.48xlarge", "gpus": 8,
        "region": "us-west-2", "usd": 6.5, "as_of": "2026-11-29",
        "source": "gpuhunt, on demand: 52 per hour for 8",
    }  # fmt: skip
    text = script.PRICES.read_text(encoding="utf-8")
    before, after = (tomllib.loads(each)["price"] for each in (text, script.refreshed(text, [row])))
    assert row in after
    assert len(after) == len(before)
    gone = [each for each in before if each not in after]
    assert [(each["gpu"], each["cloud"]) for each in gone] == [(row["gpu"], row["cloud"])]
    assert script.refreshed(text, []).strip() == text.strip()


def test_gpuhunts_own_files_are_read(tmp_path: Path) -> None:
    pytest.importorskip("gpuhunt")
    (tmp_path / "aws.csv").write_text(CSV)
    (row,) = script.rows_of(script.offers_in([str(tmp_path / "aws.csv")]), date(2026, 11, 29))
    assert (row["gpu"], row["region"], row["usd"]) == ("h100-sxm-80gb", "us-west-2", 6.5)
