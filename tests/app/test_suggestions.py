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


FOUND = (  # what is typed, a label, and whether it is suggested
    ("glm 4.5", "GLM-4.5", True),
    ("4.5 glm", "GLM-4.5-Air", True),
    ("70b llama", "Llama 3.3 70B Instruct", True),
    ("qwen-2.5 7b", "Qwen2.5 7B", True),
    ("Qwen/Qwen2.5-7B-Instruct", "Qwen2.5 7B", True),
    ("qwen 2.5 7b", "Qwen2 57B-A14B", False),
    ("llama3 8b", "Llama 3 8B", True),
    ("llama 7b", "Qwen2.5 7B", False),
    ("gpt-2", "GLM-4.5", False),
)


@pytest.mark.skipif(not shutil.which("node"), reason="no node")
def test_words_in_any_order_with_any_marks_between_them() -> None:
    (text,) = front.suggesting().values()
    match = re.search(r"function (\w+)\(e,t\)\{[^{}]*const bare=.*?\)\)\}", text)
    assert match
    asked = json.dumps([row[:2] for row in FOUND])
    said = f"{match[0]};console.log(JSON.stringify({asked}.map(([e,t])=>{match[1]}(e,t))))"
    out = subprocess.run(["node", "-e", said], capture_output=True, text=True, check=True)
    assert json.loads(out.stdout) == [found for *_, found in FOUND]
