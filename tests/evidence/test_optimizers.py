"""What each optimizer keeps, against torch.optim's own state after one step."""

import pytest

from memcore.evaluate import evaluate
from memcore.plan.plan import Plan
from memcore.words.optimizers import OPTIMIZERS
from memcore.words.word import DTYPE_BYTES

ROWS, COLUMNS = 96, 64  # intermediate and hidden size of the model below
# name -> (of a ROWS x COLUMNS matrix, of a vector of COLUMNS): what `optimizer.state[p]` holds
# besides step counters, in elements; torch 2.13, lion-pytorch 0.2 for Lion, torchao 0.18 for its,
# bitsandbytes 0.50 for 8-bit Adam, whose vectors of fewer than 4,096 elements keep 32 bits under
# the same names.
TORCH = {
    "adamw": ({"exp_avg": ROWS * COLUMNS, "exp_avg_sq": ROWS * COLUMNS},
              {"exp_avg": COLUMNS, "exp_avg_sq": COLUMNS}),
    "adamw-foreach": ({"exp_avg": ROWS * COLUMNS, "exp_avg_sq": ROWS * COLUMNS},
                      {"exp_avg": COLUMNS, "exp_avg_sq": COLUMNS}),
    "adam8bit": ({"state1": ROWS * COLUMNS, "state2": ROWS * COLUMNS,
                  "absmax1": ROWS * COLUMNS // 256, "absmax2": ROWS * COLUMNS // 256},
                 {"state1 (32 bit)": COLUMNS, "state2 (32 bit)": COLUMNS}),
    "paged-adamw32bit": ({"state1 (on the GPU)": ROWS * COLUMNS,
                          "state2 (on the GPU)": ROWS * COLUMNS},
                         {"state1 (on the GPU)": COLUMNS, "state2 (on the GPU)": COLUMNS}),
    "paged-adamw8bit": ({"state1 (on the GPU)": ROWS * COLUMNS,
                         "state2 (on the GPU)": ROWS * COLUMNS,
                         "absmax1": ROWS * COLUMNS // 256, "absmax2": ROWS * COLUMNS // 256},
                        {"state1 (32 bit)": COLUMNS, "state2 (32 bit)": COLUMNS}),
    "torchao-adamw8bit": (
        {f"{m}.{n}": size for m in ("exp_avg", "exp_avg_sq")
         for n, size in (("codes", ROWS * COLUMNS), ("scale", ROWS * COLUMNS // 256),
                         ("qmap", 256))},
        {"exp_avg": COLUMNS, "exp_avg_sq": COLUMNS}),
    "torchao-adamw4bit": (
        {f"{m}.{n}": size for m in ("exp_avg", "exp_avg_sq")
         for n, size in (("codes", ROWS * COLUMNS // 2), ("scale", ROWS * COLUMNS // 128),
                         ("qmap", 16))},
        {"exp_avg": COLUMNS, "exp_avg_sq": COLUMNS}),
    "sgd": ({}, {}),
    "sgd-momentum": ({"momentum_buffer": ROWS * COLUMNS}, {"momentum_buffer": COLUMNS}),
    "lion": ({"exp_avg": ROWS * COLUMNS}, {"exp_avg": COLUMNS}),
    "adafactor": ({"row_var": ROWS, "col_var": COLUMNS}, {"variance": COLUMNS}),
    "muon": ({"momentum_buffer": ROWS * COLUMNS}, {"exp_avg": COLUMNS, "exp_avg_sq": COLUMNS}),
}  # fmt: skip
MATRIX, VECTOR = "layers.mlp.gate_proj.weight", "layers.input_layernorm.weight"
MODEL = {
    "model_type": "llama",
    "hidden_size": COLUMNS,
    "intermediate_size": ROWS,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "vocab_size": 128,
}


def plan(optimizer, **train):
    words = {"framework": "pytorch", "zero": 0, "precision": "fp32", "seq_len": 1}
    return Plan(model=MODEL, cluster={"gpus": 1}, train=words | {"optimizer": optimizer} | train)


@pytest.mark.parametrize("name", [name for name, of in OPTIMIZERS.items() if not of.aware])
def test_states_are_torch_s(name):
    rows = [r for r in evaluate(plan(name)).ledger if r.consumer == "optimizer_states"]
    for parameter, kept in zip((MATRIX, VECTOR), TORCH[name], strict=True):
        ours = {
            r.name.removeprefix(f"{parameter}."): r.bytes_each // DTYPE_BYTES[r.dtype]
            for r in rows
            if r.name.startswith(parameter) and not r.name.endswith(".step")
        }
        assert ours == kept


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["adamw", "adamw-foreach", "sgd", "sgd-momentum", "adafactor"])
def test_states_are_those_of_the_torch_that_is_here(name):
    torch = pytest.importorskip("torch")
    make = {
        "adamw": torch.optim.AdamW,
        "adamw-foreach": torch.optim.AdamW,
        "sgd": torch.optim.SGD,
        "sgd-momentum": lambda p: torch.optim.SGD(p, momentum=0.9),
        "adafactor": torch.optim.Adafactor,
    }[name]
    for shape, kept in zip(((ROWS, COLUMNS), (COLUMNS,)), TORCH[name], strict=True):
        parameter = torch.nn.Parameter(torch.zeros(shape))
        parameter.grad = torch.zeros(shape)
        optimizer = make([parameter])
        optimizer.step()
        state = {k: v.numel() for k, v in optimizer.state[parameter].items() if k != "step"}
        assert {k: n for k, n in state.items() if n} == kept


def test_foreach_needs_one_more_copy_during_its_step():
    def stepping(name):
        timeline = evaluate(plan(name)).memory.timeline
        return next(m for m in timeline if m.id == "optimizer-step")

    report = evaluate(plan("adamw-foreach"))
    extra = stepping("adamw-foreach").bytes - stepping("adamw").bytes
    counters = 4 * 12  # fused AdamW counts steps on the GPU, once per parameter tensor
    assert extra + counters == 4 * report.parameters


def test_muon_leaves_embedding_and_head_to_adamw():
    rows = evaluate(plan("muon")).ledger
    for name in ("embed.embed_tokens.weight", "head.lm_head.weight"):
        assert {f"{name}.exp_avg", f"{name}.exp_avg_sq"} <= {r.name for r in rows}


def test_8_bit_states_are_bytes_with_a_scale_for_each_256():
    """bitsandbytes: uint8 states, fp32 absmax per block of 256 (the last one short), two shared
    tables of 256 fp32 values."""
    rows = {r.name: r for r in evaluate(plan("adam8bit", precision="bf16-pure")).ledger}
    assert rows[f"{MATRIX}.state1"].bytes_each == ROWS * COLUMNS
    assert rows[f"{MATRIX}.absmax1"].bytes_each == ROWS * COLUMNS // 256 * 4
    assert rows[f"{VECTOR}.state1 (32 bit)"].bytes_each == COLUMNS * 4
    assert (rows["qmap1"].bytes, rows["qmap2"].bytes) == (1024, 1024)
    odd = {**MODEL, "intermediate_size": 97}
    words = {"framework": "pytorch", "zero": 0, "precision": "fp32", "seq_len": 1}
    other = Plan(model=odd, cluster={"gpus": 1}, train=words | {"optimizer": "adam8bit"})
    rows = {r.name: r for r in evaluate(other).ledger}
    assert rows[f"{MATRIX}.absmax1"].bytes_each == -(-97 * COLUMNS // 256) * 4
