"""What the page's boxes suggest: Streamlit's own script, with one function of ours in it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest

from app import front


def test_streamlit_still_has_the_function_that_is_replaced() -> None:
    """Without it the boxes would suggest by Streamlit's own rule, and nobody would notice."""
    (text,) = front.suggesting().values()
    assert "const bare=" in text


@pytest.mark.skipif(not shutil.which("node"), reason="no node")
@pytest.mark.parametrize(
    ("typed", "label", "found"),
    [
        ("glm 4.5", "GLM-4.5", True),
        ("4.5 glm", "GLM-4.5-Air", True),
        ("70b llama", "Llama 3.3 70B Instruct", True),
        ("qwen-2.5 7b", "Qwen2.5 7B", True),
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen2.5 7B", True),
        ("qwen 2.5 7b", "Qwen2 57B-A14B", False),
        ("llama3 8b", "Llama 3 8B", True),
        ("llama 7b", "Qwen2.5 7B", False),
        ("gpt-2", "GLM-4.5", False),
    ],
)
def test_words_in_any_order_with_any_marks_between_them(
    typed: str, label: str, found: bool
) -> None:
    (text,) = front.suggesting().values()
    match = re.search(r"function (\w+)\(e,t\)\{[^{}]*const bare=.*?\)\)\}", text)
    assert match
    said = f"{match[0]};console.log({match[1]}({json.dumps(typed)},{json.dumps(label)}))"
    out = subprocess.run(["node", "-e", said], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == str(found).lower()
