"""LLaMA-Factory's inference: the YAML of `llamafactory-cli api`, `chat` and `webchat`.

Its keys are in presets/programs/llamafactory-serving.toml.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memcore.formats.draft import Draft, Keys
from memcore.formats.programs import Program

SERVING = Program("llamafactory-serving")


def recognise(values: Mapping[str, Any]) -> bool:
    """Whether a document is such a file, or one of an export."""
    starts = {"model_name_or_path", "template"} <= values.keys() and "do_train" not in values
    return starts and ("infer_backend" in values or "export_dir" in values)


def read(values: Mapping[str, Any], draft: Draft) -> None:
    """What the file says. Raises PlanError of an export, which neither trains nor serves."""
    keys = Keys(values)
    SERVING.read(keys, draft, "refused")
    SERVING.begin(keys, draft)
    said = str(keys.one("infer_backend") or "").lower()
    engines = SERVING.words["engines"]
    engine = engines.get(said, "vllm")
    if said not in engines:
        draft.leave("infer_backend", f"{said} is not planned: vLLM is")
    draft.put("serve.engine", engine, "infer_backend", said)
    SERVING.read(keys, draft, engine)
    if engine != "transformers":
        draft.ranks = max(draft.ranks, draft.fields.get("serve.tp", 0))
        SERVING.later(keys, draft)
    SERVING.end(keys, draft)
