"""Remote: the weights of a model on a hub, of which headers alone are fetched, when a plan is asked
for by hf://org/model.

huggingface_hub does what it does everywhere: HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE hold here
too.
"""

from __future__ import annotations

import re
from typing import Any, BinaryIO, cast

from memcore.errors import refusal, shown
from memcore.formats.checkpoints import Folder

SCHEME = "hf://"
NAME = re.compile(
    r"hf://([\w.-]+/[\w.-]+?)(?:@([\w./-]+?))?(?:/([\w.-]+\.(?:gguf|safetensors)))?/?"
)
BLOCK = 2**20  # bytes of one request


def on_hub(text: str) -> tuple[Folder, str]:
    """The files of hf://org/model[@revision][/file], and the file that is meant, '' of none. Raises
    PlanError."""
    if (named := NAME.fullmatch(text)) is None:
        raise refusal(
            "",
            f"{shown(text)} is no hf://org/model, hf://org/model@revision or "
            "hf://org/model/file.gguf",
        )
    model, revision, name = named.groups()
    try:
        from huggingface_hub import HfApi, HfFileSystem
    except ImportError:
        raise refusal("", "hf:// needs huggingface_hub: pip install 'memplan[hub]'") from None
    try:
        listed = HfApi().list_repo_tree(model, revision=revision)
        sizes = {one.path: one.size for one in listed if hasattr(one, "size")}
    except Exception as e:  # of the network, of the hub, of a switch: huggingface_hub has many
        raise _refused(model, e) from None
    of = f"{model}@{revision}" if revision else model

    def opened(one: str) -> BinaryIO:
        try:
            file: Any = HfFileSystem().open(f"{of}/{one}", block_size=BLOCK, cache_type="readahead")
            return cast("BinaryIO", file)
        except Exception as e:
            raise _refused(model, e) from None

    return Folder(model.rpartition("/")[2], sizes, opened), name or ""


def _refused(model: str, error: Exception) -> Exception:
    said = str(error).strip().partition("\n")[0]
    return refusal(
        "", f"{model} was not read from the hub: {shown(f'{type(error).__name__} {said}')}"
    )
