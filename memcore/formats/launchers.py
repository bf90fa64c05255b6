"""Launchers: what starts the processes of a training: torchrun, accelerate, deepspeed, Slurm."""

from __future__ import annotations

import re
from collections.abc import Sequence

from memcore.formats.found import Draft, Keys
from memcore.formats.texts import options

# Of what starts processes itself, the options that say how many in all.
PROCESSES = {
    **dict.fromkeys(("mpirun", "mpiexec"), ("np", "n")),
    **dict.fromkeys(("srun", "sbatch"), ("ntasks", "n", "gpus", "G")),
}


def read(command: Sequence[str], draft: Draft) -> None:
    """How many processes and machines the command says, if any."""
    _, given = options(command)
    keys = Keys(given)
    nodes = draft.count(keys, "nnodes", "num_machines", "nodes", "N")
    each = draft.count(keys, "nproc_per_node", "num_gpus", "gpus_per_node", "ntasks_per_node")
    if not each and (found := re.search(r"gpu\S*:(\d+)", str(given.get("gres", "")))):
        each = int(found[1])
    if not each and (placed := re.search(r":([\d,]+)", str(given.get("include", "")))):
        each = len(placed[1].split(","))  # deepspeed --include worker:0,1,2,3
    draft.nodes = max(draft.nodes, nodes)
    in_all = PROCESSES.get(command[0].rpartition("/")[2], ()) if command else ()
    whole_job = draft.count(keys, "num_processes", *in_all)
    draft.ranks = max(draft.ranks, whole_job, each * max(1, draft.nodes))
