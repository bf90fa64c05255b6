"""Clock: how long one iteration of a server takes, from the roofline of its operations.

An iteration is one forward of every running sequence's next token, together with a share of the
prompts that have just been let in (chunked prefill). Its operations are those of
memcore.serving_time; here they are asked once for a few sizes, and read off between them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from memcore.plan import Plan
from memcore.serving import Server
from memcore.serving_time import ATTENTION, attention, context_of, parts, seconds

PER_OCTAVE = 4  # sizes asked between one power of two and the next


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds at a few sizes, straight between them, and beyond them on as at the end."""

    sizes: tuple[int, ...]
    values: tuple[float, ...]
    known: dict[int, float] = field(default_factory=dict, compare=False)

    def at(self, size: int) -> float:
        found = self.known.get(size)
        if found is None:
            found = self.known[size] = self._between(size)
        return found

    def _between(self, size: int) -> float:
        if len(self.sizes) == 1:
            return self.values[0]
        i = min(max(1, bisect_left(self.sizes, size)), len(self.sizes) - 1)
        (x0, x1), (y0, y1) = self.sizes[i - 1 : i + 1], self.values[i - 1 : i + 1]
        return y0 + (y1 - y0) * (size - x0) / (x1 - x0)

    @classmethod
    def of(cls, most: int, value: Callable[[int], float]) -> Curve:
        sizes = sizes_to(most)
        return cls(sizes, tuple(map(value, sizes)))


@dataclass(frozen=True, slots=True)
class Clock:
    """Seconds of an iteration.

    layers     everything but attention and head, by tokens
    head       the logits, by sequences that get a token
    context    attention of generated tokens, per token of context
    pair       attention of a prompt's tokens, per pair of a token and one that it sees (compute)
    read       the same, per token of the cache that it reads (bandwidth)
    """

    layers: Curve
    head: Curve
    context: float
    pair: float
    read: float

    def decode(self, sequences: int) -> float:
        """An iteration that generates one token each, without attention."""
        return self.layers.at(sequences) + self.head.at(sequences)

    def mixed(self, sequences: int, context: int, chunks: Sequence[tuple[int, int]]) -> float:
        """An iteration in which `sequences` generate, at `context` tokens in all, and parts of
        prompts are read: (tokens that are there already, tokens now)."""
        tokens = sequences
        attention = self.context * context
        for start, now in chunks:
            tokens += now
            attention += max(self.pair * now * (start + now / 2), self.read * (start + now))
        return self.layers.at(tokens) + self.head.at(sequences + len(chunks)) + attention

    @classmethod
    def constant(cls, seconds: float) -> Clock:
        """Every iteration takes as long, whatever is in it."""
        flat, nothing = Curve((1,), (seconds,)), Curve((1,), (0.0,))
        return cls(flat, nothing, 0.0, 0.0, 0.0)

    @classmethod
    def of(cls, plan: Plan) -> Clock:
        """The clock of one replica. What attention reads of layers with a window is as at half of
        the plan's own output."""
        server, prompt_len = Server.of(plan), plan.serve.prompt_len
        seen = context_of(server)

        def without_attention(tokens: int, logits: int) -> float:
            found = parts(server, tokens, 1, 1, logits)
            return seconds([p for p in found if p.kind != ATTENTION])

        one = without_attention(1, 1)
        prompt = attention(server, 1, prompt_len, prompt_len).time
        return cls(
            Curve.of(plan.serve.max_batched_tokens, lambda n: without_attention(n, 1)),
            Curve.of(
                min(plan.serve.concurrency, plan.serve.max_batched_tokens) + 1,
                lambda n: without_attention(1, n) - one,
            ),
            attention(server, 1, 1, seen).time.seconds / seen,
            prompt.compute_seconds / (prompt_len * prompt_len / 2),
            prompt.hbm_seconds / prompt_len,
        )


def sizes_to(most: int) -> tuple[int, ...]:
    """Sizes from one to `most`, ever further apart."""
    sizes, size = [1], 1.0
    while sizes[-1] < most:
        size *= 2 ** (1 / PER_OCTAVE)
        sizes.append(min(most, max(sizes[-1] + 1, round(size))))
    return tuple(sizes)
