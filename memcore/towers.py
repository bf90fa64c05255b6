"""Towers while serving: what runs once for a prompt, before the layers: an encoder, with the keys
and values that every decoder layer keeps of its result, or what makes tokens of images.

An engine profiles images as vLLM does (gpu_model_runner.profile_run and MultiModalBudget): as many
as a forward of max_batched_tokens may bring, and their tokens stay while the layers run.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memcore.blocks import build, structure_of
from memcore.dims import MERGED, B, D, Number, S, Shape, of_stack
from memcore.ledger import INFERENCE, Amounts, window
from memcore.memory import layers_of
from memcore.model import Model
from memcore.roofline import Execution, executions
from memcore.structure import IDLE
from memcore.tape import Tape

if TYPE_CHECKING:
    from memcore.serving import Server

PROFILED = (
    "vLLM: encoder budget of max_num_batched_tokens, or of one image where that is more, and "
    "images per prompt times sequences (vllm/v1/worker/utils.py, MultiModalBudget)"
)
FEATURES_STAY = (
    "vLLM's encoder cache holds them while the layers run (gpu_model_runner.profile_run)"
)
PAGES_OF_ENCODER = (
    "vLLM gives keys and values of an encoder blocks of their own, for all of its tokens at once "
    "(vllm/v1/core/single_type_kv_cache_manager.py, CrossAttentionManager)"
)


@dataclass(frozen=True, slots=True)
class Tower:
    """tapes    embedding, layers, and what leads from them to the main stack; how many of each
    timed    the same with the kernels that run
    layers   how many of them are layers
    """

    tapes: tuple[tuple[Tape, int], ...]
    timed: tuple[tuple[Tape, int], ...]
    layers: int

    @classmethod
    def of(cls, model: Model, compute: str, kernels: str, trimmed: bool) -> Tower | None:
        """`trimmed`: layers behind those whose result is read are not even loaded, as vLLM does
        (vllm/model_executor/models/llava.py, init_vision_tower_for_llava)."""
        if not model.tower:
            return None
        kinds, stack = layers_of(model)

        def parts(kernels: str) -> tuple[tuple[Tape, int], ...]:
            structure = structure_of(model, kernels=kernels, dtype=compute, served=True)
            blocks = build(structure, kinds)
            run = (
                (tape, n)
                for kind, tape, n in zip(kinds, blocks.layers, stack.counts, strict=True)
                if kind.place and not (trimmed and kind.place == IDLE)
            )
            return ((blocks.embed, 1), *run)

        tapes = parts("hf")
        return cls(tapes, parts(kernels), sum(n for _, n in tapes[1:-1]))

    @property
    def executions(self) -> tuple[Execution, ...]:
        """What one forward of it runs, attention included."""
        return _run(tuple(t for t, _ in self.timed), tuple(n for _, n in self.timed))


@functools.lru_cache(maxsize=256)
def _run(tapes: tuple[Tape, ...], counts: tuple[int, ...]) -> tuple[Execution, ...]:
    return tuple(e for e in executions(tapes, counts) if in_forward(e))


def in_forward(e: Execution) -> bool:
    return e.work.phase == "forward" and bool(e.work.traffic or e.work.flops)


def of_encoder(e: Execution) -> bool:
    """Whether an operation of a decoder layer works on the encoder's tokens: it makes the keys and
    values that the layer keeps, once for a prompt."""
    shapes = (*(s for _, s in e.work.flops), *(s for s, _, _ in e.work.traffic))
    return any("." in str(factor) for shape in shapes for factor in shape)


def images(server: Server) -> int:
    """Images of one prompt; of a model that reads none, 0."""
    tower = server.plan.architecture.tower
    return server.plan.serve.images if tower and tower.image else 0


def profiled(server: Server) -> int:
    """The most images of one forward: PROFILED; without pages, those of as many prompts as it
    has room for."""
    tower, s = server.plan.architecture.tower, server.plan.serve
    if not (tower and tower.image and s.images):
        return 0
    if not server.manager.pages:
        return prompts(server) * s.images
    budget = max(s.max_batched_tokens, tower.image.prompted)
    return max(1, min(budget // tower.image.prompted, s.concurrency * s.images))


def prompts(server: Server) -> int:
    """Whole prompts of the largest forward."""
    s = server.plan.serve
    return max(1, s.max_batched_tokens // s.prompt_len)


def features(server: Server) -> Shape:
    """What a tower makes for the main stack, of all that it reads at once."""
    stack = server.plan.architecture.stack_before
    tokens = S if server.plan.architecture.encoder_decoder else MERGED
    return (of_stack(stack, B), of_stack(stack, tokens), D)


def of_prompt(server: Server) -> Amounts:
    """Sizes of what runs once for one prompt."""
    return server.amounts(1, server.plan.serve.prompt_len, images(server))


def rows(server: Server) -> tuple[int, int]:
    """Sequences and tokens of each that the tower reads of one prompt."""
    tower = server.plan.architecture.tower
    if tower and tower.image:
        return images(server), tower.image.tokens
    return 1, server.plan.serve.prompt_len


def fullest(server: Server, amounts: Amounts) -> Tape | None:
    """The part of a tower that needs the most memory; None where none runs."""
    parts: Iterable[tuple[Tape, int]] = server.tower.tapes if server.tower else ()
    runs = [t for t, _ in parts] if runs_tower(server) else []
    return max(runs, key=lambda t: window(t, INFERENCE).peak(amounts)[0], default=None)


def runs_tower(server: Server) -> bool:
    """Whether prompts have something for it to read."""
    return server.tower is not None and all(rows(server))


def memory(server: Server, amounts: Amounts) -> tuple[Number, Number]:
    """The most that a tower needs at once, and what stays of its result while the layers run."""
    tape = fullest(server, amounts)
    if tape is None:
        return 0, 0
    dtype = server.compute
    return window(tape, INFERENCE).peak(amounts)[0], amounts.bytes(features(server), dtype)
