"""Scene: who is on the GPU, phase by phase, where training and serving share it.

A step goes through phases: an engine generates rollouts, frozen models score them, and the policy
(and a critic) is updated. What one phase leaves on the GPU counts in the next. Every part is the
training step's or the server's own figure, or rows of the same tapes.

Follows verl (verl/workers/fsdp_workers.py: actor, rollout and reference in one process, sleep mode,
param_offload and optimizer_offload) and TRL's GRPOTrainer with vllm_mode="colocate".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from memcore.layers.ops import VALUE
from memcore.models.blocks import build
from memcore.plan.plan import Plan
from memcore.plan.sections import Parallel
from memcore.plan.sections import Together as TogetherWords
from memcore.report import Memory, Serve
from memcore.step.step import WORKSPACES, Alive, Instant, Step
from memcore.step.step import resident as living
from memcore.tape.dims import Dim, S
from memcore.tape.ledger import INFERENCE, Amounts, Group, Template, window
from memcore.training.memory import instant_bytes

PARTS = {
    "policy": "Policy",
    "critic": "Critic",
    "reference": "Reference",
    "reward": "Reward model",
    "rollouts": "Rollouts",
    "engine_weights": "Engine weights",
    "engine_activations": "Engine activations",
    "kv_cache": "KV cache",
}
TRAINERS = ("policy", "critic", "reference", "reward", "rollouts")  # in PyTorch's allocator
PHASES = {
    "generation": "Generation",
    "hand-over": "Weights to the engine",
    "scoring-policy": "Scoring with the policy",
    "scoring-critic": "Scoring with the critic",
    "scoring-reference": "Scoring with the reference",
    "scoring-reward": "Scoring with the reward model",
    "update-policy": "Policy update",
    "update-critic": "Critic update",
}
ROLLOUTS = Dim("ROLLOUTS", "sequences that one GPU keeps of a step")
VERL = "verl/protocol.py: DataProto, the batch of one worker"
KEPT = (
    *(("input_ids", "int64"), ("attention_mask", "int64"), ("position_ids", "int64")),
    *(("response_mask", "int64"), ("old_log_probs", "fp32"), ("ref_log_prob", "fp32")),
    *(("token_level_rewards", "fp32"), ("advantages", "fp32"), ("returns", "fp32")),
)


@dataclass(frozen=True)
class Scene:
    """What phases are made of: the training step with its report, and the engine."""

    plan: Plan
    step: Step
    sizes: Amounts
    memory: Memory
    engine: Serve

    @cached_property
    def amounts(self) -> Amounts:
        return Amounts(self.sizes.sizes | {"ROLLOUTS": self.plan.together.rollouts})

    @cached_property
    def critic(self) -> Step:
        """The same step with a head of one number for each token."""
        s = self.step.blocks.structure
        traits = replace(s.traits, tied_embeddings=False)
        structure = replace(s, cross_entropy=VALUE, traits=traits, depths=None)
        return replace(self.step, blocks=build(structure, self.step.blocks.kinds))

    def resting(self, step: Step) -> Instant:
        """A frozen model between its forwards: weights in the dtype that they compute in."""
        return Instant("resting", "Resting", _frozen(step).every("resident"))

    def states(self, step: Step) -> Instant:
        """What the trainer keeps of a model from step to step. cuBLAS's workspaces are those of
        whoever runs."""
        states = [(group, n) for group, n in living(step) if group is not WORKSPACES]
        return Instant("states", "Between steps", states)

    def forward(self, step: Step) -> Instant:
        """The fullest moment of a forward that saves nothing, besides the resting weights."""
        step = _frozen(step)
        root: Alive = []
        if step.sharded:
            root = [*step.at_first((step.embed.gathered, 1))]
            root += step.at_last((step.head.gathered, 1))
        parts = [
            Instant(
                "scoring",
                "Scoring",
                [*root, *([(step.layer(k).gathered, 2)] if step.sharded else [])],
                window(tape, INFERENCE),
            )
            for k, tape in enumerate(step.blocks.layers)
        ]
        if step.last:
            parts.append(Instant("scoring", "Scoring", root, window(step.blocks.head, INFERENCE)))
        return max(parts, key=lambda i: instant_bytes(i, self.amounts)[0])

    def update(self, step: Step) -> Instant:
        """The peak of a training step."""
        return max(step.instants, key=lambda i: instant_bytes(i, self.amounts)[0])

    @property
    def arriving(self) -> Instant:
        """A layer's whole weights on their way into the engine."""
        step = _frozen(self.step)
        layer = [(step.layer(0).gathered, 1)] if step.sharded else []
        return Instant("hand-over", "Weights to the engine", list(layer))

    @property
    def batch(self) -> Instant:
        """What a step keeps of its rollouts."""
        ppo = self.plan.together.kind == "ppo"
        rows = Group.of(
            Template(
                name, "workspace", (ROLLOUTS, S), dtype, "a step", "kept of the rollouts", VERL,
                "assumed",
            )
            for name, dtype in (*KEPT, *([("values", "fp32")] if ppo else []))
        )  # fmt: skip
        return Instant("rollouts", "Rollouts", [(rows, 1)])


def _frozen(step: Step) -> Step:
    copies = step.copies
    return replace(step, copies=replace(copies, resident=copies.compute, master=""))


def engine_plan(plan: Plan) -> Plan:
    """The engine alone: the plan's serving over its own ranks."""
    serve = plan.serve.model_copy(update={"tp": plan.engine_tp, "pp": plan.engine_pp})
    alone = {"serve": serve, "parallel": Parallel(), "together": TogetherWords()}
    return plan.model_copy(update=alone)


Parts = dict[str, list[Instant] | str]  # moments whose rows are alive, or a field of Serve


def cast_of(scene: Scene) -> dict[str, Parts]:
    """Who is on the GPU in each phase, with what."""
    t = scene.plan.together
    learns = t.kind in ("grpo", "ppo")
    critic = t.kind == "ppo"
    reference = t.reference if learns and scene.plan.train.adapter == "none" else "none"
    reward = t.reward if learns else "none"
    step = scene.step
    resting = scene.resting(step)
    headed = scene.resting(scene.critic) if reward != "none" else resting
    states = {"policy": [scene.states(step)]}
    if critic:
        states["critic"] = [scene.states(scene.critic)]
    frozen: dict[str, list[Instant]] = {}
    if reference == "gpu":
        frozen["reference"] = [resting]
    if reward == "gpu":
        frozen["reward"] = [headed]
    batch = {"rollouts": [scene.batch]} if learns else {}
    engine: Parts = {"engine_weights": "weights_bytes", "kv_cache": "kv_budget_bytes"}
    awake: Parts = {**engine, "engine_activations": "activation_bytes"}
    kept = {"all": (), "cache": ("engine_weights",), "nothing": tuple(engine)}[t.asleep]
    asleep: Parts = {name: engine[name] for name in kept}
    meanwhile = states if t.trainer == "stays" else {}

    phases: dict[str, Parts] = {
        "hand-over": {
            **states, **frozen, **batch, **asleep,
            "policy": [*states["policy"], scene.arriving],
            "engine_weights": engine["engine_weights"],
        }
    }  # fmt: skip
    phases["generation"] = {**meanwhile, **frozen, **batch, **awake}
    training: Parts = {**states, **frozen, **batch, **asleep}
    if learns:
        forward = scene.forward(step)
        phases["scoring-policy"] = {**training, "policy": [*states["policy"], forward]}
        if reference != "none":
            phases["scoring-reference"] = {**training, "reference": [resting, forward]}
        if reward != "none":
            scoring = scene.forward(scene.critic)
            phases["scoring-reward"] = {**training, "reward": [headed, scoring]}
        if critic:
            scoring = scene.forward(scene.critic)
            phases["scoring-critic"] = {**training, "critic": [*states["critic"], scoring]}
    phases["update-policy"] = {**training, "policy": [scene.update(step)]}
    if critic:
        phases["update-critic"] = {**training, "critic": [scene.update(scene.critic)]}
    return phases


def at_host(scene: Scene) -> dict[str, Instant]:
    """What one GPU's share in host DRAM is, at its fullest."""
    t = scene.plan.together
    instants: dict[str, Instant] = {}
    if t.trainer == "host":
        instants["policy"] = scene.states(scene.step)
        if t.kind == "ppo":
            instants["critic"] = scene.states(scene.critic)
    if t.kind in ("grpo", "ppo"):
        if t.reference == "host" and scene.plan.train.adapter == "none":
            instants["reference"] = scene.resting(scene.step)
        if t.reward == "host":
            instants["reward"] = scene.resting(scene.critic)
    return instants


def bytes_of(scene: Scene, part: list[Instant] | str) -> int:
    """Bytes of one part on one GPU."""
    if isinstance(part, str):
        return int(getattr(scene.engine, part))
    return sum(int(instant_bytes(i, scene.amounts)[0]) for i in part)
