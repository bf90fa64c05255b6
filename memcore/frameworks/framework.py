"""Framework: what one framework keeps on each GPU, and when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from memcore.hardware.constants import Constant
from memcore.plan.plan import Plan
from memcore.plan.sections import Train
from memcore.step.step import Instant, Step
from memcore.tape.dims import Dim, Number
from memcore.tape.ledger import Amounts, Group
from memcore.tape.tape import Tape
from memcore.timing.communication import Beside, Move
from memcore.words import training


@dataclass(frozen=True, slots=True)
class Framework:
    """How one framework trains. What its plans may ask for is in `words.training`, its precisions
    in `words.precision`.

    facts         those of its word
    schedule      every instant at which memory can peak, of a step
    sends         what data parallelism sends in one step, where there is anyone to send to
    slack         what PyTorch's allocator reserves over what is allocated
    slack_sharded the same where parameters are sharded, if it differs
    slack_native  the same with the native allocator where weights are gathered, if it was measured
    rules_native  or what is reserved there over what its rules make of all tensors on one stream
    replicas      whether gradients are averaged in buckets, as DistributedDataParallel does
    accumulated   whether gradients are summed in a buffer that is always there
    regathers     whether exchanged experts are gathered again for backward
    stacks        whether a stack of experts is cut, and padded, along its first dimension
    streams       whether gathered weights lie on a stream of their own
    vocabulary    the vocabulary is padded to this many x tp; 0: it is not
    buffers       what is kept for good besides the states, of layers' tapes under a word
    buckets       how many buffers gradients are reduced in, by overlap_comm and ZeRO stage
    dimensions    sizes that its buffers have; 0 under every other framework
    complete      adds them to the sizes of a plan
    handed        what a pipeline stage holds of what it sends and gets, until the backward: of the
                  first one or not, of the last one or not, whether ranks cut it, and its dtype
    """

    facts: training.Framework
    schedule: Callable[[Step], list[Instant]]
    sends: Callable[[Plan, Step, Amounts, Beside], list[Move]]
    slack: Constant
    slack_sharded: Constant | None = None
    slack_native: Constant | None = None
    rules_native: Constant | None = None
    replicas: bool = False
    accumulated: bool = False
    regathers: bool = False
    stacks: bool = False
    streams: bool = False
    vocabulary: int = 0
    buffers: Callable[[tuple[Tape, ...], str], Group] | None = None
    buckets: Callable[[str, int], int] = lambda overlap, zero: 1
    dimensions: tuple[Dim, ...] = ()
    complete: Callable[[dict[str, Number], Train, Step], None] | None = None
    handed: Callable[[bool, bool, bool, str], Group] | None = None

    def slack_at(self, zero: int) -> Constant:
        """The allocator's slack at a ZeRO stage."""
        sharded = zero >= self.facts.shards
        return self.slack_sharded if self.slack_sharded and sharded else self.slack
