"""Unplanned: programs and architectures that are known and not planned, by how they are called.

Named as in diffusers 0.36 (examples/), kohya's sd-scripts 0.9, SimpleTuner 3 (--model_family),
ai-toolkit (config.process.type), diffusion-pipe, ultralytics 8, timm 1.0 and mlx-lm 0.28.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

DIFFUSION, VISION = "diffusion models are", "networks of convolutions and detectors are"
MLX, JAX = "MLX's programs are", "JAX's and TensorFlow's programs are"
OTHER_SERVERS = (
    "koboldcpp, Aphrodite, TabbyAPI, mistral.rs, LightLLM and KTransformers' own server are"
)
OTHER_TRAINERS = "LitGPT, LLM Foundry, nanotron, Colossal-AI and xtuner are"
GAMES, SPEECH = "policies of games and robots are", "the training of speech models is"
RANKING = "recommenders are"
# What starts one of them, in a command.
COMMANDS = {
    r"\btrain_(?:dreambooth|text_to_image|controlnet|instruct_pix2pix|unconditional|cogvideox|"
    r"custom_diffusion|t2i_adapter|lcm_distill|flux|svd)\w*\.py|\btextual_inversion\w*\.py|"
    r"\b(?:\w{1,20}_)?train_(?:network|db|textual_inversion|controlnet|leco)\w*\.py|"
    r"\b(?:sdxl|sd3|flux|lumina|anima|hunyuan_image)_train\w*\.py|\bsimpletuner\b|"
    r"--model_family[= ]|networks\.(?:lora|oft|dylora)\w*|\bComfyUI\b": DIFFUSION,
    r"(?:^|[\s/])(?:yolo|ultralytics)(?:\s|$)|\byolo\w*\.(?:pt|yaml)\b|\btrain_net\.py|"
    r"--(?:model|arch)[= ](?:resn|efficientnet|convnext|mobilenet|regnet|densenet|vgg|yolo)|"
    r"\breferences/(?:detection|classification|segmentation)/": VISION,
    r"\bmlx_(?:lm|vlm|whisper|audio)\b|\bmlx-(?:lm|vlm)\b|\bmlx_lm[._]": MLX,
    r"\b(?:MaxText|maxtext|EasyLM|levanter|t5x|paxml)\b": JAX,
    r"\bkoboldcpp\b|^aphrodite\s|\baphrodite\.endpoints|\btabbyapi\b|\bmistralrs-server\b|"
    r"\blightllm\.server\b|\bktransformers\.(?:local_chat|server)\b": OTHER_SERVERS,
    r"^(?:litgpt|xtuner|colossalai)\s|\bcomposer\s\S*train\.py|"
    r"\brun_train\.py\s+--config-file": OTHER_TRAINERS,
    r"\b(?:speech_to_text|speech_recognition|run_speech|espnet|speechbrain|asr_train)\w*": SPEECH,
}
# What a module in Python imports, or a document says, that is of no other known kind.
TEXTS = {
    r"^[ \t]*(?:from|import)[ ]diffusers\b": DIFFUSION,
    r"\btype:[ ]['\"]?(?:sd_trainer|diffusion_trainer|ui_trainer)\b": DIFFUSION,
    r"^[ \t]*['\"]?(?:--)?(?:model_family|diffusers_path|network_module)['\"]?[ ]?[:=]": DIFFUSION,
    r"^name[ ]?=[ ]?['\"]flux['\"]": DIFFUSION,
    r"^[ \t]*(?:from|import)[ ](?:ultralytics|timm|torchvision|detectron2|mmdet|mmcv|yolov\d)\b": (
        VISION
    ),
    r"^[ \t]*(?:from|import)[ ]mlx(?:_lm|_vlm)?\b|^fine_tune_type:": MLX,
    r"^[ \t]*(?:from|import)[ ](?:jax|flax|optax|haiku|tensorflow|keras|MaxText|EasyLM)\b": JAX,
    r"^[ \t]*(?:from|import)[ ](?:gym|gymnasium|stable_baselines3|isaacgym|isaaclab)\b": GAMES,
    r"^[ \t]*(?:from|import)[ ](?:nemo\.collections\.(?:asr|tts)|speechbrain|espnet2?)\b": SPEECH,
    r"^[ \t]*(?:from|import)[ ](?:torchrec|dlrm)\b": RANKING,
    r"^[ \t]*(?:name:[ ](?:mpt|hf)_causal_lm|device_train_microbatch_size:|tp_mode:|"
    r"batch_accumulation_per_replica:)": OTHER_TRAINERS,
}  # fmt: skip
# How models and their classes are called, from the start of a name.
NAMES = {
    r"(?:resnet|resnext|convnext|efficientnet|mobilenet|regnet|densenet|vgg|inception|yolo|detr-|"
    r"rt-?detr|faster-?rcnn|mask-?rcnn|segformer|unet-?(?:2d|3d)?$)": VISION,
    r"(?:flux|stable-diffusion|stable-video|sdxl|sd-turbo|sd3|pixart|sana-?\d|qwen-image|wan2|"
    r"hunyuanvideo|hunyuanimage|cogvideo|ltx-?video|kandinsky|unet|dit-|z-image|autoencoderkl|"
    r"controlnet)": DIFFUSION,
    r"(?:wav2vec|hubert|seamless|speecht5|parakeet|canary-)": SPEECH,
    r"(?:dlrm|deepfm|two_?tower)": RANKING,
}  # fmt: skip
CLASS = "_class_name"  # of the config.json of diffusers


def _first(table: Mapping[str, str], text: str) -> str:
    found = (what for pattern, what in table.items() if re.search(pattern, text, re.MULTILINE))
    return next((f"{what} not planned" for what in found), "")


def command(line: str) -> str:
    """Why what a command starts is not planned, or ''."""
    return _first(COMMANDS, line)


def document(content: str) -> str:
    """Why what a module or a document describes is not planned, or ''."""
    return _first(TEXTS, content)


def name(called: str) -> str:
    """Why a model that is called so is not planned, or ''."""
    last = called.rstrip("/").rpartition("/")[2].lower()
    return _first({rf"\A{pattern}": what for pattern, what in NAMES.items()}, last)


def architecture(config: Mapping[str, Any]) -> str:
    """Why the model of a config.json is not planned, where diffusers wrote it, or ''."""
    part = config.get(CLASS)
    return f"{part}: {DIFFUSION} not planned" if isinstance(part, str) else ""
