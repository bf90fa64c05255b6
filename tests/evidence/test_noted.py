"""What notes say of bytes and seconds that a plan does not count, against others' figures."""

import asked
import pytest
from tables import each

from evidence import campaign
from memcore.evaluate import evaluate
from memcore.plan.plan import Plan
from memcore.units import bytes_text

TABLE = asked.table("families")
# Bytes that autograd saves more with config.use_cache on than off (torch 2.13, transformers 5.23,
# asked as reference/ask_pytorch.py does), by model and tokens. Other families of its table save as
# much, or less, where a copy of keys and values takes the place of the joint projection.
CACHED = {
    ("g0", 256): 1_179_648,
    ("bloom", 512): 3_145_728,
    ("mpt", 512): 3_145_728,
    ("bigcode", 512): 393_216,
    ("bigcode-drop", 512): 3_145_728,
}
OF_LOOP = "A loop that leaves config.use_cache on"


def notes(model, **train):
    train = {"framework": "pytorch", "zero": 0, "checkpointing": "none", "micro_batch": 1,
             "seq_len": 512} | train  # fmt: skip
    return " ".join(evaluate(Plan(model=model, cluster={"gpus": 1}, train=train)).notes)


@each("model, tokens", [pytest.param(*key, id=key[0]) for key in CACHED])
def test_a_cache_that_is_on_in_training_keeps_what_pytorch_says(model, tokens):
    words = {"seq_len": tokens, "precision": "bf16-pure", "attention": "eager"}
    said = notes(TABLE["configs"][model], **words)
    more = bytes_text(CACHED[model, tokens])
    assert (
        f"{OF_LOOP} keeps copies of keys and values beside their joint projection: {more}" in said
    )


def test_a_cache_is_what_our_own_run_of_gpt2_had_besides():
    (line,) = (line for line in campaign.lines() if line["plan"]["model"] == "gpt2")
    said = " ".join(evaluate(Plan.of(line["plan"])).notes)
    assert "joint projection: 576 MiB more" in said
    assert line["remark"].startswith("576 MiB are missing")


def test_where_a_cache_is_off_or_changes_nothing_no_note_speaks_of_it():
    assert OF_LOOP not in notes("gpt2", checkpointing="full")
    assert OF_LOOP not in notes("llama-3.2-1b")
    assert OF_LOOP not in notes("pythia-1.4b")


def test_a_vocabulary_that_is_no_multiple_of_8_has_a_note():
    assert "A vocabulary of 50,257 is no multiple of 8" in notes("gpt2")
    assert "no multiple of 8" not in notes("gpt2", precision="fp32")
    assert "no multiple of 8" not in notes("opt-1.3b")
    assert "no multiple of 8" not in notes("bge-base")  # has no head
