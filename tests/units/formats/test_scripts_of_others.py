"""What people's scripts do around a command: sums, branches, launchers, clusters, Python."""

import pytest

from memcore.errors import PlanError
from memcore.formats import read_files
from memcore.formats.texts import Text, several
from memcore.models import cards
from memcore.plan.plan import get


def found(content, name="job.sh", **words):
    return read_files([Text(name, content)], **words)


TRAINS = "train.py --model_name_or_path Qwen/Qwen3-8B --max_seq_length 2048 --bf16 True"


@pytest.mark.parametrize(
    ("script", "path", "value"),
    [
        # a sum with brackets inside, beside another on the same line
        (
            (
                "G=128\nB=4\nN=8\nA=$((G / (B * N)))\n"
                f"python {TRAINS} --per_device_train_batch_size $B "
                "--gradient_accumulation_steps $A --pixels $((256 * 28 * 28))"
            ),
            "train.grad_accumulation",
            4,
        ),
        # a line that goes on after a blank, which a shell would not allow and people write
        (
            f"python {TRAINS} \\  \n  --per_device_train_batch_size 3",
            "train.micro_batch",
            3,
        ),
        # a line of options that nothing joins to the line before
        (f"python {TRAINS}\n  --per_device_train_batch_size 5\n", "train.micro_batch", 5),
        # what is taken where whoever starts it gives nothing
        (f"python {TRAINS} --per_device_train_batch_size ${{1:-6}}", "train.micro_batch", 6),
        (
            (
                "B=7\nwhile getopts b: o; do\n  B=$2\ndone\n"
                f"python {TRAINS} --per_device_train_batch_size $B"
            ),
            "train.micro_batch",
            7,
        ),
        # what Slurm's options say, in the variables that Slurm sets
        (
            (
                "#SBATCH --nodes=2\n#SBATCH --gpus-per-node=8\n"
                "vllm serve Qwen/Qwen3-8B --tensor-parallel-size $SLURM_GPUS_PER_NODE"
            ),
            "serve.tp",
            8,
        ),
    ],
)
def test_a_script_is_read_as_a_shell_would(script, path, value):
    assert get(found(script).plan.document(), path) == value


def test_lists_of_words_with_empty_lines_are_one_command():
    read = found(
        "ARGS=(\n  --num-layers 24\n  --hidden-size 2048\n\n  --num-attention-heads 16\n\n"
        "  --vocab-size 32000 --swiglu --normalization RMSNorm --position-embedding-type rope\n"
        "  --micro-batch-size 2 --seq-length 4096 --bf16\n)\ntorchrun pretrain_gpt.py ${ARGS[@]}\n"
    )
    assert read.plan.train.micro_batch == 2
    assert read.plan.architecture.vocab_size == 32_000


def test_options_that_a_branch_decides_are_told():
    script = (
        "if [ $1 = 7B ]; then\n  L=32\nelif [ $1 = 70B ]; then\n  L=80\nfi\n"
        "torchrun pretrain_gpt.py --num-layers $L --hidden-size 4096 --num-attention-heads 32 "
        "--vocab-size 32000 --swiglu --normalization RMSNorm --position-embedding-type rope "
        "--micro-batch-size 1 --seq-length 4096 --bf16"
    )
    assert several(Text("a.sh", script)) == {"--num-layers": ("32", "80")}
    told = next(issue for issue in found(script).left if issue.field == "--num-layers")
    assert "32, 80" in told.message
    assert "the last is read" in told.message


def test_commands_that_python_makes_are_read():
    script = (
        "import subprocess\n\ndef start(name, tp):\n"
        '    words = ["vllm", "serve", "Qwen/Qwen3-8B", "--max-model-len", "4096"]\n'
        '    words += ["--tensor-parallel-size", str(tp)]\n'
        '    words.extend(["--kv-cache-dtype", "fp8"])\n    subprocess.run(words)\n'
    )
    read = found(script, "serve.py")
    assert (read.plan.serve.max_seq_len, read.plan.serve.kv_dtype) == (4096, "fp8")
    assert any("$tp" in issue.message for issue in read.left)


def test_a_script_inside_a_container_is_read():
    compose = (
        "services:\n  a:\n    image: nvcr.io/nvidia/tensorrt-llm/release:1.3\n    command: >\n"
        "      bash -c '\n        X=1 \\\n        trtllm-serve Qwen/Qwen3-8B\n"
        "        --max_batch_size 8 \\\n        --max_seq_len 8192\n      '\n"
    )
    read = found(compose, "compose.yaml")
    assert (read.plan.serve.max_num_seqs, read.plan.serve.max_seq_len) == (8, 8192)


@pytest.mark.parametrize(
    ("launcher", "framework", "zero"),
    [
        ("--use_deepspeed --zero_stage 2", "deepspeed", 2),
        ("--use_fsdp --fsdp_sharding_strategy SHARD_GRAD_OP", "fsdp2", 2),
        ("--multi_gpu", "pytorch", 0),
        ("--config_file configs/zero3.yaml", "deepspeed", 3),
        ("--config_file fsdp_config.yaml", "fsdp2", 3),
    ],
)
def test_accelerates_own_options_say_who_shards(launcher, framework, zero):
    read = found(f"accelerate launch --num_processes 8 {launcher} {TRAINS}")
    train = read.plan.train
    assert (train.framework, train.zero, read.plan.cluster.gpus) == (framework, zero, 8)
    named = launcher.rpartition(" ")[2]
    assert read.wants == ((named,) if "config_file" in launcher else ())


def test_a_file_that_accelerate_is_told_of_counts_before_its_name():
    beside = Text("zero3.yaml", "distributed_type: FSDP\nnum_processes: 4\nfsdp_config: {}\n")
    start = Text("job.sh", f"accelerate launch --config_file zero3.yaml {TRAINS}")
    read = read_files([start, beside])
    assert (read.plan.train.framework, read.plan.cluster.gpus, read.wants) == ("fsdp2", 4, ())


@pytest.mark.parametrize(
    ("launcher", "count"),
    [
        ("CUDA_VISIBLE_DEVICES=0,1,2 deepspeed", 3),
        ("export CUDA_VISIBLE_DEVICES=0,1\ndeepspeed", 2),
        ("CUDA_VISIBLE_DEVICES=0,1,2 python", 1),
        ("#SBATCH --nodes=2\n#SBATCH --gpus-per-node=h100:4\nsrun python", 8),
        ("#SBATCH --gpus=a100:6\nsrun python", 6),
        ("deepspeed --num_nodes 2 --num_gpus 4", 8),
    ],
)
def test_more_ways_to_say_how_many(launcher, count):
    assert found(f"{launcher} {TRAINS}").plan.cluster.gpus == count


@pytest.mark.parametrize(
    ("content", "gpu"),
    [
        (f"#SBATCH --gres=gpu:a100:4\nsrun python {TRAINS}", "a100-sxm-40gb"),
        (f"#SBATCH --gpus-per-node=h100:4\nsrun python {TRAINS}", "h100-sxm-80gb"),
        (f"#SBATCH --constraint=l40s\nsrun python {TRAINS}", "l40s-48gb"),
        (
            (
                "resources:\n  accelerators: A100-80GB:2\n"
                "run: |\n  vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2\n"
            ),
            "a100-sxm-80gb",
        ),
        (
            (
                "spec:\n  nodeSelector:\n    cloud.google.com/gke-accelerator: nvidia-l4\n"
                "  containers:\n  - image: vllm/vllm-openai\n    args: [--model, Qwen/Qwen3-8B]\n"
            ),
            "l4-24gb",
        ),
    ],
)
def test_a_file_may_name_the_gpu(content, gpu):
    read = found(content, "job.yaml")
    assert read.plan.cluster.gpu == gpu
    assert any(said.field == "cluster.gpu" for said in read.said)
    assert found(content, "job.yaml", gpu="h200-sxm-141gb").plan.cluster.gpu == "h200-sxm-141gb"


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("NVIDIA-A100-SXM4-80GB", "a100-sxm-80gb"),
        ("tesla-v100-sxm2-32gb", "v100-sxm-32gb"),
        ("NVIDIA-GeForce-RTX-4090", "rtx-4090-24gb"),
        ("rtx4080", "rtx-4080-16gb"),
        ("MI300X", "mi300x-192gb"),
        ("h100-nvl", "h100-nvl-94gb"),
        ("A10G", "a10g-24gb"),
        ("A100 80G", "a100-sxm-80gb"),
        ("gaudi3", "gaudi-3-128gb"),
        ("gpu", ""),
        ("volta", ""),
    ],
)
def test_names_of_gpus_lead_to_presets(name, gpu):
    assert cards.preset(name) == gpu


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("4090", "rtx-4090-24gb"),
        ("4090-laptop", "rtx-4090-laptop-16gb"),
        ("v5e", "tpu-v5e-16gb"),
        ("dgx spark", "dgx-spark-gb10-128gb"),
        ("h100", "h100-sxm-80gb"),
        ("rtx 6000", ""),  # of Ada, or the Pro of Blackwell
        ("4060", "rtx-4060-8gb"),
        ("80gb", ""),
        ("", ""),
    ],
)
def test_people_name_gpus_by_less(name, gpu):
    assert cards.preset(name) == gpu


POD = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
spec:
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      template: &pod
        spec:
          containers:
          - image: mine
            command: [torchrun, train.py, --model_name_or_path, Qwen/Qwen3-8B]
            args: [--per_device_train_batch_size, "2", --max_seq_length, "512"]
            resources: {limits: {cpu: 8}}
            env: []
    Worker:
      replicas: 3
      template: *pod
# nvidia.com/gpu: 1
"""


@pytest.mark.parametrize(
    ("content", "count"),
    [
        (POD.replace("limits: {cpu: 8}}", "limits:\n                nvidia.com/gpu: 4}"), 0),
        (POD.replace("resources: {limits: {cpu: 8}}",
                     "resources:\n              limits:\n                nvidia.com/gpu: 4"), 16),
        (("resources:\n  accelerators: H100:8\nnum_nodes: 2\nrun: |\n"
         f"  torchrun {TRAINS}\n"), 16),
        (f"#SBATCH --gpus-per-node=8\n#SBATCH --nodes=4\nsrun python {TRAINS}", 32),
    ],
)  # fmt: skip
def test_a_cluster_s_file_says_how_many(content, count):
    if not count:  # a broken manifest is no fault
        with pytest.raises(PlanError):
            found(content, "job.yaml")
        return
    assert found(content, "job.yaml").plan.cluster.gpus == count


SERVE = "vllm serve Qwen/Qwen3-8B --tensor-parallel-size 4 --max-model-len 8192"
MODEL = "Qwen/Qwen3-8B --tensor-parallel-size 4 --max-model-len 8192"
FORMS = {
    "systemd": '[Service]\nEnvironment=M=Qwen/Qwen3-8B\nEnvironment="TP=4" "B=2"\n'
    "ExecStart=/opt/bin/vllm serve ${M} --tensor-parallel-size ${TP} --max-model-len 8192\n",
    "Makefile": "M ?= Qwen/Qwen3-8B\nTP := 4\nserve:\n"
    "\tvllm serve $(M) --tensor-parallel-size $(TP) --max-model-len 8192\n",
    "justfile": 'm := "Qwen/Qwen3-8B"\nserve:\n  vllm serve {{m}} -tp 4 --max-model-len 8192\n',
    "docker": f"docker run --gpus all --ipc=host vllm/vllm-openai:v0.11.0 {MODEL}",
    "compose": "services:\n  a:\n    image: vllm/vllm-openai:latest\n    command: |\n"
    "      --model Qwen/Qwen3-8B\n      --tensor-parallel-size 4\n      --max-model-len 8192\n",
    "launch.json": '{"configurations": [{"module": "vllm.entrypoints.openai.api_server", "args": '
    '["--model", "Qwen/Qwen3-8B", "--tensor-parallel-size", "4", "--max-model-len", "8192"]}]}',
    "a.py": 'import os\nM, N = 1, 2\nTP = 4\nNAME = "Qwen/Qwen3-8B"\n'
    'os.system(f"vllm serve {NAME} --tensor-parallel-size {TP} --max-model-len 8192")\n',
    "b.py": 'N = 4\nCMD = ["vllm", "serve", "Qwen/Qwen3-8B", "--tensor-parallel-size", str(N),\n'
    '       "--max-model-len", "8192"]\n',
    "sky.yaml": "resources:\n  accelerators: H100:4\nrun: |\n"
    f"  {SERVE.replace(' 4 ', ' $SKYPILOT_NUM_GPUS_PER_NODE ')}\n",
}


@pytest.mark.parametrize("form", FORMS)
def test_a_server_is_started_in_many_forms(form):
    plan = found(FORMS[form], form).plan
    assert (plan.model, plan.serve.tp, plan.serve.max_seq_len) == ("qwen3-8b", 4, 8192)


@pytest.mark.parametrize("printed", ["$(nvidia-smi -L | wc -l)", "`nvidia-smi -L | wc -l`"])
def test_what_a_command_prints_is_one_word_that_nobody_knows(printed):
    read = found(SERVE.replace(" 4 ", f" {printed} "))
    assert read.plan.serve.max_seq_len == 8192
    assert any("does not set" in issue.message for issue in read.left)


def test_a_path_of_windows_is_a_path():
    script = "llama-server.exe -m D:\\models\\Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf -c 8192"
    assert found(script).plan.model == "llama-3.1-8b"


TRAINING = (
    "--model_name_or_path Qwen/Qwen3-8B --per_device_train_batch_size 2 --bf16 True "
    "--gradient_accumulation_steps 8 --gradient_checkpointing True"
)


STARTS = (
    "accelerate launch --num_processes=8 -m pkg.train",
    "torchrun --nproc-per-node 8 --rdzv_backend c10d train.py",
)


@pytest.mark.parametrize("starts", STARTS)
def test_a_launchers_own_options_are_passed_over(starts):
    read = found(f"{starts} {TRAINING}")
    assert (read.plan.cluster.gpus, read.plan.train.micro_batch, read.unread) == (8, 2, ())


NESTED = "run:\n  args:\n    per_device_train_batch_size: 2\n    gradient_accumulation_steps: 8\n"


WRITTEN = {
    "a.json": '{"model_name_or_path": "Qwen/Qwen3-8B", // its model\n /* two */ "bf16": true,\n'
    '"per_device_train_batch_size": 2, "gradient_accumulation_steps": 8,\n}',
    "tabs.yaml": "model_name_or_path:\tQwen/Qwen3-8B\nper_device_train_batch_size:\t2\n"
    "bf16: true\ngradient_accumulation_steps: 8\n",
    "nested.yaml": f"{NESTED}  model:\n    model_name_or_path: Qwen/Qwen3-8B\n",
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_document_is_read_as_people_write_it(name):
    train = found(WRITTEN[name], name).plan.train
    assert (train.micro_batch, train.grad_accumulation) == (2, 8)
