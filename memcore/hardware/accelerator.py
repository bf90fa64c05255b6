"""Hardware: accelerators and host nodes, as their data files or a user describe them.

Sizes in bytes, bandwidths in bytes per second one way, rates in dense FLOP/s.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Bytes = Annotated[int, Field(ge=0, le=10**18)]
Rate = Annotated[float, Field(ge=0, le=1e20, allow_inf_nan=False)]
Text = Annotated[str, Field(max_length=2_000)]
Name = Annotated[str, Field(max_length=80)]


class _Described(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    label: Annotated[str, Field(min_length=1, max_length=80)]
    revision: int = 1
    note: Text = ""
    sources: Annotated[dict[Name, Text], Field(max_length=40)] = {}


class Accelerator(_Described):
    """One GPU (or TPU, NPU): its on-chip and device memory, its links and its peak rates.

    memory_bytes     as sold; usable_bytes: what a program can allocate, CUDA's total_memory
    peer_bandwidth   all its links to the others of its fast domain together, one way; 0: only over
                     PCIe, and where memory is unified, only over the network
    peer_payload     share of peer_bandwidth that the links' own protocol leaves
    peer_access      whether it may read another's memory; if not, what they send each other goes
                     through the host's memory (stock GeForce drivers)
    pcie_bandwidth   to the host; the memory's own where it is unified
    shared_with_os   usable_bytes holds what the operating system and its programs take, too
    flops            dense peak by dtype
    node             the host node it usually sits in
    status           announced: the maker has named it, nobody can have it yet; preliminary: figures
                     of launch material, or of a chip whose maker publishes none; described: a
                     user's own, the rest of whose figures are assumed
    """

    status: Literal["shipping", "preliminary", "announced", "described"] = "shipping"
    vendor: Name
    architecture: Name
    memory_kind: Name
    memory_bytes: Annotated[int, Field(ge=2**20, le=10**15)]
    usable_bytes: Annotated[int, Field(ge=2**20, le=10**15)]
    usable_certainty: Literal["measured", "assumed"] = "assumed"
    memory_bandwidth: Annotated[float, Field(gt=0, le=1e18, allow_inf_nan=False)]
    sms: Annotated[int, Field(ge=1, le=10**6)]
    l1_bytes_per_sm: Bytes
    l2_bytes: Bytes
    peer_link: Name = "none"
    peer_bandwidth: Rate = 0.0
    peer_payload: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 1.0
    peer_access: bool = True
    pcie_bandwidth: Rate
    unified_memory: bool = False
    shared_with_os: bool = False
    watts: Rate
    node: Name
    flops: Annotated[dict[Name, Rate], Field(min_length=1, max_length=20)]

    @property
    def caveat(self) -> str:
        """How far this chip's figures can be trusted; empty: as its maker's data sheet."""
        return _CAVEATS.get(self.status, "")

    @property
    def any_layout_fp8(self) -> bool:
        """Whether fp8 products take operands along rows or columns, and scales for each 32 values:
        compute capability 10 and its successors (transformer_engine/common/util/
        cuda_runtime.cpp and common.cpp: nvte_is_non_tn_fp8_gemm_supported)."""
        return self.architecture.startswith(("Blackwell", "Rubin")) and self.memory_kind.startswith(
            "HBM"
        )

    @property
    def half_fp32(self) -> bool:
        """Whether a multiprocessor starts twice as many lanes in a cycle as it has fp32 units."""
        large = self.architecture == "Ampere" and self.memory_kind.startswith("HBM")
        return large or self.architecture in ("Volta", "Turing")

    def runs_as(self, dtype: str) -> str:
        """The dtype whose units do a matrix product in `dtype`: its own where the chip has them."""
        names: tuple[str, ...] = (dtype, *_INSTEAD.get(dtype, _WIDENED), *self.flops)
        for name in names:
            if self.flops.get(name):
                return name
        return dtype

    def peak_flops(self, dtype: str) -> float:
        """Dense FLOP/s for matrix products in `dtype`, on the units that run it."""
        name = self.runs_as(dtype)
        passes = FP32_PASSES if dtype == "fp32" and name in ("bf16", "fp16") else 1
        return self.flops.get(name, 0.0) / passes

    def halves_sums(self, dtype: str) -> bool:
        """Whether products of 16 bits run at half of their rate where they are summed in 32 bits,
        as on GeForce boards: integers of 8 bits then run at four times that rate, not at twice."""
        whole = self.flops.get("int8", 0.0) / 2
        wide = dtype in ("fp16", "bf16") and self.vendor == "nvidia"
        return wide and whole > 1.5 * self.peak_flops(dtype) > 0

    @property
    def tensor_flops(self) -> float:
        """Dense FLOP/s of the fastest units for 16 bits, whatever else the chip lacks."""
        wide = max(self.flops.get("bf16", 0.0), self.flops.get("fp16", 0.0))
        return wide or max(self.flops.values())


# Where a chip lacks the units for a dtype, products run in the first of these that it has. PyTorch
# allows TF32 on request only, so fp32 stays fp32; bf16 below compute capability 8.0 is widened to
# fp32, whose units add no more slowly. Narrower values are widened to 16 bits before the product
# (vLLM's Marlin kernels: fp8 and fp4 weights where the GPU has no units for them).
_WIDENED = ("bf16", "fp16", "fp32")
_INSTEAD = {
    "bf16": ("fp32", "fp16"),
    "fp16": ("bf16", "fp32"),
    "tf32": ("fp32",),
    "fp32": ("bf16", "fp16"),
}
# Products in bf16 that one in fp32 takes where there are no units for fp32: XLA's highest precision
# (jax.lax.Precision.HIGHEST, https://docs.jax.dev/en/latest/jax.lax.html); three under HIGH.
FP32_PASSES = 6

_CAVEATS = {
    "announced": "announced, and nobody can have it yet: its figures are its maker's plans",
    "described": "a card of your own, which its description leaves open in part: the rest is "
    "assumed, as its note says",
    "preliminary": "described by preliminary figures: a data sheet may say otherwise",
}

SWITCH, MESH, CUBE, TORUS = "switch", "mesh", "cube", "torus"


LANES, FEWEST_LANES = 16, 4  # of a slot


class Node(_Described):
    """A host, what its accelerators share, and how fast links join them with each other.

    pcie_bandwidth is per accelerator; DRAM, NVMe and network are totals of the node. Where memory
    is unified, the accelerator's own figures count in place of dram_bandwidth and pcie_bandwidth.

    gpus             of the host, which share its DRAM, NVMe and network
    up_to            it has as many of them as somebody puts in, and not always all
    network_of_each  each accelerator has a part of the network of its own (1 / gpus of it), which
                     it keeps alone; else all that run share the whole
    domain           how many accelerators the fast links join: a rack, a slice; 0: the host's
    wiring           what the accelerator's peer_bandwidth joins it by. 'switch': all of it to any
                     one. 'mesh': an equal link to each of the others. 'cube': six links, as eight
                     GPUs of a DGX-1 have. 'torus': two links along each of `axes`
    axes             of a torus; 1 is a ring
    wraps            an axis of a torus is a ring where its length is a multiple of this, and a line
                     elsewhere; whole_cubes: only where that is so of every axis
    host_slowness    what its CPU takes to start a kernel, over what a common server's takes
    shared_lanes     lanes of PCIe that all accelerators share: a slot has what is left of them by
                     halves, and four at least; 0: each has a slot of its own
    """

    gpus: Annotated[int, Field(ge=1, le=1_000)]
    dram_bytes: Bytes
    dram_bandwidth: Rate
    pcie_bandwidth: Rate
    nvme_bytes: Bytes
    nvme_read_bandwidth: Rate
    nvme_write_bandwidth: Rate
    network: Name
    network_bandwidth: Rate
    up_to: bool = False
    network_of_each: bool = False
    domain: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    wiring: Literal["switch", "mesh", "cube", "torus"] = "switch"
    axes: Annotated[int, Field(ge=1, le=3)] = 1
    wraps: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    whole_cubes: bool = False
    host_slowness: Annotated[float, Field(ge=0.01, le=100, allow_inf_nan=False)] = 1.0
    shared_lanes: Annotated[int, Field(ge=0, le=1_000)] = 0
    certainty: Literal["datasheet", "assumed"] = "assumed"

    def lanes(self, gpus: int) -> int:
        """Lanes of PCIe of the slot that each of so many accelerators has."""
        if not self.shared_lanes:
            return LANES
        return max(FEWEST_LANES, min(LANES, self.shared_lanes >> (gpus - 1).bit_length()))

    def slot_bandwidth(self, gpus: int) -> float:
        """B/s one way between one of so many accelerators and the host."""
        return self.pcie_bandwidth * self.lanes(gpus) / LANES
