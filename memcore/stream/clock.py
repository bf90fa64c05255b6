"""Clock: how long one iteration of a server takes, from the roofline of its operations.

An iteration is one forward of every running sequence's next token, together with a share of the
prompts that have just been let in (chunked prefill). Its operations are those of
memcore.serving; here they are asked once for a few sizes, and read off between them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from memcore.plan import Plan
from memcore.roofline import seconds
from memcore.serving import CACHE_READ, Server, bound, decode_operations, forward

PER_OCTAVE = 4  # sizes asked between one power of two and the next
CONTEXT = 4096  # tokens; what attention costs is proportional to it


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
        """The clock of one replica."""
        server = Server.of(plan)

        def parts(batch: int, tokens: int, context: int, logits: int) -> tuple[float, float]:
            every = forward(server, batch, tokens, context, logits)
            cache = [o for o in every if o.name == CACHE_READ]
            return seconds(every) - seconds(cache), seconds(cache)

        one, context = parts(1, 1, CONTEXT, 1)
        prompt = [o for o in forward(server, 1, CONTEXT, CONTEXT, 1) if o.name == CACHE_READ]
        return cls(
            Curve.of(plan.serve.max_batched_tokens, lambda n: parts(n, 1, 1, 1)[0]),
            Curve.of(
                min(plan.serve.concurrency, plan.serve.max_batched_tokens) + 1,
                lambda n: parts(1, 1, 1, n)[0] - one,
            ),
            context / CONTEXT,
            sum(o.compute_seconds for o in prompt) / (CONTEXT * CONTEXT / 2),
            sum(o.hbm_seconds for o in prompt) / CONTEXT,
        )


@dataclass(frozen=True, slots=True)
class Pace:
    """Decoding alone with so many sequences at once, at half of their outputs."""

    sequences: int
    tpot_seconds: float
    tokens_per_second: float
    bound_by: str


def paces(plan: Plan, most: int) -> tuple[Pace, ...]:
    """How throughput and time per token go together, from one sequence to `most`."""
    server = Server.of(plan)
    found = []
    for n in sizes_to(max(1, most), per_octave=2):
        operations = decode_operations(server, n)
        tpot = seconds(operations)
        found.append(Pace(n, tpot, n / tpot, bound(operations)))
    return tuple(found)


def sizes_to(most: int, per_octave: int = PER_OCTAVE) -> tuple[int, ...]:
    """Sizes from one to `most`, ever further apart."""
    sizes, size = [1], 1.0
    while sizes[-1] < most:
        size *= 2 ** (1 / per_octave)
        sizes.append(min(most, max(sizes[-1] + 1, round(size))))
    return tuple(sizes)
