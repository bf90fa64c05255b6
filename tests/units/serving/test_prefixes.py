"""Tokens of prompts that a prefix cache has already: of others' requests, and of earlier turns."""

import pytest

from memcore.errors import PlanError
from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.plan.plan import Plan
from memcore.stream import simulate


def plan(model="llama-3.1-8b", **fields):
    serve = {"prompt_len": 8192, "output_len": 256, "concurrency": 16, **fields}
    return Plan.of({"model": model, "cluster": {"gpus": 1}, "serve": serve})


def serve(**fields):
    return evaluate(plan(**fields)).serve


@pytest.mark.parametrize("prefill", ["whole", "chunked"])
def test_what_is_found_is_not_computed_again(prefill):
    none, most = (serve(prefill=prefill, prefix_hits=h) for h in (0.0, 0.75))
    assert (none.computed_tokens, most.computed_tokens) == (8192, 2048)
    assert 0.2 < most.prompt_token_seconds / none.prompt_token_seconds < 0.45
    assert most.ttft_seconds < none.ttft_seconds
    assert most.sequence_bytes == none.sequence_bytes


def test_new_tokens_see_those_that_were_found():
    """2,048 tokens behind 6,144 in the cache take longer than a prompt of 2,048."""
    assert serve(prefix_hits=0.75).prompt_token_seconds * 8192 > (
        serve(prompt_len=2048).prompt_token_seconds * 2048
    )


@pytest.mark.parametrize("turns", [1, 2, 5, 10])
def test_turns_of_a_conversation(turns):
    """The mean prompt of so many turns, added up one by one."""
    new = serve(turns=turns).computed_tokens
    prompts = [k * new + (k - 1) * 256 for k in range(1, turns + 1)]
    assert sum(prompts) / turns == pytest.approx(8192, abs=turns)


def test_a_closed_loop_with_hits_gives_each_token_sooner():
    a, b = (serve(arrivals="closed", prefix_hits=h) for h in (0.0, 0.9))
    assert b.tpot_seconds < a.tpot_seconds
    assert b.ttft_seconds < a.ttft_seconds


@pytest.mark.parametrize(
    "fields", [{"prefix_hits": 0.5}, {"turns": 4}, {"prefix_hits": 0.3, "turns": 3}]
)
@pytest.mark.parametrize("how", [{}, {"prefill": "chunked"}, {"arrivals": "closed"}])
def test_hits_are_explained(fields, how):
    p = plan(**fields, **how)
    report = evaluate(p)
    book = Book(p, report)
    for name in ("computed_tokens", "step_sequences", "prefill_steps", "ttft_seconds"):
        found = book.explain(f"serve.{name}").value
        assert found == pytest.approx(getattr(report.serve, name))


def test_a_stream_finds_them_too():
    """Of prompts in pages; who reserves computes all of them."""
    plain, hits = (
        simulate(plan(prefix_hits=h, requests=60, arrival_rate=0.5, lengths="fixed"))
        for h in (0.0, 0.75)
    )
    for one, other in zip(plain.runs, hits.runs, strict=True):
        whole = one.prompt_tokens + one.shared_tokens
        assert other.prompt_tokens + other.shared_tokens == whole
        if one.strategy == "paged":
            assert other.prompt_tokens == pytest.approx(whole / 4, rel=0.01)
            assert other.ttft.mean < one.ttft.mean
        else:
            assert other.prompt_tokens == one.prompt_tokens
    assert any("75% are in the prefix cache" in note for note in hits.notes)


@pytest.mark.parametrize("field", [{"prefix_hits": 0.5}, {"turns": 2}])
def test_models_with_states_have_no_prefix_cache(field):
    with pytest.raises(PlanError, match="no prefix cache"):
        Plan.of(
            {"model": "qwen3-next-80b-a3b", "cluster": {"gpus": 4}, "serve": {"tp": 4, **field}}
        )
