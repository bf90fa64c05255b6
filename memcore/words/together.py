"""Words of training and serving on the same GPUs."""

from __future__ import annotations

from memcore.words.word import Word

# What else runs on the GPUs that train, and where each part of it rests meanwhile.
TOGETHER = {
    "none": Word("Nothing", "The GPUs only train, or only serve."),
    "evaluation": Word(
        "Evaluation",
        "Between steps an engine generates with the trained weights; nothing else is kept.",
    ),
    "grpo": Word(
        "GRPO",
        "Each step generates rollouts, scores them with a frozen reference, and updates the "
        "policy: a group of rollouts is its own baseline.",
    ),
    "ppo": Word(
        "PPO",
        "As GRPO, with a critic that is trained too: the policy's layers under a head of one "
        "number for each token, with gradients and optimizer states of its own.",
    ),
}

ASLEEP = {
    "all": Word(
        "Weights and cache",
        "Both are dropped while the trainer computes, and the weights handed over anew "
        "(vLLM's sleep level 2, verl's free_cache_engine).",
    ),
    "cache": Word("Cache", "The KV cache is freed, the engine's weights stay."),
    "nothing": Word("Nothing", "Engine weights and KV cache stay while the trainer computes."),
}

TRAINER = {
    "stays": Word("On the GPU", "Training states stay while rollouts are generated."),
    "host": Word(
        "In host DRAM",
        "Training states leave for the host while rollouts are generated (verl's param_offload "
        "and optimizer_offload).",
    ),
}

FROZEN = {
    "none": Word("None", "There is no such model, or a rule or another machine takes its place."),
    "gpu": Word("On the GPU", "Its weights rest on the GPUs, cut as the framework cuts them."),
    "host": Word("In host DRAM", "Its weights come to the GPUs for its forward alone."),
}
