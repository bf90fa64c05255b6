"""Files that are broken, bombs, variables that nobody sets: never a fault, always what to do."""

import time

import pytest

from memcore.errors import PlanError
from memcore.formats import kind_of, read_files
from memcore.formats.texts import Text, text_of

JOB = "model_name_or_path: Qwen/Qwen3-8B\nper_device_train_batch_size: 2\n"


def found(content, name="job.yaml", **words):
    return read_files([Text(name, content)], gpu="h100-sxm-80gb", **words)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.yaml", "model_name_or_path: x\n\tper_device_train_batch_size: 2\n", "no YAML: line 2"),
        ("a.yaml", 'model_name_or_path: "x\nb: 2\n', "no YAML: line 3"),
        ("a.yaml", JOB + "a: !!python/object/apply:os.system [x]\n", "no YAML: line 3"),
        ("a.json", '{"a": 1,, }', "no JSON: "),
        ("a.toml", '[model\nname="x"', "no TOML: "),
    ],
)
def test_a_broken_document_is_refused_with_its_place(name, content, said):
    with pytest.raises(PlanError) as raised:
        found(content, name)
    assert raised.value.issues[0].field == name
    assert said in str(raised.value)


MANY_VALUES = "more than 200,000 values, with those that its anchors repeat"
ALIASES = "a0: &a0 {x: 1, y: 2}\n" + "".join(
    f"a{i}: &a{i} {{{', '.join(f'k{j}: *a{i - 1}' for j in range(8))}}}\n" for i in range(1, 9)
)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (ALIASES + "actor_rollout_ref: *a8\n", MANY_VALUES),
        (ALIASES + JOB + "gradient_checkpointing: *a8\n", MANY_VALUES),
        ("a: &a {b: *a}\n" + JOB, "nested more than 100 deep"),
    ],
)
def test_aliases_that_grow_without_bound_are_refused_at_once(content, said):
    start = time.process_time()
    assert kind_of(Text("a.yaml", content)) == ""
    with pytest.raises(PlanError, match=said):
        found(content)
    assert time.process_time() - start < 2


MANY = 200_000


@pytest.mark.parametrize(
    "content",
    [
        "vllm serve x" + " " * MANY + "y",
        "\n" * MANY,
        "$((" * (MANY // 3),
        "".join(f"A{i}=1\nA{i}=2\n" for i in range(MANY // 14)),
        "FROM x\nCMD " + "[" * MANY,
        "- " * (MANY // 2),
    ],
    ids=["blanks", "lines", "sums", "variables", "brackets", "lists"],
)
def test_a_long_text_takes_no_longer_than_it_is(content):
    start = time.process_time()
    with pytest.raises(PlanError):
        found(content, "job.sh")
    assert time.process_time() - start < 5


def test_anchors_and_tags_of_ones_own_are_read():
    read = found(
        "base: &base {per_device_train_batch_size: 4}\nmodel_name_or_path: !ENV Qwen/Qwen3-8B\n"
        "training: {<<: *base, max_length: 512}\n"
    )
    assert (read.plan.train.micro_batch, read.plan.train.seq_len) == (4, 512)


def test_what_stands_elsewhere_in_a_file_is_put_in():
    read = found(
        "name: Qwen/Qwen3-8B\nmodel_name_or_path: ${name}\n"
        "per_device_train_batch_size: ${oc.env:BATCH,4}\nmax_length: ${sizes.length}\n"
        "sizes: {length: 512}\ngradient_accumulation_steps: ${oc.env:STEPS}\nloop: ${loop}\n"
    )
    assert (read.plan.train.micro_batch, read.plan.train.seq_len) == (4, 512)
    told = next(i for i in read.left if i.field == "gradient_accumulation_steps")
    assert "a variable that the text does not set" in told.message


def test_json_with_comments_is_read_as_deepspeed_does():
    text = '{\n  // of a stage\n  "zero_optimization": {"stage": 2,},\n}'
    assert found(text, "ds.json", model="qwen3-8b").plan.train.zero == 2


@pytest.mark.parametrize(
    "content",
    [
        (
            'FROM vllm/vllm-openai\nENTRYPOINT ["vllm", "serve"]\nCMD ["Qwen/Qwen3-8B", '
            '"--max-model-len", "8192"]\n'
        ),
        "FROM base\nENV MODEL=Qwen/Qwen3-8B\nCMD vllm serve $MODEL \\\n  --max-model-len 8192\n",
        (
            "FROM base AS last\nENV MODEL Qwen/Qwen3-8B\n"
            "ENTRYPOINT python3 -m vllm.entrypoints.openai.api_server --model $MODEL "
            "--max-model-len=8192\n"
        ),
    ],
)
def test_what_a_dockerfile_runs_is_read(content):
    read = found(content, "Dockerfile")
    assert (read.plan.model, read.plan.serve.max_seq_len) == ("qwen3-8b", 8192)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("vllm serve some/Frobnicator --max-model-len 8192", "huggingface.co/some/Frobnicator/raw"),
        ("vllm serve Qwen/Qwen3-9B --max-model-len 8192", "a preset as qwen3-8b"),
        ("vllm serve /models/mine --max-model-len 8192", "give its config.json beside"),
        ("vllm serve $MODEL --max-model-len 8192", "a variable that the text does not set"),
    ],
)
def test_a_model_that_nobody_knows_has_a_next_step(content, said):
    with pytest.raises(PlanError) as raised:
        found(content, "job.sh")
    assert raised.value.issues[0].field == "model"
    assert said in str(raised.value)
    assert "--model" in str(raised.value)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x80\x04\x95\xff", "a pickle says no job; memplan snapshot reads"),
        (b"GGUF\x03\xff", "give the command that serves them"),
        (b"PK\x03\x04\xff", "give the files in it"),
        (b"\xff\xfe", "not a text in UTF-8"),
    ],
)
def test_bytes_that_are_no_text_have_a_next_step(data, said):
    with pytest.raises(PlanError) as raised:
        text_of("a.bin", data)
    assert said in str(raised.value)


def test_a_config_with_a_trainer_s_keys_is_a_config():
    config = (
        '{"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, '
        '"gradient_checkpointing": false, "max_seq_length": 512}'
    )
    assert kind_of(Text("config.json", config)) == "config.json"


def test_a_path_is_the_model_that_it_is_served_as():
    read = found("vllm serve /models/mine --served-model-name Qwen3-8B", "job.sh")
    assert read.plan.model == "qwen3-8b"
    assert any("it is served as" in issue.message for issue in read.assumed)
