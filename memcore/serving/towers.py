"""Towers while serving: what runs once for a prompt, before the layers: an encoder, with the keys
and values that every decoder layer keeps of its result, or what makes tokens of images.

An engine profiles images as vLLM does (gpu_model_runner.profile_run and MultiModalBudget): as many
as a forward of max_batched_tokens may bring, and their tokens stay while the layers run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from memcore.serving.server import images
from memcore.tape.dims import MERGED, B, D, S, Shape, of_stack
from memcore.tape.ledger import INFERENCE, Amounts, window
from memcore.tape.tape import Tape
from memcore.words.engines import VLLM

if TYPE_CHECKING:
    from memcore.serving.server import Server

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


def features(server: Server) -> Shape:
    """What a tower makes for the main stack, of all that it reads at once, DeepStack's with it."""
    model = server.plan.architecture
    stack = model.stack_before
    tokens = S if model.encoder_decoder else MERGED
    one = (of_stack(stack, B), of_stack(stack, tokens), D)
    deep = model.tower.traits.deepstack if model.tower else 0
    return (1 + deep, *one) if deep else one


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
    runs = [t for t, _ in parts] if takes_room(server) else []
    return max(runs, key=lambda t: window(t, INFERENCE).peak(amounts)[0], default=None)


def tries_images(server: Server) -> bool:
    """Whether an engine starts with images of the largest size, whatever prompts will have."""
    tower = server.plan.architecture.tower
    return bool(server.plan.engine == VLLM and tower and tower.image and tower.image.most)


def takes_room(server: Server) -> bool:
    """Whether a forward needs room for a tower's work."""
    return runs_tower(server) or tries_images(server)


def runs_tower(server: Server) -> bool:
    """Whether prompts have something for it to read."""
    return server.tower is not None and all(rows(server))
