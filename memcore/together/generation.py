"""Generation: how long an engine takes to generate the rollouts of a step."""

from __future__ import annotations

from dataclasses import dataclass

from memcore.plan.plan import Plan
from memcore.serving.serve import serve
from memcore.together.scene import engine_plan


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
