"""Measure steps and generation on the GPU that is here, beside what Memplan says of them.

    python benchmarks/campaign.py jobs JOBS.jsonl [--gpu h100-sxm-80gb] [--only TEXT]
    python benchmarks/campaign.py run JOBS.jsonl OUT.jsonl [--seconds 500] [--device cuda]
    python benchmarks/campaign.py compare OUT.jsonl

`jobs` writes the plans; it needs Memplan. `run` needs torch with CUDA and transformers, for some
jobs peft, bitsandbytes, liger_kernel or torchao, and no Memplan: it can stand alone on a GPU's
machine. `compare` puts what Memplan says beside what was measured. Weights are random, nothing is
downloaded. Each job is forked from a process that has imported torch and not touched the GPU: one
that needs too much memory takes no other with it, and none waits for imports.

memory.allocated_bytes  torch.cuda.max_memory_allocated over all steps
memory.reserved_bytes   torch.cuda.max_memory_reserved over the same
memory.device_bytes     what the driver says is taken at the end, less what was taken before
time.step_seconds       median of the steps after the first ones, each awaited
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import json
import os
import select
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

GIB = 2**30
WARM = 3  # steps before: the optimizer's states are made in the first
STEPS = 10
PATIENCE = 4.0  # seconds of measured steps, after at least three of them
LIMIT = 75  # seconds for one job
PACKAGES = ("torch", "transformers", "peft", "bitsandbytes", "liger-kernel", "torchao")

USUAL = {  # of training: plain PyTorch, as the examples of transformers write it
    "framework": "pytorch",
    "zero": 0,
    "micro_batch": 2,
    "seq_len": 2048,
    "precision": "bf16-pure",
    "checkpointing": "none",
    "attention": "sdpa",
    "optimizer": "adamw",
    "allocator": "native",
}

PROFILED = ("llama-3.2-1b", "qwen3-0.6b", "gemma-3-1b")  # jobs whose kernels are told


def trainings() -> Iterator[tuple[str, dict[str, Any]]]:
    """The model and the changes from the usual of each training job, the most telling first."""
    full = {"checkpointing": "full"}
    lora = {"adapter": "lora", "lora_targets": "all-linear", "lora_rank": 16}
    qlora = lora | {"adapter": "qlora", "precision": "bf16-autocast"} | full
    small, middle, large = "llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b"
    for change in (
        {},
        {"micro_batch": 1, "seq_len": 512},
        {"micro_batch": 8, "seq_len": 512},
        {"micro_batch": 1, "seq_len": 8192} | full,
        full,
        {"attention": "eager", "seq_len": 1024},
        {"precision": "bf16-autocast"},
        {"precision": "fp32", "seq_len": 1024},
        {"allocator": "expandable"},
        {"optimizer": "adamw-foreach"},
        {"optimizer": "sgd"},
        {"optimizer": "sgd-momentum"},
        {"optimizer": "adam8bit"},
        {"optimizer": "paged-adamw8bit"},
        {"optimizer": "adafactor"},
        {"outputs": "kept"},
        {"grad_accumulation": 4},
        {"offload_activations": "cpu"},
        {"kernels": "liger", "cross_entropy": "chunked"},
        {"kernels": "compile"},
    ):
        yield small, change
    for model, change in (
        (middle, {"micro_batch": 1}),
        (middle, {"micro_batch": 4} | full),
        (middle, lora),
        (middle, qlora),
        (middle, {"kernels": "liger", "cross_entropy": "chunked"} | full),
        (large, lora | full),
        (large, lora | {"micro_batch": 1}),
        (large, {"adapter": "lora", "lora_rank": 64} | full | {"micro_batch": 1, "seq_len": 8192}),
        (large, qlora),
        (large, qlora | {"micro_batch": 8, "seq_len": 512}),
        (large, {"optimizer": "sgd"} | full),
        (large, {"optimizer": "paged-adamw8bit", "micro_batch": 1} | full),
        (large, {"optimizer": "adam8bit", "micro_batch": 4} | full),
        (large, lora | full | {"allocator": "expandable", "seq_len": 4096}),
    ):
        yield model, change
    for model in (
        "qwen3-0.6b",
        "qwen3-1.7b",
        "gemma-3-1b",
        "gemma-2-2b",
        "qwen2.5-1.5b",
        "smollm2-360m",
        "olmoe-1b-7b",
        "granite-3.1-1b-a400m",
        "phi-2",
        "opt-1.3b",
        "pythia-1.4b",
        "gpt2-xl",
        "bloom-1b1",
        "starcoder2-3b",
        "stablelm-2-1.6b",
        "lfm2-1.2b",
    ):
        own = {"seq_len": 1024} if model in ("gpt2-xl", "phi-2", "starcoder2-3b") else {}
        yield model, own | ({} if model != "olmoe-1b-7b" else full | {"optimizer": "sgd"})
    for model in ("bert-large", "modernbert-large", "deberta-v3-large", "electra-small"):
        yield model, {"micro_batch": 16, "seq_len": 512}
    for model, change in (
        ("vit-large", {"micro_batch": 64, "seq_len": 197, "precision": "bf16-autocast"}),
        ("t5-large", {"micro_batch": 8, "seq_len": 512, "target_len": 128, "attention": "eager"}),
        ("whisper-medium", {"micro_batch": 4, "seq_len": 1500, "target_len": 128}),
        ("qwen3-4b", full),
        ("qwen3-8b", lora | full),
        ("mistral-7b-v0.3", qlora | {"seq_len": 4096}),
        ("qwen3-0.6b", {"micro_batch": 8}),
        ("qwen3-0.6b", {"micro_batch": 1, "seq_len": 512}),
        ("qwen2.5-0.5b", {"micro_batch": 8, "precision": "bf16-autocast", "seq_len": 1024}),
        ("gemma-3-1b", full | {"micro_batch": 4}),
        ("smollm2-135m", {"micro_batch": 32, "seq_len": 512}),
        ("gpt2", {"micro_batch": 16, "seq_len": 1024, "precision": "bf16-autocast"}),
    ):
        yield model, change


def servings() -> Iterator[tuple[str, dict[str, Any]]]:
    """The model and the load of each generation job: transformers' own generate."""
    for model in ("llama-3.2-1b", "llama-3.1-8b"):
        for batch, prompt in ((1, 512), (1, 4096), (16, 512), (64, 512)):
            yield model, {"concurrency": batch, "prompt_len": prompt}


# ---- one job, in a process of its own


def made(model: dict[str, Any], words: dict[str, Any], device: str) -> tuple[Any, Any]:
    """The model of a job on the device, and its optimizer (None where nothing is trained)."""
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(**model)
    attention = "eager" if words.get("attention") == "eager" else "sdpa"
    pure = words.get("precision", "bf16-pure") == "bf16-pure"
    dtype = torch.bfloat16 if pure or adapter_of(words) else torch.float32
    if words.get("kernels") == "liger":
        from liger_kernel.transformers import apply_liger_kernel_to_llama

        apply_liger_kernel_to_llama()
    cls = getattr(transformers, (config.architectures or ["AutoModelForMaskedLM"])[0])
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = config.pad_token_id = 0
    build = cls._from_config if hasattr(cls, "_from_config") else cls.from_config
    with torch.device(device):
        net = build(config, attn_implementation=attention, dtype=dtype)
    if not words.get("optimizer"):
        return net.eval(), None
    net.train()
    if words["adapter"].startswith("qlora"):
        net = in_four_bits(net)
    if words["checkpointing"] == "full":
        net.gradient_checkpointing_enable({"use_reentrant": False})
        net.config.use_cache = False
    if adapter_of(words):
        import peft

        targets = {
            "attention": ["q_proj", "v_proj"],
            "attention-all": ["q_proj", "k_proj", "v_proj", "o_proj"],
            "all-linear": "all-linear",
        }[words["lora_targets"]]
        if words["adapter"] != "lora":
            net = peft.prepare_model_for_kbit_training(
                net,
                use_gradient_checkpointing=words["checkpointing"] == "full",
                gradient_checkpointing_kwargs={"use_reentrant": False},
            )
        elif words["checkpointing"] == "full":  # as PEFT does
            net.enable_input_require_grads()
        adapter = peft.LoraConfig(
            r=words["lora_rank"], target_modules=targets, task_type="CAUSAL_LM"
        )
        net = peft.get_peft_model(net, adapter)
    if words["kernels"] == "compile":
        for layer in net.model.layers:
            layer.compile()
    return net, optimizer_of(words, [p for p in net.parameters() if p.requires_grad])


def adapter_of(words: dict[str, Any]) -> bool:
    return words.get("adapter", "none") != "none"


def in_four_bits(net: Any) -> Any:
    """The model with its layers' matrices in nf4 with double quantization, as loading makes it."""
    import bitsandbytes as bnb
    import torch
    from transformers import BitsAndBytesConfig

    def change(module: Any, path: str = "") -> None:
        for name, child in module.named_children():
            if isinstance(child, torch.nn.Linear) and name != "lm_head":
                new = bnb.nn.Linear4bit(
                    child.in_features,
                    child.out_features,
                    bias=child.bias is not None,
                    compute_dtype=torch.bfloat16,
                    compress_statistics=True,
                    quant_type="nf4",
                )
                new.weight = bnb.nn.Params4bit(
                    child.weight.data,
                    requires_grad=False,
                    compress_statistics=True,
                    quant_type="nf4",
                )
                if child.bias is not None:
                    new.bias = child.bias
                setattr(module, name, new.to(child.weight.device))
            else:
                change(child, f"{path}.{name}")

    change(net)
    net.is_loaded_in_4bit = True
    net.is_quantized = True
    net.config.quantization_config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    return net


def optimizer_of(words: dict[str, Any], trained: list[Any]) -> Any:
    import torch

    name, lr = words["optimizer"], 1e-5
    if name in ("adam8bit", "paged-adamw8bit"):
        import bitsandbytes as bnb

        return (bnb.optim.AdamW8bit if name == "adam8bit" else bnb.optim.PagedAdamW8bit)(
            trained, lr
        )
    if name == "adafactor":
        from transformers.optimization import Adafactor

        return Adafactor(trained, lr=lr, scale_parameter=False, relative_step=False)
    return {
        "adamw": lambda: torch.optim.AdamW(trained, lr, fused=True),
        "adamw-foreach": lambda: torch.optim.AdamW(trained, lr, foreach=True),
        "sgd": lambda: torch.optim.SGD(trained, lr),
        "sgd-momentum": lambda: torch.optim.SGD(trained, lr, momentum=0.9),
    }[name]()


def batch_of(net: Any, words: dict[str, Any], device: str) -> dict[str, Any]:
    """One micro-batch of the kind that the model reads."""
    import torch

    config, rows = net.config, words["micro_batch"]
    vocabulary = getattr(config, "vocab_size", None)
    if hasattr(config, "image_size") and hasattr(config, "patch_size"):
        side = config.image_size
        images = torch.randn(rows, config.num_channels, side, side, device=device)
        return {
            "pixel_values": images,
            "labels": torch.zeros(rows, dtype=torch.long, device=device),
        }

    def tokens(length: int) -> Any:
        return torch.randint(5, vocabulary, (rows, length), device=device)

    if hasattr(config, "num_mel_bins"):
        frames = 2 * config.max_source_positions
        sound = torch.randn(rows, config.num_mel_bins, frames, device=device)
        return {"input_features": sound.to(net.dtype), "labels": tokens(words["target_len"])}
    if getattr(config, "is_encoder_decoder", False):
        return {"input_ids": tokens(words["seq_len"]), "labels": tokens(words["target_len"])}
    inputs = tokens(words["seq_len"])
    return {"input_ids": inputs, "labels": inputs}


def train(job: dict[str, Any], device: str) -> dict[str, Any]:
    """Bytes and seconds of one step."""
    import torch

    cuda, words = device == "cuda", job["plan"]["train"]
    net, optimizer = made(job["model"], words, device)
    batch = batch_of(net, words, device)
    if cuda:  # what making the model took is not part of a step
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    autocast = words["precision"] == "bf16-autocast"
    offload = words["offload_activations"] == "cpu"
    kept = None

    def awaited() -> float:
        if cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    def step() -> tuple[float, float, float]:
        nonlocal kept
        forwards = backwards = 0.0
        for _ in range(words["grad_accumulation"]):
            start = awaited()
            saving = (
                torch.autograd.graph.save_on_cpu(pin_memory=True)
                if offload
                else contextlib.nullcontext()
            )
            with saving, torch.autocast(device, torch.bfloat16, enabled=autocast):
                if words["outputs"] == "kept":
                    kept = net(**batch)
                    loss = kept.loss
                else:
                    loss = net(**batch).loss
            forward = awaited()
            loss.backward()
            forwards += forward - start
            backwards += awaited() - forward
        before = awaited()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return forwards, backwards, awaited() - before

    for _ in range(WARM):
        step()
    phases: list[tuple[float, float, float]] = []
    start = time.perf_counter()
    while len(phases) < 3 or (len(phases) < STEPS and time.perf_counter() - start < PATIENCE):
        phases.append(step())
    found = {
        "time.step_seconds": statistics.median(map(sum, phases)),
        "phases": [statistics.median(p) for p in zip(*phases, strict=True)],
        "steps": [sum(p) for p in phases],
        "parameters": sum(p.numel() for p in net.parameters()),
    }
    if job.get("profile") and cuda:
        found["kernels"] = kernels_of(step)
    return found


def generate(job: dict[str, Any], device: str) -> dict[str, Any]:
    """Bytes and seconds of transformers' generate: the prompt, then each token."""
    import torch

    words = job["plan"]["serve"]
    net, _ = made(job["model"], {}, device)
    shape = words["concurrency"], words["prompt_len"]
    prompt = torch.randint(5, net.config.vocab_size, shape, device=device)

    def timed(tokens: int) -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        with torch.no_grad():
            net.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                do_sample=False,
                pad_token_id=0,
            )
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    timed(4)
    first = min(timed(1) for _ in range(3))
    tokens = words["output_len"]
    whole = timed(tokens)
    return {"first_seconds": first, "token_seconds": (whole - first) / (tokens - 1)}


def kernels_of(step: Any) -> list[list[Any]]:
    """Name, calls and seconds of the kernels of one step, the longest first."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        step()
        torch.cuda.synchronize()
    rows = [
        [e.key[:150], e.count, e.device_time_total / 1e6]
        for e in recorded.key_averages()
        if e.device_time_total
    ]
    return sorted(rows, key=lambda r: -r[2])[:40]


def taken() -> int:
    """Bytes of the GPU that the driver says are taken, without a context of our own."""
    import pynvml

    pynvml.nvmlInit()
    return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)


def measure(job: dict[str, Any], device: str) -> dict[str, Any]:
    """The figures of one job; runs in a process of its own."""
    import torch

    cuda = device == "cuda"
    before = 0
    if cuda:
        with contextlib.suppress(Exception):
            before = taken()
        if job["plan"].get("train", {}).get("allocator") == "expandable":
            torch.cuda.memory._set_allocator_settings("expandable_segments:True")
        torch.cuda.init()
        torch.zeros(1, device=device)
        context = 0
        with contextlib.suppress(Exception):
            context = taken() - before
    found = (train if "train" in job["plan"] else generate)(job, device)
    if cuda:
        stats = torch.cuda.memory_stats()
        found |= {
            "memory.allocated_bytes": torch.cuda.max_memory_allocated(),
            "memory.reserved_bytes": torch.cuda.max_memory_reserved(),
            "retries": stats["num_alloc_retries"],
            "context_bytes": context,
            "free_and_total": torch.cuda.mem_get_info(),
            "gpu": torch.cuda.get_device_name(),
            "cuda": torch.version.cuda,
            "capability": torch.cuda.get_device_capability(),
        }
        with contextlib.suppress(Exception):
            found["memory.device_bytes"] = taken() - before
    return found


def fork(job: dict[str, Any], device: str) -> tuple[int, int, int]:
    """A process that has imported what the job needs and waits; its number, where it answers and
    where it is told to begin."""
    answers, answer = os.pipe()
    told, tell = os.pipe()
    child = os.fork()
    if child:
        os.close(answer)
        os.close(told)
        return child, answers, tell
    os.close(answers)
    os.close(tell)
    with os.fdopen(answer, "w") as out:
        try:
            imports(job)
            os.read(told, 1)
            out.write(json.dumps(measure(job, device)))
        except BaseException as e:
            where = "".join(traceback.format_exception(e))[-1500:]
            out.write(json.dumps({"failed": f"{type(e).__name__}: {e}"[:400], "where": where}))
    os._exit(0)


def imports(job: dict[str, Any]) -> None:
    """Import what takes seconds, but touch no GPU."""
    import transformers

    words = job["plan"].get("train", {})
    for name in job["model"].get("architectures") or ["AutoModelForMaskedLM"]:
        getattr(transformers, name)
    if adapter_of(words):
        __import__("peft")
    if words.get("adapter") == "qlora" or "8bit" in words.get("optimizer", ""):
        __import__("bitsandbytes")


def result(waiting: tuple[int, int, int], limit: float) -> dict[str, Any]:
    """The figures of a job that waits, or the reason that there are none."""
    child, answers, tell = waiting
    os.write(tell, b"1")
    text, end = b"", time.monotonic() + limit
    while time.monotonic() < end:
        if select.select([answers], [], [], 0.5)[0]:
            part = os.read(answers, 1 << 20)
            if not part:
                break
            text += part
    else:
        os.kill(child, signal.SIGKILL)
    os.close(answers)
    os.close(tell)
    os.waitpid(child, 0)
    return json.loads(text) if text else {"failed": f"nothing within {limit:.0f} s"}


# ---- all of them


def write_jobs(out: Path, gpu: str, only: str, every: bool = False) -> None:
    """The jobs as JSON lines, each plan with every word of it; those that do not fit are left out,
    but for `every`."""
    from memcore import Plan, PlanError, evaluate

    presets = Path(__file__).parent.parent / "presets" / "models"
    jobs: list[dict[str, Any]] = []
    for kind, those in (("train", trainings()), ("serve", servings())):
        for model, change in those:
            words = USUAL | change if kind == "train" else {"engine": "transformers"} | change
            name = " ".join([model, *(f"{k}={v}" for k, v in change.items())])
            short = {"model": model, "cluster": {"gpu": gpu, "gpus": 1}, kind: words}
            try:
                plan = Plan.of(short)
            except PlanError as e:
                print(f"{name}: {e}; with eager attention")
                words["attention"] = "eager"  # some families of transformers have no other
                plan = Plan.of(short)
            fits = every or kind == "serve" or evaluate(plan).memory.fits
            if only not in name or not fits:
                continue
            whole = getattr(plan, kind).model_dump(mode="json")
            jobs.append(
                {
                    "name": name,
                    "short": short,
                    "plan": {kind: whole},
                    "model": json.loads((presets / f"{model}.json").read_text())["config"],
                    "profile": name in PROFILED,
                }
            )
    out.write_text("".join(json.dumps(job) + "\n" for job in jobs))
    print(f"{len(jobs)} jobs")


def run(jobs: Path, out: Path, seconds: float, device: str) -> None:
    """Each job's figures as a line of OUT, until the time is over."""
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # a look that leaves CUDA to the forks
    import torch  # noqa: F401
    import transformers  # noqa: F401

    end = time.monotonic() + seconds
    versions = {}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    date = datetime.now(UTC).date().isoformat()
    done = (
        {json.loads(row)["name"] for row in out.read_text().splitlines()} if out.exists() else set()
    )
    todo = [
        job for job in map(json.loads, jobs.read_text().splitlines()) if job["name"] not in done
    ]
    ahead = [fork(job, device) for job in todo[:1]]
    for job, following in itertools.zip_longest(todo, todo[1:]):
        start, waiting = time.monotonic(), ahead.pop()
        if start > end - 5:
            os.kill(waiting[0], signal.SIGKILL)
            print("not run:", job["name"], "and what follows")
            break
        if following:
            ahead.append(fork(following, device))
        found = result(waiting, min(LIMIT, end - start))
        row = {"name": job["name"], "plan": job["short"]} | found
        with out.open("a") as lines:
            lines.write(json.dumps(row | {"versions": versions, "date": date}) + "\n")
        told = found.get("failed") or " ".join(
            f"{k}={v:.4g}" for k, v in found.items() if isinstance(v, int | float)
        )
        print(f"{time.monotonic() - start:5.1f} s  {job['name']}: {told}", flush=True)


def compare(out: Path) -> None:
    """What was measured beside what Memplan says."""
    from memcore import Plan, evaluate

    for text in out.read_text().splitlines():
        row = json.loads(text)
        if "failed" in row:
            print(f"{row['name']}: {row['failed']}")
            continue
        report, told = evaluate(Plan.of(row["plan"])), []
        for field, value in row.items():
            if field.startswith(("memory.", "time.")):
                ours: Any = report
                for name in field.split("."):
                    ours = getattr(ours, name)
                between = (
                    f"{ours[0] / GIB:.3f}-{ours[1] / GIB:.3f}" if isinstance(ours, tuple) else ""
                )
                size = f"{value / GIB:.3f} GiB" if "bytes" in field else f"{value * 1e3:.2f} ms"
                off = between or f"{ours / value - 1:+.2%}"
                told.append(f"{field.partition('.')[2]} {size} {off}")
        print(f"{row['name']}: {', '.join(told)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("jobs", "run", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--gpu", default="h100-sxm-80gb", help="this GPU, as Memplan calls it")
    parser.add_argument("--only", default="", help="jobs whose name has this text")
    parser.add_argument("--seconds", type=float, default=3600, help="no job starts after them")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    words = parser.parse_args()
    if words.what == "jobs":
        write_jobs(words.file, words.gpu, words.only)
    elif words.what == "compare":
        compare(words.file)
    elif words.out:
        run(words.file, words.out, words.seconds, words.device)
    else:
        parser.error("say the file that the rows go to")


if __name__ == "__main__":
    sys.exit(main())
