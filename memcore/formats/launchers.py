"""Launchers: what starts the processes of a training: torchrun, accelerate, deepspeed, Slurm."""

from __future__ import annotations

import re
from collections.abc import Sequence

from memcore.formats.found import Draft, Keys
from memcore.formats.texts import options


def read(command: Sequence[str], draft: Draft) -> None:
    """How many processes and machines the command says, if any."""
    _, given = options(command)
    keys = Keys(given)
    nodes = draft.count(keys, "nnodes", "num_machines", "nodes", "N")
    each = draft.count(keys, "nproc_per_node", "num_gpus", "gpus_per_node", "ntasks_per_node")
    if not each and (found := re.search(r"gpu\S*:(\d+)", str(given.get("gres", "")))):
        each = int(found[1])
    draft.nodes = max(draft.nodes, nodes)
    whole_job = draft.count(keys, "num_processes")
    draft.ranks = max(draft.ranks, whole_job, each * max(1, draft.nodes))
