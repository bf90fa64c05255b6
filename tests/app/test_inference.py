"""Serve of a model that generates nothing: one forward, and no field of a cache or an engine."""

from __future__ import annotations

import pytest
from pages import opened


@pytest.mark.parametrize(("model", "tokens"), [("bert-base", True), ("vit-base", False)])
def test_serve_has_a_batch_and_no_cache(model: str, tokens: bool) -> None:
    at = opened({"model": model}, "serve")
    assert not at.exception
    labels = {widget.label for widget in (*at.number_input, *at.selectbox)}
    assert {"Concurrency", "Weight dtype"} <= labels
    assert ("Prompt length (tokens)" in labels) == tokens
    assert not {"KV dtype", "Engine", "Output length (tokens)"} & labels
    lines = at.dataframe[0].value["what"].tolist()
    assert {"Weights", "Activations", "Largest batch", "Latency"} <= set(lines)
    assert ("Tokens of a sample" in lines) == tokens
