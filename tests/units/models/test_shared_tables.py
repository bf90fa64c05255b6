"""Tables of a recommender that ranks share out, beside what TorchRec and FBGEMM make of them.

torchrec 1.8.0 and fbgemm-gpu 1.8.0 on a CPU: EmbeddingShardingPlanner with one sharding type and
the fused kernel, for MLPerf's DLRM-DCNv2 (tests/reference/dlrm.py); their dense modules' saved
tensors by PyTorch's hooks.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from explained import checked

from memcore.errors import PlanError
from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.models.traced.file import read
from memcore.models.traced.tables import fullest, tables_of
from memcore.plan.plan import Plan
from memcore.report import Report
from memcore.shipped import PRESETS

MODEL = "dlrm-dcnv2"
DENSE = 16_044_545  # parameters of torchrec's DenseArch, InteractionDCNArch and OverArch
# Parameters of tables and rows on rank 0 by row, and parameters on the fullest rank by table.
BY_ROW = {8: (3_266_954_624, 25_523_083), 16: (1_633_478_016, 12_761_547)}
BY_TABLE = {8: 5_126_529_024, 16: 5_120_008_064}
BY_TIME = 0.002  # TorchRec places tables by time, and so a little worse by bytes
SAVED = {64: 7_540_480, 200: 23_564_000}  # bytes, by samples
# Of a sample and of what PyTorch's own EmbeddingBag keeps of it: ids, and three numbers of a bag.
OF_BAGS = 8 * (214 + 3 * 26)


def document() -> dict[str, Any]:
    path = PRESETS.joinpath("traced", f"{MODEL}.json.gz")
    found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return found


def plan(gpus: int = 8, **train: Any) -> Plan:
    return Plan.of(
        {
            "model": MODEL,
            "cluster": {"gpu": "h100-sxm-80gb", "gpus": gpus},
            "train": {"micro_batch": 65_536 // gpus, **train},
        }
    )


def rows(report: Report, consumer: str, tier: str = "hbm") -> dict[str, int]:
    found: dict[str, int] = {}
    for row in report.ledger:
        if (row.consumer, row.tier) == (consumer, tier):
            found[row.name] = found.get(row.name, 0) + row.bytes
    return found


def of_tables(of: dict[str, int]) -> int:
    return sum(n for name, n in of.items() if "tables." in name)


@pytest.mark.parametrize("gpus", BY_ROW)
def test_by_row_a_gpu_has_what_torchrec_gives_it(gpus: int) -> None:
    report = evaluate(plan(gpus))
    elements, count = BY_ROW[gpus]
    held = rows(report, "parameters")
    assert of_tables(held) == 4 * elements
    assert sum(held.values()) == 4 * (elements + DENSE)
    assert of_tables(rows(report, "optimizer_states")) == 4 * count  # fp32, one for each row


@pytest.mark.parametrize("gpus", BY_TABLE)
@pytest.mark.parametrize("sharding", ["table", "column"])
def test_by_table_the_fullest_gpu_has_what_torchrec_gives_it(gpus: int, sharding: str) -> None:
    """Tables of 128 columns are cut in no pieces."""
    held = of_tables(rows(evaluate(plan(gpus, table_sharding=sharding)), "parameters"))
    assert held / 4 <= BY_TABLE[gpus] <= held / 4 * (1 + BY_TIME)


def test_wide_tables_are_cut_in_pieces_of_128_columns() -> None:
    file = document()
    name = file["parameters"][0][0]
    file["parameters"][0] = [name, [40_000_000, 512], "fp32", True]
    tables = tables_of(read(file))
    assert tables[0].pieces == [128] * 4
    assert fullest(tables, 26, cut=False)[0] == 512
    assert fullest(tables, 26, cut=True)[0] == 128


@pytest.mark.parametrize("samples", SAVED)
def test_the_dense_part_saves_what_torchrecs_does(samples: int) -> None:
    file = read(document())
    sizes = {"batch": samples}
    assert file.elements - sum(t.rows * t.columns for t in tables_of(file)) == DENSE
    assert file.variant(sizes).saved_bytes(sizes) - samples * OF_BAGS == SAVED[samples]


@pytest.mark.parametrize(
    ("optimizer", "each"),
    [("sgd", 0), ("rowwise-adagrad", 1), ("adagrad", 128), ("adam", 256), ("rowwise-adam", 129)],
)
def test_what_updates_tables_keeps_what_fbgemms_does(optimizer: str, each: int) -> None:
    """fp32 values for each row of 128 weights."""
    states = of_tables(rows(evaluate(plan(table_optimizer=optimizer)), "optimizer_states"))
    assert states == 4 * each * BY_ROW[8][1]


def test_no_gradient_of_a_shared_table_exists() -> None:
    report = evaluate(plan())
    assert not of_tables(rows(report, "gradients"))
    buckets = {name: n for name, n in rows(report, "workspace").items() if "bucket" in name}
    assert sum(buckets.values()) == 4 * DENSE


def test_rows_that_rest_on_the_host_are_cached() -> None:
    """FBGEMM's MANAGED_CACHING: 4 bytes a row and 16 a cached one to find it."""
    report = evaluate(plan(table_cache=0.25))
    elements, count = BY_ROW[8]
    cached = -(-count // 4)
    held = of_tables(rows(report, "parameters"))
    assert held == pytest.approx(4 * elements / 4, abs=4 * 128 * 26)
    assert of_tables(rows(report, "parameters", "dram")) == 8 * 4 * elements
    finds = of_tables(rows(report, "workspace"))
    assert finds == pytest.approx(16 * cached + 4 * count, abs=16 * 26)
    assert report.time.transfers
    moved = {t.name: t.bytes for t in report.time.transfers if t.link == "pcie"}
    more = {
        t.name: t.bytes for t in evaluate(plan(table_cache=0.25, table_hits=0.5)).time.transfers
    }
    read_rows = 65_536 // 8 * 214 * 128 * 4
    assert more["rows from the host"] == pytest.approx(read_rows / 2, rel=0.01)
    assert 0 < moved["rows from the host"] < more["rows from the host"]


def test_ranks_exchange_ids_and_results() -> None:
    samples, width = 65_536 // 8, 26 * 128 * 4
    by = {s: {t.name: t.bytes for t in evaluate(plan(table_sharding=s)).time.transfers}
          for s in ("row", "table")}  # fmt: skip
    assert by["table"]["all-to-all results of lookups, data parallel, forward"] == samples * width
    assert by["row"]["reduce-scatter results of lookups, data parallel, forward"] == (
        8 * samples * width
    )
    for sent in by.values():
        assert sent["all-to-all rows asked for, data parallel, forward"] == samples * 214 * 8


def test_one_sample_is_one_and_the_trace_decides_the_precision() -> None:
    made = plan()
    assert made.train.seq_len == 1
    assert made.train.precision == "fp32"
    assert made.train.framework == "pytorch"


@pytest.mark.parametrize(
    "words", [{"framework": "fsdp2", "zero": 3}, {"grad_accumulation": 2}, {"zero": 1}]
)
def test_what_is_not_modelled_is_refused(words: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="tables that GPUs share out"):
        plan(**words)


@pytest.mark.parametrize("words", [{}, {"table_sharding": "table"}, {"table_cache": 0.1}])
def test_every_number_is_explained(words: dict[str, Any]) -> None:
    made = plan(**words)
    report = evaluate(made)
    on_gpu = [row.bytes for row in report.ledger if row.tier == "hbm"]
    assert sum(on_gpu) == report.memory.allocated_bytes
    checked(Book(made, report))


def test_the_loader_holds_what_the_model_is_given() -> None:
    """Ids of 8 bytes, 13 numbers and a label of 4: one batch, where no worker fetches ahead."""
    of = rows(evaluate(plan(1, loader_workers=0)), "workspace", "dram")
    assert sum(of.values()) == 65_536 * (214 * 8 + 14 * 4)


NET = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = torch.nn.ModuleList(torch.nn.EmbeddingBag(n, 8) for n in (900, 700))
        self.words = torch.nn.Embedding(50, 8)
        self.top = torch.nn.Linear(8, 1)
    def forward(self, one, two, tokens):
        pooled = self.tables[0](one) + self.tables[1](two) + self.words(tokens).sum(1)
        return self.top(pooled).sum()
def build():
    ids = {"one": torch.zeros(2, 3), "two": torch.zeros(2, 5), "tokens": torch.zeros(2, 4)}
    return Net(), {name: t.long() for name, t in ids.items()}
"""


@pytest.mark.oracle
def test_a_trace_says_what_is_looked_up_in_each_table(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    given = ("one=batch,3", "two=batch,5", "tokens=batch,4")
    dims = [word for each in given for word in ("--dims", each)]
    out = tmp_path / "net.json"
    trace = "import sys; from memcore.cli import main; sys.exit(main())"
    arguments = ("trace", "net.py:build", *dims, "--out", str(out))
    run = [sys.executable, "-c", trace, *arguments]
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(run, cwd=tmp_path, check=True, capture_output=True, env=paths)
    assert json.loads(out.read_text())["tables"] == {
        "tables.0.weight": ["3*batch", "batch", True],
        "tables.1.weight": ["5*batch", "batch", True],
        "words.weight": ["4*batch", "4*batch", False],
    }
