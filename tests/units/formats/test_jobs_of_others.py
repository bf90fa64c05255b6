"""Jobs over several files, and files that describe none."""

import pytest

from memcore.errors import PlanError
from memcore.formats import read_files
from memcore.formats.texts import Text
from memcore.plan.plan import get


def found(*texts, **words):
    return read_files([Text(*each) for each in texts], gpu="h100-sxm-80gb", **words)


SFT = "model_name_or_path: Qwen/Qwen3-8B\nper_device_train_batch_size: 2\nmax_length: 512\n"


@pytest.mark.parametrize(
    ("command", "file"),
    [
        ("llamafactory-cli train examples/a.yaml", "examples/a.yaml"),
        ("axolotl train a.yml", "a.yml"),
        ("accelerate launch -m axolotl.cli.train a.yml --deepspeed zero2.json", "a.yml"),
        ("tune run --nproc_per_node 4 lora_finetune_distributed --config llama3/8B", "llama3/8B"),
        ("torchrun --nproc_per_node=8 -m torchtitan.train --job.config_file a.toml", "a.toml"),
        ("accelerate launch --config_file zero3.yaml sft.py --config a.yaml", "a.yaml"),
    ],
)
def test_a_command_whose_job_stands_in_a_file_asks_for_it(command, file):
    with pytest.raises(PlanError) as raised:
        found(("job.sh", command))
    assert file in str(raised.value)
    assert "give that file beside it" in str(raised.value)


def test_a_command_and_the_file_of_its_job_are_one():
    start = (
        "CUDA_VISIBLE_DEVICES=0,1 accelerate launch --config_file zero3.yaml dpo.py --config a.yaml"
    )
    read = found(("job.sh", start), ("a.yaml", SFT))
    assert (read.plan.cluster.gpus, read.plan.train.zero, read.plan.train.micro_batch) == (2, 3, 4)
    assert read.wants == ("zero3.yaml",)
    assert any("a pair" in issue.message for issue in read.left)


@pytest.mark.parametrize(
    ("content", "key"),
    [
        ("tasks: [bbh]\nbatch_size: 12\n", "tasks"),
        ("prompt: {user: hi}\nmax_new_tokens: 300\n", "max_new_tokens"),
    ],
)
def test_a_file_of_torchtunes_that_trains_nothing_is_refused(content, key):
    model = "model: {_component_: torchtune.models.llama3_1.llama3_1_8b}\n"
    with pytest.raises(PlanError, match=f"{key}: the file is of"):
        found(("a.yaml", model + content))


def test_logits_in_pieces_that_are_kept_are_told():
    text = (
        "model: {_component_: torchtune.models.llama3_1.llama3_1_8b}\nbatch_size: 2\n"
        "loss: {_component_: torchtune.modules.loss.CEWithChunkedOutputLoss}\n"
    )
    read = found(("a.yaml", text))
    assert read.plan.train.cross_entropy == "eager"
    assert any(issue.field == "loss._component_" for issue in read.left)


RL = """
grpo: {num_prompts_per_step: 32, num_generations_per_prompt: 16}
policy:
  model_name: Qwen/Qwen3-8B
  train_global_batch_size: 512
  train_micro_batch_size: 4
  max_total_sequence_length: 4096
  dtensor_cfg: {enabled: true, tensor_parallel_size: 2, sequence_parallel: true, cpu_offload: true}
  generation:
    backend: vllm
    max_new_tokens: 2048
    vllm_cfg: {tensor_parallel_size: 2, gpu_memory_utilization: 0.6}
loss_fn: {reference_policy_kl_penalty: 0.01}
cluster: {gpus_per_node: 8, num_nodes: 2}
"""
RECIPE = """
def finetune_recipe(num_nodes=1, num_gpus_per_node=8):
    strategy = run.Config(Strategy, tensor_model_parallel_size=2, pipeline_model_parallel_size=1)
    trainer = run.Config(Trainer, devices=num_gpus_per_node, strategy=strategy)
    data = run.Config(Data, seq_length=2048, global_batch_size=128, micro_batch_size=2)
    return run.Partial(finetune, trainer=trainer, data=data)
"""
MEGATRON = """
distributed_type: MEGATRON_LM
mixed_precision: bf16
num_processes: 8
megatron_lm_config:
  megatron_lm_tp_degree: 2
  megatron_lm_pp_degree: 2
  megatron_lm_num_micro_batches: 4
  megatron_lm_recompute_activations: true
"""
ONE = {
    "NeMo RL's rollouts": (
        RL,
        {
            "together.kind": "grpo",
            "together.engine_tp": 2,
            "together.rollouts": 32,
            "together.reference": "host",
            "serve.memory_utilization": 0.6,
            "serve.output_len": 2048,
            "parallel.tp": 2,
            "parallel.sequence_parallel": True,
            "train.offload_optimizer": "cpu",
        },
    ),
    "a recipe whose calls say it": (
        RECIPE,
        {"parallel.tp": 2, "train.micro_batch": 2, "train.seq_len": 2048, "cluster.gpus": 8},
    ),
    "Megatron under Accelerate": (
        MEGATRON,
        {
            "train.framework": "megatron",
            "parallel.tp": 2,
            "parallel.pp": 2,
            "train.grad_accumulation": 4,
            "train.checkpointing": "selective",
        },
    ),
}


@pytest.mark.parametrize("name", ONE)
def test_a_job_is_read(name):
    content, wanted = ONE[name]
    read = found(("job", content), model="qwen3-8b")
    plan = read.plan.document()
    assert {path: get(plan, path) for path in wanted} == wanted
    assert not {"enabled", "policy", "grpo"} & {*read.unread}


GENERATES = (
    "torchrun tools/run_text_generation_server.py --num-layers 32 --hidden-size 4096 "
    "--num-attention-heads 32 --seq-length 4096 --micro-batch-size 1 --swiglu "
    "--normalization RMSNorm --vocab-size 32000 --position-embedding-type rope --bf16"
)


def test_a_script_of_megatrons_that_only_generates_is_no_training():
    with pytest.raises(PlanError, match="trains nothing"):
        found(("job.sh", GENERATES))


def test_what_trains_is_read_of_a_script_that_generates_too():
    trains = GENERATES.replace("tools/run_text_generation_server", "pretrain_gpt")
    wide = trains.replace("--seq-length 4096", "--seq-length 8192")
    assert found(("job.sh", f"{GENERATES}\n{wide}")).plan.train.seq_len == 8192


SLIME = """
PERF=(
   --tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 1
   --recompute-granularity full --recompute-method uniform --recompute-num-layers 1

   --use-dynamic-batch-size --max-tokens-per-gpu 9216
)
ray job submit --address="http://127.0.0.1:8265" -- python3 train.py \\
   --actor-num-nodes 2 --actor-num-gpus-per-node 8 --colocate --hf-checkpoint /models/Qwen3-8B \\
   --rollout-batch-size 32 --n-samples-per-prompt 8 --rollout-max-response-len 8192 \\
   --global-batch-size 256 --use-kl-loss --kl-loss-coef 0.00 --advantage-estimator grpo \\
   --rollout-num-gpus-per-engine 2 --sglang-mem-fraction-static 0.7 ${PERF[@]}
"""


def test_slime_s_command_is_megatron_s_step_beside_sglang():
    read = found(("run.sh", SLIME))
    plan = read.plan
    assert set(read.kinds.values()) == {"slime"}
    assert (plan.model, plan.cluster.gpus, plan.parallel.tp) == ("qwen3-8b", 16, 2)
    assert (plan.train.framework, plan.train.precision) == ("megatron", "bf16-mixed")
    assert (plan.train.checkpointing, plan.train.seq_len) == ("full", 1024 + 8192)
    together, serve = plan.together, plan.serve
    assert (together.kind, together.engine_tp, together.rollouts) == ("grpo", 2, 16)
    assert (together.reference, together.trainer) == ("host", "host")
    assert (serve.engine, serve.memory_utilization, serve.output_len) == ("sglang", 0.7, 8192)
    assert any("max-tokens-per-gpu" in issue.field for issue in read.left)
    assert plan.train.zero == 1  # backends/megatron_utils/arguments.py, _set_default_megatron_args


def test_torchtitans_optimizer_is_the_one_it_names():
    job = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nseq_len = 512\n[parallelism]\n'
    for said, optimizer, left in (("Muon", "muon", ""), ("Shampoo", "adamw", "Shampoo")):
        read = found(("a.toml", f'{job}[optimizer]\nname = "{said}"\n'))
        assert read.plan.train.optimizer == optimizer
        assert left in " ".join(map(str, read.left))
