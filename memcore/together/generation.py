"""Generation: how long an engine takes to generate the rollouts of a step."""

from __future__ import annotations

import math
from dataclasses import dataclass

from memcore.plan.plan import Plan
from memcore.serving.serve import serve
from memcore.together.scene import engine_plan
from memcore.units import seconds_text


@dataclass(frozen=True, slots=True)
class Generation:
    """Of one step. rollouts: of one engine, all of them asked for at once; running: of them at a
    time, as many as have room; engines: on the GPUs; seconds: until the last has its last token,
    where each engine stays as full as it begins."""

    rollouts: int
    running: int
    engines: int
    seconds: float


def generation(plan: Plan) -> Generation | None:
    """The rollouts of a step, generated; None where none are, or not one has room."""
    if plan.together.kind not in ("grpo", "ppo"):
        return None
    alone = engine_plan(plan)
    ranks = plan.engine_tp * plan.engine_pp
    rollouts = plan.together.rollouts * ranks
    own = alone.serve.model_copy(update={"concurrency": rollouts})
    engine = serve(alone.model_copy(update={"serve": own}))
    prompt, output = engine.prompt_token_seconds, engine.output_token_seconds
    if prompt is None or output is None:
        return None
    each = plan.serve.prompt_len * prompt + plan.serve.output_len * output
    return Generation(rollouts, engine.running, max(1, plan.cluster.gpus // ranks), rollouts * each)


def step_text(plan: Plan, made: Generation, step_seconds: float) -> tuple[str, str]:
    """How long the rollouts of a step take to generate; and how long to train on, in steps that
    take so many seconds."""
    s, several = plan.serve, made.engines > 1
    engines = f"each of {made.engines:,} engines" if several else "the engine"
    steps = math.ceil(made.rollouts * made.engines * plan.train.seq_len / plan.tokens_per_step)
    once = "" if made.running >= made.rollouts else f", {made.running:,} at a time"
    generated = (
        f"A step generates {made.rollouts:,} rollouts on {engines} in about "
        f"{seconds_text(made.seconds)}, of {s.prompt_len:,} + {s.output_len:,} tokens{once}."
    )
    trained = (
        f"To train on all of them once takes {steps:,} × {seconds_text(step_seconds)} = "
        f"{seconds_text(steps * step_seconds)}. Where outputs differ in length, generation lasts "
        "until the longest is done."
    )
    return generated, trained
