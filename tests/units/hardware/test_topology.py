"""What joins accelerators: fast domains, their wiring, the network, and the host's side."""

import math
from itertools import pairwise

import pytest
from explored import examples
from hypothesis import given
from hypothesis import strategies as st
from tables import each

from evidence.links import ON_HOST, compared_links
from memcore.errors import PlanError
from memcore.evaluate import evaluate
from memcore.explain import Book
from memcore.hardware.constants import COLLECTIVE_EFFICIENCY, THROUGH_HOST
from memcore.hardware.topology import axis_lengths, inside
from memcore.models import catalog
from memcore.plan.link import decode, encode
from memcore.plan.plan import Plan
from memcore.search.solver import solve
from memcore.timing.communication import Links, links, network_rate, placement

SHARE = COLLECTIVE_EFFICIENCY.middle


def plan(gpu, gpus, **cluster):
    return Plan(model="llama-3-8b", cluster={"gpu": gpu, "gpus": gpus} | cluster)


def over(gpu, ranks, gpus=None, stride=1, **cluster):
    return Links.of(plan(gpu, gpus or ranks, **cluster), ranks, stride)


# -- against what others measured -----------------------------------------------------------------


BANDWIDTHS = [c for c in compared_links() if c.what != ON_HOST]


@pytest.mark.parametrize("run", [pytest.param(c, id=c.run) for c in BANDWIDTHS])
def test_measured_bandwidths(run):
    assert run.used_for == "check"
    assert abs(run.error) <= run.tolerance == 0.1


# -- what the plan says of its own nodes ----------------------------------------------------------


def test_a_plan_may_say_what_network_and_dram_its_nodes_have():
    usual, own = plan("h100-sxm-80gb", 32), plan("h100-sxm-80gb", 32, network_gbits=100)
    assert own.node.network_bandwidth == 12.5e9
    assert network_rate(own) == network_rate(usual) / 32  # of 400 GB/s
    assert evaluate(own).time.step_seconds > evaluate(usual).time.step_seconds
    assert usual.changed("cluster.network_gbits", 100).node == own.node
    assert plan("h100-sxm-80gb", 8, dram_gib=512).node.dram_bytes == 512 * 2**30
    why = Book(own, evaluate(own)).explain("hardware.network_bandwidth")
    assert any("as the plan says" in source for source in why.sources)


def test_a_plan_may_have_a_share_of_a_gpu_and_not_what_others_hold():
    whole, half = plan("h100-sxm-80gb", 1), plan("h100-sxm-80gb", 1, gpu_share=0.5)
    usable = whole.accelerator.usable_bytes
    assert half.accelerator.usable_bytes == usable // 2
    assert half.accelerator.sms == whole.accelerator.sms // 2
    assert evaluate(half).time.step_seconds > 1.5 * evaluate(whole).time.step_seconds
    taken = plan("h100-sxm-80gb", 1, gpu_share=0.5, taken_gib=4)
    assert evaluate(taken).memory.capacity_bytes == usable // 2 - 4 * 2**30
    assert evaluate(taken).memory.allocated_bytes == evaluate(whole).memory.allocated_bytes
    with pytest.raises(PlanError, match="others hold all of") as found:
        plan("h100-sxm-80gb", 1, gpu_share=0.5, taken_gib=40)
    assert found.value.issues[0].field == "cluster.taken_gib"
    # A size that is solved for is that of a whole GPU.
    least = [solve(each, "cluster.gpu.memory_bytes").value for each in (whole, half)]
    assert least[1] == pytest.approx(2 * least[0], rel=0.01)


def test_vllm_takes_its_share_of_all_memory_and_no_more_than_others_leave():
    def budget(**of_cluster):
        cluster = {"gpu": "h100-sxm-80gb", "gpus": 1, **of_cluster}
        served = {"engine": "vllm", "memory_utilization": 0.5}
        return evaluate(
            Plan.of({"model": {"size": "7B"}, "cluster": cluster, "serve": served})
        ).serve

    alone, beside, crowded = budget(), budget(taken_gib=10), budget(taken_gib=50)
    assert alone.budget_bytes == beside.budget_bytes
    free = Plan().accelerator.usable_bytes - 50 * 2**30
    assert crowded.budget_bytes == free


def test_unified_memory_has_no_dram_to_be_said():
    with pytest.raises(PlanError, match="one memory for CPU and GPU") as found:
        plan("m3-max-128gb", 1, dram_gib=64)
    assert found.value.issues[0].field == "cluster.dram_gib"


def test_the_least_dram_of_a_node_that_an_offloaded_optimizer_fits_in():
    asked = plan("h100-sxm-80gb", 8).changed("train.offload_optimizer", "cpu")
    found = solve(asked, "cluster.dram_gib")
    assert evaluate(found.plan).memory.fits
    assert not evaluate(asked.changed("cluster.dram_gib", found.value - 0.001)).memory.fits


# -- meshes ---------------------------------------------------------------------------------------

LINK = {  # B/s one way to any one of the others, by each vendor's documentation
    "mi300x-192gb": 48e9,  # 64 less the protocol: https://github.com/ROCm/rccl/issues/1210
    "gaudi-3-128gb": 75e9,  # 3 x 200 Gb/s, docs.habana.ai, Intel Gaudi Network Configuration
}


@pytest.mark.parametrize("gpu", LINK)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_mesh_of_n_uses_n_minus_1_links(gpu, ranks):
    """RCCL's own log of four MI300X: maxBw 48.0 totalBw 144.0."""
    assert over(gpu, ranks).peer == pytest.approx((ranks - 1) * LINK[gpu] * SHARE)
    assert over(gpu, ranks).next == pytest.approx(LINK[gpu] * SHARE)


def test_a_pair_of_a_dgx_1_has_one_link_a_quad_four_all_eight_six():
    found = [over("v100-sxm-32gb", n, 8).peer for n in (2, 4, 8)]
    assert found == pytest.approx([25e9 * SHARE, 100e9 * SHARE, 150e9 * SHARE])


def test_a_switch_gives_every_group_all_of_it():
    assert {over("h100-sxm-80gb", n, 8).peer for n in (2, 4, 8)} == {450e9 * SHARE}


# -- racks and slices -----------------------------------------------------------------------------


@pytest.mark.parametrize("per_node", [0, 4, 8, 72])
def test_nvlink_joins_72_gb200_however_many_are_in_a_host(per_node):
    cluster = {"gpus_per_node": per_node}
    assert set(over("gb200-186gb", 72, **cluster).seconds("all-gather", 1e9)) == {"nvlink"}
    rack = over("gb200-186gb", 2, 144, stride=72, **cluster)
    assert rack.domains == 2
    assert rack.network == pytest.approx(50e9 * SHARE)  # one ConnectX-7 of 400 Gb/s for each GPU


# docs.cloud.google.com/tpu/docs/v5p, v5e: topologies by chips
SHAPES = {
    ("tpu-v5p-95gb", 4): (1, 2, 2),
    ("tpu-v5p-95gb", 8): (2, 2, 2),
    ("tpu-v5p-95gb", 32): (2, 4, 4),
    ("tpu-v5p-95gb", 64): (4, 4, 4),
    ("tpu-v5p-95gb", 128): (4, 4, 8),
    ("tpu-v5p-95gb", 256): (4, 8, 8),
    ("tpu-v5p-95gb", 1024): (8, 8, 16),
    ("tpu-v5p-95gb", 2048): (8, 16, 16),
    ("tpu-v5p-95gb", 6144): (16, 16, 24),
    ("tpu-v5e-16gb", 8): (2, 4),
    ("tpu-v5e-16gb", 32): (4, 8),
    ("tpu-v5e-16gb", 128): (8, 16),
    ("tpu-v5e-16gb", 256): (16, 16),
}


@pytest.mark.parametrize(("gpu", "chips"), SHAPES)
def test_a_slice_has_the_documented_shape(gpu, chips):
    node = catalog.node(catalog.accelerator(gpu).node)
    assert axis_lengths(chips, node.axes) == SHAPES[gpu, chips]


def test_a_v5e_pod_moves_what_its_documentation_says():
    """docs.cloud.google.com/tpu/docs/v5e: all-reduce 51.2 TB/s, bisection 1.6 TB/s a pod."""
    pod = over("tpu-v5e-16gb", 256)
    assert 256 * pod.peer / SHARE == pytest.approx(51.2e12)
    each = 1e9  # of which half crosses the middle, from half of the chips
    seconds = pod.exchange(each)["nvlink"] - pod.latency
    assert 128 * each / 2 / (seconds * SHARE) == pytest.approx(1.6e12, rel=0.01)


def test_only_whole_cubes_of_a_v5p_are_rings():
    node = catalog.node("tpu-v5p-host")
    assert [inside(node, n, 1, n).used for n in (2, 4, 8, 64)] == [1, 2, 3, 6]
    assert inside(node, 32, 1, 32).used == 3  # 2 x 4 x 4: three lines


def test_one_axis_of_a_slice_has_two_links_of_a_chip():
    assert over("tpu-v5p-95gb", 4, 64).peer == pytest.approx(2 * 100e9 * SHARE)
    assert over("tpu-v5p-95gb", 16, 64, stride=4).peer == pytest.approx(4 * 100e9 * SHARE)


def test_64_v5p_train_at_the_rate_of_their_torus():
    step = evaluate(
        Plan(
            model="llama-3-70b",
            cluster={"gpu": "tpu-v5p-95gb", "gpus": 64},
            train={"micro_batch": 2},
        )
    ).time
    assert "network" not in step.exposed or not step.exposed["network"]
    assert step.bound_by == "compute"


def test_what_leaves_a_slice_takes_the_data_center_network():
    far = over("tpu-v5e-16gb", 2, 512, stride=256)
    assert set(far.seconds("all-gather", 1e9)) == {"network"}
    assert far.network == pytest.approx(25e9 / 8 * SHARE)


# -- nodes of one ---------------------------------------------------------------------------------

ALONE = [
    n
    for n in catalog.gpu_names()
    if catalog.accelerator(n).unified_memory and not catalog.accelerator(n).peer_bandwidth
]


@each("gpu", ALONE)
@each("per_node", [0, 8])
def test_machines_of_one_memory_talk_over_their_network(gpu, per_node):
    """Also in an old link, whose eight in a node no such machine has."""
    network = catalog.node(catalog.accelerator(gpu).node).network_bandwidth
    if not network:
        pytest.skip("has none, which the plan refuses")
    pair = over(gpu, 2, gpus_per_node=per_node)
    assert set(pair.seconds("all-gather", 1e9)) == {"network"}
    assert pair.network <= network * SHARE


def test_two_sparks_have_200_gigabits():
    assert over("dgx-spark-gb10-128gb", 2).network == pytest.approx(25e9 * SHARE)


def test_geforce_cards_send_through_the_host():
    """Two in a desktop have eight lanes each, four have four."""
    cards = {"rtx-3090-24gb": 16e9, "rtx-4090-24gb": 16e9, "rtx-5090-32gb": 32e9}
    for gpu, rate in cards.items():
        assert over(gpu, 2).peer == pytest.approx(rate * SHARE)
        assert over(gpu, 4).peer == pytest.approx(rate / 2 * THROUGH_HOST.middle * SHARE)
        assert not over(gpu, 2).direct
    assert over("a6000-48gb", 2).peer == pytest.approx(16e9 * SHARE)  # its driver has access


# -- GPUs per node --------------------------------------------------------------------------------


def test_gpus_per_node_follow_the_node():
    for gpu, n in {"gb200-186gb": 4, "tpu-v5p-95gb": 4, "trainium-2-96gb": 16}.items():
        assert plan(gpu, 64).gpus_per_node == n == plan(gpu, 64).gpus_in_node
    assert plan("h100-sxm-80gb", 64).gpus_per_node == 8
    assert plan("h100-sxm-80gb", 64, gpus_per_node=4).gpus_in_node == 4


def test_an_old_link_still_says_eight():
    """Version 1 left out what was 8; a plan that leaves it to the node says 0."""
    old, issues = decode({"v": "1", "gpu": "h100-sxm-80gb~1"})
    assert old.cluster.gpus_per_node == 8
    assert not issues
    new = plan("gb200-186gb", 8)
    assert encode(new, short=True, form=1)["pernode"] == "0"
    assert decode(encode(new, short=True))[0] == new


def test_the_network_of_each_gpu_is_its_own_where_the_node_says_so():
    assert network_rate(plan("h100-sxm-80gb", 64)) == 50e9
    assert network_rate(plan("h100-sxm-80gb", 64, gpus_per_node=2)) == 50e9
    assert network_rate(plan("rtx-4090-24gb", 8)) == 1.25e9 / 8


# -- the host's side ------------------------------------------------------------------------------


@each("gpu", catalog.gpu_names())
def test_host_memory_is_the_chip_s_own_where_it_is_one(gpu):
    node, chip = plan(gpu, 1).node, catalog.accelerator(gpu)
    if chip.unified_memory:
        assert node.dram_bandwidth == chip.memory_bandwidth
        assert node.pcie_bandwidth == chip.pcie_bandwidth
    else:
        assert node.pcie_bandwidth <= chip.pcie_bandwidth


def test_a_report_has_one_answer_for_pcie():
    """A laptop's slot has eight lanes where its chip has sixteen."""
    document = Plan(
        model="llama-3.2-1b",
        cluster={"gpu": "rtx-4090-laptop-16gb", "gpus": 1},
        train={"offload_optimizer": "cpu", "framework": "deepspeed", "zero": 2},
        serve={"offload_weights": 0.5},
    )
    assert document.node.pcie_bandwidth == 16e9 < document.accelerator.pcie_bandwidth
    copied = next(t for t in evaluate(document).time.transfers if t.link == "pcie")
    assert copied.bytes / copied.seconds == pytest.approx(16e9 * 0.75)


# -- laws -----------------------------------------------------------------------------------------

RACKS = [n for n in catalog.gpu_names() if catalog.accelerator(n).peer_bandwidth]


@each("gpu", RACKS)
def test_no_group_is_faster_than_all_links_of_a_chip(gpu):
    chip = catalog.accelerator(gpu)
    for n in (2, 3, 4, 8, 16, 64):
        for stride in (1, 2, 4):
            found = over(gpu, n, n * stride, stride=stride)
            assert 0 < found.next <= found.peer <= chip.peer_bandwidth
            assert 0 < found.wide <= found.peer


@each("gpu", RACKS)
def test_a_larger_group_of_a_domain_has_no_fewer_links(gpu):
    sizes = [n for n in (2, 4, 8, 16, 32, 64) if n <= plan(gpu, 64).gpus_per_domain]
    for a, b in pairwise(over(gpu, n, 64).peer for n in sizes):
        assert a <= b


@pytest.mark.parametrize("gpu", RACKS)
@examples(10)
@given(ranks=st.sampled_from([2, 4, 8]), moved=st.floats(1e3, 1e11))
def test_inside_the_domain_is_never_slower_than_across(gpu, ranks, moved):
    domain = plan(gpu, 1).gpus_per_domain
    if ranks > domain:
        return
    near = over(gpu, ranks, domain)
    far = over(gpu, ranks, ranks * domain, stride=domain)
    assert far.inside == 1
    if near.peer < far.network:  # one link of a mesh may be less than a GPU's own adapter
        assert plan(gpu, 1).node.wiring == "mesh"
        assert ranks == 2
        return
    for kind in ("all-gather", "all-reduce", "all-to-all"):
        here, there = near.seconds(kind, moved), far.seconds(kind, moved)
        assert max(here.values()) <= max(there.values(), default=math.inf)


@each("gpu", RACKS)
def test_more_bytes_take_longer(gpu):
    for kind in ("all-gather", "all-reduce", "all-to-all"):
        seconds = [max(over(gpu, 8, 8).seconds(kind, n).values()) for n in (1e6, 1e8, 1e10)]
        assert seconds == sorted(seconds)


def test_tensor_parallel_ranks_are_inside_and_replicas_cross():
    """Ranks are numbered from the innermost axis out, so what talks most stays in the domain."""
    job = Plan(model="llama-3-8b", cluster={"gpu": "gb200-186gb", "gpus": 144}, parallel={"tp": 8})
    assert links(job, "TP").domains == 1
    assert links(job, "DP").domains == 2
    assert placement(job) == (("TP",), ("DP",))


def test_the_tiers_page_says_what_crosses():
    from app.tables.tiers import tiers

    job = Plan(model="llama-3-8b", cluster={"gpu": "gb200-186gb", "gpus": 144}, parallel={"tp": 8})
    said = {r["tier"]: r["what lives there"] for r in tiers(job, evaluate(job))}
    peers = next(w for t, w in said.items() if t.startswith("Peers"))
    network = next(w for t, w in said.items() if t.startswith("Network"))
    assert peers == "the memory of 71 other GPUs: tensor parallel"
    assert network == "GPUs that fast links do not reach: data parallel"
    one = job.with_changes({"cluster.gpus": 8, "cluster.gpu": "h100-sxm-80gb"})
    assert tiers(one, evaluate(one))[-1]["what lives there"].startswith("nothing")
