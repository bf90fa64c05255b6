"""Weights on disk: a plan weighs what the files weigh, and a wrong header is refused at once."""

from __future__ import annotations

import http.server
import json
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from tables import each

from memcore import PlanError
from memcore.evaluate import evaluate
from memcore.formats.checkpoints import document_of, on_this_machine
from memcore.plan.plan import Plan

Shapes = dict[str, tuple[str, tuple[int, ...]]]  # dtype and shape by name
D, F, V, HEADS, KV, LAYERS = 256, 512, 320, 4, 2, 3
HEAD = D // HEADS
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": D,
    "intermediate_size": F,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "vocab_size": V,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
MATRICES = {
    "self_attn.q_proj": (D, D),
    "self_attn.k_proj": (KV * HEAD, D),
    "self_attn.v_proj": (KV * HEAD, D),
    "self_attn.o_proj": (D, D),
    "mlp.gate_proj": (F, D),
    "mlp.up_proj": (F, D),
    "mlp.down_proj": (D, F),
}


def planned(path: Path) -> int:
    """Bytes of weights that the plan of a file or folder has."""
    document, _ = document_of(*on_this_machine(str(path)))
    served = evaluate(Plan.of(document)).serve
    assert served is not None
    return served.weights_bytes


# ---- safetensors

BYTES = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "uint32": 4,
    "uint8": 1,
    "float8_e4m3fn": 1,
}


def llama(dtype: str = "bfloat16", norm: str = "", tied: bool = False) -> Shapes:
    """Every tensor of LLAMA."""
    found: Shapes = {
        "model.embed_tokens.weight": (dtype, (V, D)),
        "model.norm.weight": (norm or dtype, (D,)),
    }
    if not tied:
        found["lm_head.weight"] = dtype, (V, D)
    for i in range(LAYERS):
        at = f"model.layers.{i}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"{at}.{name}.weight"] = norm or dtype, (D,)
        found |= {f"{at}.{name}.weight": (dtype, shape) for name, shape in MATRICES.items()}
    return found


def quantized(parts: Callable[[int, int], Shapes]) -> Shapes:
    """The same, each matrix of a layer in the parts that a quantizer makes of it."""
    found: Shapes = {}
    for name, said in llama().items():
        if (inner := name.removesuffix(".weight").partition(".layers.")[2][2:]) in MATRICES:
            made = parts(*MATRICES[inner])
            found |= {f"{name.removesuffix('.weight')}.{part}": how for part, how in made.items()}
        else:
            found[name] = said
    return found


def awq(rows: int, columns: int) -> Shapes:
    groups = columns // 128
    return {
        "qweight": ("int32", (columns, rows // 8)),
        "scales": ("float16", (groups, rows)),
        "qzeros": ("int32", (groups, rows // 8)),
    }


def gptq(rows: int, columns: int) -> Shapes:
    return {
        **awq(rows, columns),
        "qweight": ("int32", (columns // 8, rows)),
        "g_idx": ("int32", (columns,)),
    }


def fp8(rows: int, columns: int) -> Shapes:
    blocks = (-(-rows // 128), columns // 128)
    return {"weight": ("float8_e4m3fn", (rows, columns)), "weight_scale_inv": ("float32", blocks)}


def nf4(rows: int, columns: int) -> Shapes:
    n = rows * columns
    return {
        "weight": ("uint8", (n // 2, 1)),
        "weight.absmax": ("uint8", (n // 64,)),
        "weight.quant_map": ("float32", (16,)),
        "weight.nested_absmax": ("float32", (n // 64 // 256 + 1,)),
        "weight.quant_state.bitsandbytes__nf4": ("uint8", (82,)),
    }


def mlx(rows: int, columns: int) -> Shapes:
    scale = "bfloat16", (rows, columns // 64)
    return {"weight": ("uint32", (rows, columns // 8)), "scales": scale, "biases": scale}


def mixture() -> Shapes:
    """Of Mixtral, each expert's matrices apart."""
    found = {name: how for name, how in llama().items() if ".mlp." not in name}
    for i in range(LAYERS):
        at = f"model.layers.{i}.block_sparse_moe"
        found[f"{at}.gate.weight"] = "bfloat16", (4, D)
        for e in range(4):
            found |= {
                f"{at}.experts.{e}.{w}.weight": ("bfloat16", (D, F) if w == "w2" else (F, D))
                for w in ("w1", "w2", "w3")
            }
    return found


def oss() -> Shapes:
    """Of gpt-oss: experts in MXFP4, biases and sinks."""
    found = {name: how for name, how in llama().items() if ".mlp." not in name}
    for i in range(LAYERS):
        at = f"model.layers.{i}"
        found[f"{at}.self_attn.sinks"] = "bfloat16", (HEADS,)
        found |= {
            f"{at}.{name}.bias": ("bfloat16", (shape[0],))
            for name, shape in MATRICES.items()
            if name.startswith("self_attn")
        }
        found[f"{at}.mlp.router.weight"] = "bfloat16", (4, D)
        found[f"{at}.mlp.router.bias"] = "bfloat16", (4,)
        for name, rows, columns in (("gate_up_proj", 2 * F, D), ("down_proj", D, F)):
            found[f"{at}.mlp.experts.{name}_blocks"] = "uint8", (4, rows, columns // 32, 16)
            found[f"{at}.mlp.experts.{name}_scales"] = "uint8", (4, rows, columns // 32)
            found[f"{at}.mlp.experts.{name}_bias"] = "bfloat16", (4, rows)
    return found


SAFETENSORS: dict[str, tuple[dict[str, Any], Shapes, int]] = {  # what is in config.json, and files
    "bf16": ({}, llama(), 1),
    "fp32 in three files": ({}, llama("float32"), 3),
    "fp16, norms in fp32": ({}, llama("float16", "float32"), 1),
    "tied": ({"tie_word_embeddings": True}, llama(tied=True), 2),
    "awq": (
        {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}},
        quantized(awq),
        1,
    ),
    "gptq": (
        {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}},
        quantized(gptq),
        2,
    ),
    "fp8 blocks": (
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}},
        quantized(fp8),
        1,
    ),
    "nf4": (
        {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
        quantized(nf4),
        1,
    ),
    "mlx": ({"quantization": {"bits": 4, "group_size": 64}}, quantized(mlx), 1),
    "mixtral": (
        {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
        mixture(),
        4,
    ),
    "gpt-oss": (
        {
            "model_type": "gpt_oss",
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "head_dim": HEAD,
            "quantization_config": {"quant_method": "mxfp4"},
        },
        oss(),
        2,
    ),
    "a tensor more": (
        {},
        llama() | {"model.layers.1.self_attn.rotary_emb.inv_freq": ("float32", (32,))},
        1,
    ),
}


def saved(folder: Path, config: Mapping[str, Any], shapes: Shapes, files: int = 1) -> int:
    """Writes a folder as the hub has them; the bytes of its tensors."""
    safetensors = pytest.importorskip("safetensors")
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**LLAMA, **config}))
    names, places, total, buffers = list(shapes), {}, 0, []
    for k in range(files):
        called = f"model-{k + 1:05}-of-{files:05}.safetensors" if files > 1 else "model.safetensors"
        tensors = {}
        for name in names[k::files]:
            dtype, shape = shapes[name]
            size = BYTES[dtype] * int(np.prod(shape))
            data = np.zeros(size, np.uint8)
            tensors[name] = safetensors.TensorSpec(
                dtype=dtype, shape=shape, data_ptr=data.ctypes.data, data_len=size
            )
            buffers.append(data)
            total, places[name] = total + size, called
        safetensors.serialize_file(tensors, str(folder / called), {"format": "pt"})
    if files > 1:
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return total


@each("name", SAFETENSORS)
def test_a_plan_of_safetensors_weighs_what_they_do(name: str, tmp_path: Path) -> None:
    total = saved(tmp_path / name, *SAFETENSORS[name])
    assert planned(tmp_path / name) == total


def test_a_quantized_layer_keeps_its_own_bits(tmp_path: Path) -> None:
    """A matrix of one layer that is stored otherwise weighs otherwise there."""
    shapes = llama()
    shapes["model.layers.1.mlp.down_proj.weight"] = "float32", (D, F)
    saved(tmp_path / "model", {}, shapes)
    document, _ = document_of(*on_this_machine(str(tmp_path / "model")))
    types = document["model"]["quantization_config"]["on_disk"]["types"]
    assert types["fp32"] == ["layers.mlp.down_proj.weight@1"]


# ---- GGUF

Types = Mapping[str, str]


def gguf_file(
    path: Path,
    types: Types = MappingProxyType({}),
    architecture: str = "llama",
    tied: bool = False,
    experts: int = 0,
    biased: bool = False,
    more: Types = MappingProxyType({}),
    metadata: Mapping[str, int] = MappingProxyType({}),
    parts: int = 0,
) -> int:
    """Writes a GGUF file by its own library; the bytes of its tensors. types: by a tensor's name,
    or its name in any block; Q4_K of others."""
    gguf = pytest.importorskip("gguf")
    w = gguf.GGUFWriter(path, architecture, split_max_tensors=parts)
    w.add_block_count(LAYERS)
    w.add_embedding_length(D)
    w.add_feed_forward_length(F)
    w.add_head_count(HEADS)
    w.add_head_count_kv(KV)
    w.add_context_length(2048)
    w.add_key_length(HEAD)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_token_list([f"token {i}" for i in range(V)])
    if experts:
        w.add_expert_count(experts)
        w.add_expert_used_count(2)
    for key, value in metadata.items():
        w.add_uint32(f"{architecture}.{key}", value)
    total = 0

    def add(name: str, *shape: int) -> None:
        nonlocal total
        what = name.removesuffix(".weight").partition("blk.")[2].partition(".")[2]
        wide = "F32" if len(shape) == 1 or "gate_inp" in name else "Q4_K"
        kind = types.get(name, types.get(what, types.get("*", wide) if wide != "F32" else wide))
        of = gguf.GGMLQuantizationType[kind]
        block, size = gguf.GGML_QUANT_SIZES[of]
        dtype = {"F32": np.float32, "F16": np.float16}.get(kind)
        if dtype:
            data, raw = np.zeros(shape, dtype), None
        else:
            data, raw = np.zeros((*shape[:-1], shape[-1] // block * size), np.uint8), of
        w.add_tensor(name, data, raw_dtype=raw)
        total += data.nbytes

    add("token_embd.weight", V, D)
    add("output_norm.weight", D)
    if not tied:
        add("output.weight", V, D)
    for i in range(LAYERS):
        at = f"blk.{i}"
        for name in ("attn_norm", "ffn_norm", *more):
            add(f"{at}.{name}.weight", HEAD if name in ("attn_q_norm", "attn_k_norm") else D)
        for name, rows in (("attn_q", D), ("attn_k", KV * HEAD), ("attn_v", KV * HEAD)):
            add(f"{at}.{name}.weight", rows, D)
            if biased:
                add(f"{at}.{name}.bias", rows)
        add(f"{at}.attn_output.weight", D, D)
        if experts:
            add(f"{at}.ffn_gate_inp.weight", experts, D)
        end, n = ("_exps", (experts,)) if experts else ("", ())
        add(f"{at}.ffn_gate{end}.weight", *n, F, D)
        add(f"{at}.ffn_up{end}.weight", *n, F, D)
        add(f"{at}.ffn_down{end}.weight", *n, D, F)
    if types.get("rope_freqs.weight"):
        add("rope_freqs.weight", HEAD // 2)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return total


NORMS = {"attn_q_norm": "", "attn_k_norm": ""}
FILES: dict[str, dict[str, Any]] = {
    "q4_k_m": {
        "types": {"output.weight": "Q6_K", "blk.1.attn_v.weight": "Q6_K", "ffn_down": "Q6_K"}
    },
    "q8_0, tied": {"types": {"*": "Q8_0"}, "tied": True},
    "f16": {"types": {"*": "F16"}},
    "bf16": {"types": {"*": "BF16"}},
    "iq2 with an importance matrix": {
        "types": {"*": "IQ2_XXS", "attn_v": "IQ3_S", "output.weight": "Q5_K"}
    },
    "ud, each tensor its own": {
        "types": {
            "blk.0.ffn_down.weight": "Q8_0",
            "blk.2.attn_k.weight": "IQ4_XS",
            "blk.1.ffn_up.weight": "Q3_K",
            "attn_output": "Q5_K",
        }
    },
    "rope frequencies": {"types": {"rope_freqs.weight": "F32"}},
    "qwen2 with biases": {"architecture": "qwen2", "biased": True},
    "qwen3": {"architecture": "qwen3", "more": NORMS, "tied": True},
    "gemma2": {
        "architecture": "gemma2",
        "tied": True,
        "metadata": {"attention.sliding_window": 512},
        "more": {"post_attention_norm": "", "post_ffw_norm": ""},
    },
    "mixtral": {"experts": 4, "types": {"ffn_down_exps": "Q6_K"}},
    "qwen3moe": {
        "architecture": "qwen3moe",
        "experts": 4,
        "more": NORMS,
        "metadata": {"expert_feed_forward_length": F},
    },
    "ternary": {"types": {"*": "TQ2_0", "token_embd.weight": "Q6_K"}},
}


@each("name", FILES)
def test_a_plan_of_gguf_weighs_what_it_does(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.gguf"
    total = gguf_file(path, **FILES[name])
    assert planned(path) == total


def test_all_parts_of_a_split_file_are_read(tmp_path: Path) -> None:
    total = gguf_file(tmp_path / "model.gguf", parts=12)
    parts = sorted(tmp_path.iterdir())
    assert len(parts) > 1
    assert planned(parts[0]) == planned(tmp_path) == total
    parts[1].unlink()
    with pytest.raises(PlanError, match="is not there"):
        planned(parts[0])


def test_a_file_of_another_model_than_its_config_is_refused(tmp_path: Path) -> None:
    saved(tmp_path / "model", {"intermediate_size": 2 * F}, llama())
    with pytest.raises(PlanError, match=r"mlp.*not of one model"):
        planned(tmp_path / "model")
    saved(tmp_path / "other", {"num_hidden_layers": LAYERS + 1}, llama())
    with pytest.raises(PlanError, match="layer 3 of the model's 4 has no tensor"):
        planned(tmp_path / "other")


# ---- wrong headers


def safe(header: Any, data: int = 0, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + bytes(data)


def one(begin: int, end: int, dtype: str = "F32", n: int = 4) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [n], "data_offsets": [begin, end]}


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def ggml(
    keys: bytes = b"", n_keys: int = 0, tensors: bytes = b"", n_tensors: int = 0, data: int = 0
) -> bytes:
    start = b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_keys) + keys + tensors
    return start + bytes(-len(start) % 32 + data)


def described(name: str, offset: int, n: int = 32, kind: int = 0, dims: int = 1) -> bytes:
    return (
        text(name)
        + struct.pack("<I", dims)
        + struct.pack("<Q", n) * min(dims, 9)
        + struct.pack("<IQ", kind, offset)
    )


WRONG = {
    "a length of 10 GB.safetensors": (safe({}, length=10**10), "length is 10,000,000,000 bytes"),
    "a length over the bound.safetensors": (safe(b" " * (2**24 + 1)), "are read"),
    "empty.safetensors": (b"", "0 bytes"),
    "cut off.safetensors": (safe({"a": one(0, 16)}, 8), "cut off"),
    "overlapping.safetensors": (
        safe({"a": one(0, 16), "b": one(8, 24)}, 24),
        "in the bytes of another",
    ),
    "a hole.safetensors": (safe({"a": one(0, 16), "b": one(32, 48)}, 48), "what is before it ends"),
    "bytes behind.safetensors": (safe({"a": one(0, 16)}, 99), "no tensor's"),
    "nested.safetensors": (safe(b"[" * 10**6), "nested too deeply"),
    "twice.safetensors": (safe(b'{"a":1,"a":2}'), "'a' twice"),
    "no JSON.safetensors": (safe(b"{"), "not JSON"),
    "a list.safetensors": (safe([]), "no JSON object"),
    "another dtype.safetensors": (safe({"a": one(0, 16, "Q4")}, 16), "dtype 'Q4'"),
    "too few bytes.safetensors": (
        safe({"a": one(0, 16, n=5)}, 16),
        "5 values in F32, and 16 bytes",
    ),
    "below zero.safetensors": (safe({"a": one(0, -16)}, 16), "data_offsets"),
    "many things.safetensors": (
        safe(b"{%s}" % b",".join(b'"%d":{}' % i for i in range(10**6))),
        "the header has 1,000,001 objects",
    ),
    "no magic.gguf": (b"GGML" + bytes(64), "does not begin with GGUF"),
    "version.gguf": (b"GGUF" + bytes(64), "version 0"),
    "big endian.gguf": (b"GGUF" + struct.pack(">I", 3) + bytes(64), "other order of bytes"),
    "keys without end.gguf": (ggml(n_keys=2**60), "number of keys is"),
    "tensors without end.gguf": (ggml(n_tensors=2**60), "number of tensors is"),
    "a key of 10 GB.gguf": (
        ggml(struct.pack("<Q", 10**10), 1),
        "length of a key is 10,000,000,000",
    ),
    "a text of 10 GB.gguf": (
        ggml(text("k") + struct.pack("<IQ", 8, 10**8), 1),
        "takes 100,000,000 bytes",
    ),
    "a list of 10 GB.gguf": (
        ggml(text("k") + struct.pack("<IIQ", 9, 4, 10**10), 1),
        "takes 40,000,000,000",
    ),
    "lists in lists.gguf": (
        ggml(text("k") + struct.pack("<IIQ", 9, 9, 1), 1),
        "list of the type 9",
    ),
    "texts without end.gguf": (ggml(text("k") + struct.pack("<IIQ", 9, 8, 10**9), 1), "texts"),
    "a key twice.gguf": (ggml((text("k") + struct.pack("<IB", 7, 1)) * 2, 2), "'k' is there twice"),
    "a tensor twice.gguf": (ggml(b"", 0, described("a", 0) * 2, 2, 128), "'a' is there twice"),
    "overlapping.gguf": (
        ggml(b"", 0, described("a", 0) + described("b", 64), 2, 256),
        "in the bytes of another",
    ),
    "cut off.gguf": (ggml(b"", 0, described("a", 0), 1, 64), "cut off"),
    "another type.gguf": (ggml(b"", 0, described("a", 0, kind=99), 1, 128), "type 99"),
    "half a block.gguf": (ggml(b"", 0, described("a", 0, kind=12), 1, 128), "blocks of 256"),
    "dimensions.gguf": (ggml(b"", 0, described("a", 0, dims=99), 1, 128), "99 dimensions"),
    "misaligned.gguf": (ggml(b"", 0, described("a", 5), 1, 256), "does not divide by 32"),
    "alignment.gguf": (
        ggml(text("general.alignment") + struct.pack("<II", 4, 33), 1),
        "no power of two",
    ),
}


@each("name", WRONG)
def test_a_wrong_header_is_refused_at_once_and_by_name(name: str, tmp_path: Path) -> None:
    data, message = WRONG[name]
    (tmp_path / name).write_bytes(data)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    started = time.process_time()
    with pytest.raises(PlanError) as refused:
        document_of(*on_this_machine(str(tmp_path / name)))
    assert time.process_time() - started < 1
    assert message in str(refused.value)
    assert name in str(refused.value)


@pytest.mark.parametrize(
    "places", ["[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": "../b"}}', "["]
)
def test_a_wrong_index_is_refused(places: str, tmp_path: Path) -> None:
    saved(tmp_path / "model", {}, llama())
    (tmp_path / "model" / "model.safetensors.index.json").write_text(places)
    with pytest.raises(PlanError, match=r"index|is not there"):
        planned(tmp_path / "model")


# ---- the command, and a hub


def test_the_command_takes_weights_wherever_it_takes_a_model(tmp_path: Path) -> None:
    from memcore.cli import main

    total = saved(tmp_path / "model", {}, llama("float16"))
    assert main(["evaluate", str(tmp_path / "model")]) in (0, 1)
    assert main(["read", str(tmp_path / "model")]) == 0
    (tmp_path / "run.sh").write_text(f"vllm serve {tmp_path / 'model'} --max-model-len 1024\n")
    assert main(["read", str(tmp_path / "run.sh")]) == 0
    assert total


class Hub(http.server.BaseHTTPRequestHandler):
    """One model of a hub: its listing, and its files by ranges."""

    folder: Path
    asked: list[tuple[str, str, str]]

    def log_message(self, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        path, ranged = self.path.partition("?")[0], self.headers.get("Range", "")
        self.asked.append((path, ranged, self.headers.get("Authorization", "")))
        if path.startswith("/api/"):
            files = [
                {"type": "file", "path": p.name, "size": p.stat().st_size, "oid": "0" * 40}
                for p in self.folder.iterdir()
            ]
            listing = "/tree/" in path
            data, status = (
                json.dumps(files if listing else {"id": "org/model", "sha": "0" * 40}).encode(),
                200,
            )
        else:
            whole = (self.folder / path.rpartition("/")[2]).read_bytes()
            first, _, last = ranged.removeprefix("bytes=").partition("-")
            data = whole[int(first) : int(last) + 1 if last else None] if ranged else whole
            status = 206 if ranged else 200
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", '"0"')
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        if body:
            self.wfile.write(data)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[tuple[str, type[Hub]]]:
    pytest.importorskip("huggingface_hub")
    serves = type("Serves", (Hub,), {"folder": tmp_path / "model", "asked": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), serves)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", serves
    server.shutdown()
    server.server_close()


def asked_of_hub(name: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in its own process: huggingface_hub reads its switches as it is imported."""
    return subprocess.run(
        [sys.executable, "-m", "memcore.cli", "evaluate", name, "--json"],
        env={**os.environ, "HF_HUB_DISABLE_TELEMETRY": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_a_model_on_a_hub_is_read_by_ranges_of_its_headers(
    hub: tuple[str, type[Hub]], tmp_path: Path
) -> None:
    address, serves = hub
    shapes = llama() | {"model.embed_tokens.weight": ("bfloat16", (40_000, D))}
    shapes["lm_head.weight"] = "bfloat16", (40_000, D)
    total = saved(tmp_path / "model", {"vocab_size": 40_000}, shapes, 2)
    said = asked_of_hub(
        "hf://org/model", HF_ENDPOINT=address, HF_TOKEN="hf_secret", HF_HOME=str(tmp_path / "home")
    )
    assert said.stdout, said.stderr
    assert json.loads(said.stdout)["serve"]["weights_bytes"] == total
    weights = [
        ranged for path, ranged, _ in serves.asked if path.endswith(".safetensors") and ranged
    ]
    assert weights
    assert all(token == "Bearer hf_secret" for *_, token in serves.asked)
    sizes = [
        int(b) - int(a) + 1
        for a, _, b in (r.removeprefix("bytes=").partition("-") for r in weights)
    ]
    assert sum(sizes) < total / 2, "of a file its header alone is fetched"


def test_the_switch_that_keeps_off_the_hub_holds(
    hub: tuple[str, type[Hub]], tmp_path: Path
) -> None:
    address, serves = hub
    saved(tmp_path / "model", {}, llama())
    said = asked_of_hub(
        "hf://org/model", HF_ENDPOINT=address, HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path / "home")
    )
    assert said.returncode
    assert "offline" in said.stderr.lower()
    assert not serves.asked
    assert "Traceback" not in said.stderr
