"""Servers: the commands that start vLLM, SGLang, TensorRT-LLM, llama.cpp, TGI and LMDeploy, by
their tables in presets/programs; here is what no table says.
"""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from memcore.errors import shown
from memcore.formats import hub, placement, python
from memcore.formats.draft import Around, Draft, Keys, UnsaidError, hyphened, names, positive
from memcore.formats.programs import Program, tables_with
from memcore.formats.texts import OF_LLAMA, UNSET, adds, module, options
from memcore.units import GiB
from memcore.words.engines import ENGINES, LLAMA_CPP, VLLM, roomy

ALL_LAYERS = 99  # of a model, as people tell llama.cpp to put all of it on the GPU
SHARED = Program("servers_words")  # what engines have in common
WIDE = {"bf16", "fp16", "fp32"}
MAX_DEPTH, MOST = 8, 200


class Server(Program):
    """How one engine's command is read: by its table, and by MORE where that says not all.

    A table has besides `engine`, the word of serve.engine; `command`, what a command has in it;
    `label`, where no plan has its engine and the nearest is planned; `model`, the options that name
    the model, after a word without a dash; `starts`, the words that one is written with before the
    model, and `underscored`, that '_' parts those of its options; `quantized`, those that say how
    weights are quantized; `imports` and `calls`, the module of Python that starts it and its
    functions that do; `second_tier`, the option of a cache in the host's memory; `guess`, those of
    who guesses tokens: how, the model, how many, each with '|' between its names; `guess_in`, the
    section they are in.
    """

    def __init__(self, name: str):
        super().__init__(name)
        self.engine: str = self.table["engine"]
        self.label: str = self.table.get("label", self.engine)  # what the program is called
        self.program = re.compile(self.table["command"])

    @functools.cached_property
    def known(self) -> frozenset[str]:
        """The names of its options, as far as anything is done or told of them."""
        trial = Keys({"speculative_model": "x", "speculative_algorithm": "x"})
        _read(self, trial, "", Draft())
        names = self.left_names | trial.taken | set(self.harmless)
        return frozenset(o for o in names if "*" not in o and len(o) >= SHORTEST)


def recognise(commands: Sequence[Sequence[str]]) -> tuple[Server, Sequence[str]] | None:
    """The command, of several, that starts a server, and its engine. A page has many that look like
    one: that which says most counts, and one whose model has a preset before others."""
    found = _started(commands)
    return max(found, key=_says, default=None)


def others(commands: Sequence[Sequence[str]], chosen: Sequence[str], draft: Draft) -> list[str]:
    """Models of the other servers that a text starts, beside the one that a draft has."""
    found = []
    for server, command in _started(commands):
        if command == chosen:
            continue
        trial = Draft()
        read(server, command, trial)
        differs = adds(_own(server, command), chosen) or draft.model != trial.model
        if trial.model.strip(".") and differs:
            found.append(trial.model)
    return found


def _started(commands: Sequence[Sequence[str]]) -> list[tuple[Server, Sequence[str]]]:
    return [
        (server, c) for c in commands for server in SERVERS if server.program.search(" ".join(c))
    ]


def _own(server: Server, command: Sequence[str]) -> Sequence[str]:
    """A command from its program on: before it stand the options of a shell or of a container."""
    starts = [
        at
        for at in range(len(command))
        if (found := server.program.search(" ".join(command[at : at + 2])))
        and found.start() < len(command[at])
    ]
    value = re.compile(r"--?\w[\w-]*$")  # an option, whose value the next word may be
    free = [
        at
        for at in starts
        if not at or not value.match(command[at - 1]) or re.match(r"-\w*[cm]$", command[at - 1])
    ]
    return command[max(free) if free else starts[0] :] if starts else command


def _says(started: tuple[Server, Sequence[str]]) -> tuple[bool, bool, int]:
    trial = Draft()
    read(*started, trial)
    return bool(hub.preset(trial.model)), bool(trial.model), len(trial.said)


def configures(values: Mapping[str, Any]) -> bool:
    """Whether a document is what `vllm serve --config` takes: its options, without dashes."""
    return _configured(values) is not None


def of_sglang(values: Mapping[str, Any]) -> bool:
    """Whether a document is what `sglang.launch_server --config` takes."""
    found = _configured(values)
    return found is not None and found[0].engine == "sglang"


def configured(values: Mapping[str, Any], draft: Draft) -> None:
    """What such a document says."""
    if (found := _configured(values)) is not None:
        told(*found, draft)


def _configured(values: Mapping[str, Any]) -> tuple[Server, dict[str, Any]] | None:
    """The engine whose options a document has, and those: by themselves, or as deep in it as files
    of Ray Serve and of vLLM's production stack have them."""
    level: list[tuple[Any, dict[str, Any]]] = [(values, {})]
    within = {id(values)}  # what may hold options: the document itself, and sections for them
    for _ in range(MAX_DEPTH):
        below: list[tuple[Any, dict[str, Any]]] = []
        for each, around in level:
            if isinstance(each, Mapping):
                own = _options(each)
                within |= {
                    id(inner) for name, inner in own.items() if name in SHARED.names["sections"]
                }
                for server in (SGLANG, VLLM_TABLE) if id(each) in within else ():
                    known = {o for row in server.rows["read"] for o in row.keys if "_" in o}
                    marks = server.names.get("own", known) & own.keys()
                    if len(marks) >= 2:
                        extra = own.pop("extra_args", None)
                        more = options(map(str, extra))[1] if isinstance(extra, list) else {}
                        return server, {**around, **own, **more}
                loads = own.get("model_loading_config")
                named = [own.get(name) for name in SHARED.listed("named")]
                if isinstance(loads, Mapping):
                    named = [loads.get("model_source"), loads.get("model_id"), *named]
                model = next((name for name in named if isinstance(name, str)), None)
                here = around | {"model": model} if model else around
                below += [(inner, here) for inner in each.values()]
            elif isinstance(each, list):
                below += [(inner, around) for inner in each]
        level = below[:MOST]
    return None


def _bound(values: Mapping[str, Any], context: int, draft: Draft) -> dict[str, Any]:
    """What llama-cpp-python is given, as llama.cpp's options; the defaults are its own."""
    found = LLAMA.rename(values)
    if found.get("gpu_layers") is None:
        draft.leave("n_gpu_layers", "is not said: llama-cpp-python has all layers on the CPU then")
    if found.get("ctx_size") is None:
        draft.leave("n_ctx", f"is not said: llama-cpp-python's {context:,} tokens are planned")
    on = str(found.get("flash_attn")).lower() in ("true", "1")
    usual = {"ctx_size": context, "gpu_layers": 0, "parallel": 1}
    said = {name: value for name, value in found.items() if value is not None}
    if str(said.get("ctx_size")) == "0":  # of the model
        said.pop("ctx_size")
        usual.pop("ctx_size")
    if str(said.get("gpu_layers")) == "-1":
        said["gpu_layers"] = "all"
    if isinstance(parts := said.get("tensor_split"), list):
        said["tensor_split"] = ",".join(map(str, parts))
    return {**usual, **said, "flash_attn": "on" if on else "off"}


def told(server: Server, values: Mapping[str, Any], draft: Draft) -> None:
    """What a document says in an engine's own options, or a call in Python."""
    if server is LLAMA and values.get(BOUND):
        values = _bound({k: v for k, v in values.items() if k != BOUND}, 512, draft)
    _read(server, Keys(values), "", draft)


def _options(values: Mapping[str, Any]) -> dict[str, Any]:
    """A document's keys as options have them: max-model-len, maxModelLen."""
    return {
        re.sub(r"(?<=[a-z])([A-Z])", r"_\1", str(name)).replace("-", "_").lower(): value
        for name, value in values.items()
    }


def read(
    server: Server, command: Sequence[str], draft: Draft, environment: Mapping[str, str] = {}
) -> None:
    """What the command says, and the environment that it is started in."""
    own = _own(server, command)
    plain, given = options(own)
    if server.engine != LLAMA_CPP and server.label == server.engine:
        given = _in_full(server, given)
    if any(word.endswith("llama_cpp.server") for word in own):
        given = _bound(given, 2048, draft)
    if server is LLAMA:
        environment = _of_llama_cpp(environment)
    model = _served(own, plain, given)
    _read(server, Keys({**environment, **given}, _option), model, draft)


def versioned(contents: Sequence[str], draft: Draft) -> bool:
    """Whether texts say the version of a draft's engine; one before what its word is since makes
    it the word for those."""
    path, word = "serve.engine", draft.fields.get("serve.engine", "")
    since, older = (ENGINES[word].since, ENGINES[word].older) if word in ENGINES else ((), "")
    if not older:
        return False
    said = re.compile(VERSIONS.format(word), re.IGNORECASE)
    texts = [found for content in contents for found in said.findall(content)]
    versions = {text: tuple(map(int, text.split("."))) for text in texts}
    server = next(each for each in SERVERS if each.engine == word)
    changed = tuple(map(int, str(server.table.get("older_before", "0")).split(".")))
    if versions and max(versions.values()) < changed:
        for row in server.rows["older"]:
            draft.defaults |= {to: (row.usually, hyphened(row.keys[0])) for to in row.to}
    before = [text for text, version in versions.items() if version < since]
    if before and len(before) == len(versions):
        draft.fields[path] = older
        draft.tell(path, f"the version of {word}", before[0])
    return bool(versions) and len(before) in (0, len(versions))


# How texts say a version: of an image, a package or a variable, or as a log prints it.
VERSIONS = (
    r"\b{0}(?:-openai)?(?:\[[\w, -]{{0,60}}\])?"
    r"(?:[ _-](?:API server )?version\W{{1,4}}v?|(?:==?|~=|:|@|[ -])v?| LLM engine \(v)"
    r"(\d{{1,3}}\.\d{{1,3}}\.\d{{1,3}})"
)


def of_checkpoint(
    server: Server, commands: Sequence[Sequence[str]], chosen: Sequence[str]
) -> dict[str, Any]:
    """What the command said that wrote the checkpoint which trtllm-build reads: its ranks and its
    dtypes stand in no option of trtllm-build (TensorRT-LLM 1.0, commands/build.py; examples'
    convert_checkpoint.py and quantize.py)."""
    folder = str(options(chosen)[1].get("checkpoint_dir", "")).rstrip("/")
    for command in commands if server is TENSORRT and folder else ():
        said = options(command)[1]
        if str(said.get("output_dir", "")).rstrip("/") == folder:
            return {key: said[key] for key in server.listed("of_checkpoint") if key in said}
    return {}


def _option(key: str) -> str:
    """An option as a command writes it, or a variable of its environment."""
    return key if key.isupper() else hyphened(key)


def settings(commands: Sequence[Sequence[str]]) -> dict[str, str]:
    """Variables of the environment that decide a plan, as commands set them."""
    found, deciding = {}, ENVIRONMENT.left_names
    for command in commands:
        for word_ in command:
            key, given, value = word_.partition("=")
            if given and (key in deciding or key.startswith(OF_LLAMA_CPP)):
                found[key] = value
    return found


def _of_llama_cpp(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables, with those that are llama.cpp's options under these (common/arg.cpp, set_env)."""
    found = {}
    for key, value in environment.items():
        option = key.removeprefix(OF_LLAMA_CPP).lower()
        other = OF_LLAMA.get(option.replace("_", "-"), option).replace("-", "_")
        found[other if key.startswith(OF_LLAMA_CPP) else key] = value.strip("\"'")
    return found


def _in_full(server: Server, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options with their names in full: Python's argparse takes a beginning that only one has, and
    what follows a dot is a key of the option's (vLLM 0.33, utils/argparse_utils.py)."""
    known, found = server.known, dict[str, Any]()
    for key, value in given.items():
        stem, dot, rest = key.partition(".")
        off = "no_" if stem.startswith("no_") and stem not in known else ""
        short = stem.removeprefix(off)
        longer = [option for option in known if option.startswith(short)]
        if short not in known and len(short) >= SHORTEST and len(longer) == 1:
            stem = off + longer[0]
        found[f"{stem}{dot}{rest}"] = value
    return found


SHORTEST = 4  # letters of a beginning: below are names of one letter and of two


def _read(server: Server, keys: Keys, model: str, draft: Draft) -> None:
    draft.put("serve.engine", server.engine, f"the command of {server.label}")
    for option in list(keys.values) if server.renamed else ():
        short, dot, rest = option.partition(".")
        if full := server.renamed.get(short):
            keys.values.setdefault(f"{full}{dot}{rest}", keys.values.pop(option))
    draft.nodes = max(draft.nodes, draft.count(keys, "nnodes"))
    if server.label != server.engine:
        draft.leave(server.label, f"its own engine is not planned: {server.engine}'s is")
    draft.model = draft.model or str(keys.one(*server.listed("model")) or model)
    served = names(keys.take("served_model_name", "alias", "a"))  # one model has several
    draft.served = draft.served or next(iter(served), "")
    server.read(keys, draft)
    for name in server.names.get("beside", ()):  # files with more options
        if isinstance(file := keys.one(name), str):
            draft.wants[file] = "its options"
    for option in server.listed("second_tier"):
        _second_tier(keys, draft, option)
    MORE.get(server.name, _no_more)(keys, draft)
    if guess := server.listed("guess"):
        section = keys.inner(server.table["guess_in"]) if "guess_in" in server.table else keys
        _drafts(draft, *(section.take(*each.split("|")) for each in guess))
    text_alone = _text_alone(keys)
    draft.towers = _projects(keys, draft) if server.engine == LLAMA_CPP else not text_alone
    draft.of_text = server.engine == LLAMA_CPP and not draft.towers
    if text_alone:
        SHARED.later(keys, draft, "without_tower")
    _weights(server, keys, draft)
    draft.ranks = max(draft.ranks, _shared_out(keys, draft))
    limit = draft.fields.get("serve.max_num_seqs", 0)
    if limit and "serve.concurrency" not in draft.fields:
        draft.put("serve.concurrency", limit, "the most sequences, all of them in use", limit)
    for key in [key for key in keys.rest() if "." in key and not key[:1].isdigit()]:
        stem = key.partition(".")[0]  # what is not read of an option is told with the option
        keys.values.setdefault(stem, keys.take(key))
    server.end(keys, draft)


def _projects(keys: Keys, draft: Draft) -> bool:
    """Whether llama.cpp loads what reads images on the GPU: a file of its own, which a repository's
    files bring along (common/arg.cpp of November 2026, download_mmproj)."""
    if keys.on("no_mmproj", "no_mmproj_offload"):
        return False
    return keys.take("mmproj") is not None or bool(keys.values.get("hf_repo"))


def _text_alone(keys: Keys) -> bool:
    """Whether a server is told to load no tower: by a switch, or by neither an image nor a video
    for a prompt (vLLM 0.33, model_executor/models/interfaces.py, _mark_tower_model: the limits of
    all that it reads are 0)."""
    switch = keys.on(*SHARED.listed("text_alone"))
    limits = str(keys.values.get("limit_mm_per_prompt") or "")
    return switch or all(
        str(keys.values.get(f"limit_mm_per_prompt.{each}")) == "0"
        or re.search(rf"{each}['\"]? ?[:=] ?0\b", limits)
        for each in ("image", "video")
    )


def _weights(server: Server, keys: Keys, draft: Draft) -> None:
    """How weights are stored: as the config.json of the model says, else its name, else an option
    of quantization; --dtype says it of a model of which none of these says it, since it is the
    dtype of what is not quantized (vLLM's ModelConfig, SGLang's model_config.py)."""
    quantized = server.listed("quantized")
    option, dtype = keys.one(*quantized), keys.one("dtype")
    option, dtype = ("" if each is None else str(each).lower() for each in (option, dtype))
    if server.engine == LLAMA_CPP:
        _by_name(draft)
        return
    if "quantize" in quantized and option == "bitsandbytes":
        option = "bitsandbytes-int8"  # of TGI, LLM.int8
    weights, halves = SHARED.words["weights"], SHARED.words["halves"]
    online = SHARED.names["online"]
    named, key = keys.named(*quantized), keys.named("dtype")

    def decide(draft: Draft, around: Around) -> None:
        path, stored = "serve.weight_dtype", around.model.quantization
        name, published = hub.stored(draft.model), bool(stored and stored.word)
        files = draft.config or draft.quantized
        exact = published and (files is not None or not hub.preset(draft.model))
        by_hand = option in online and name in WIDE
        if path in draft.fields:
            return
        if exact or (published and not name):
            draft.put(path, "auto", "config.json", stored.method if stored else "")
        elif name and not by_hand:
            spelled_by_option = name == hub.BARE and weights.get(option) == "int4"
            draft.put(path, "int4" if spelled_by_option else name, "the model's name", draft.model)
        elif option in weights:
            draft.put(path, weights[option], named, option)
            if option not in online:
                draft.leave(named, f"{option} goes by the checkpoint, and neither its name nor a "
                            f"config.json says more: {weights[option]} is planned")  # fmt: skip
        elif option:
            draft.leave(
                named, f"{shown(option)} has no word in a plan; give the model's config.json"
            )
        elif dtype in halves:
            draft.put(path, halves[dtype], key, dtype)
        elif dtype and dtype != "auto":
            draft.leave(key, f"{shown(dtype)} has no word in a plan")
        planned = draft.fields.get(path)
        if halves.get(dtype) == "fp32" and planned not in (None, "fp32"):
            draft.leave(key, "what is not quantized is planned in 16 bits")
        follows = ENGINES[server.engine].follows and planned == "auto"
        if follows and stored and stored.cache and "serve.kv_dtype" not in draft.fields:
            draft.put("serve.kv_dtype", stored.cache, "config.json, whose cache auto follows")

    draft.later.append(decide)


def _by_name(draft: Draft) -> None:
    """How a GGUF file's weights are stored."""
    if "serve.weight_dtype" not in draft.fields and (said := hub.stored(draft.model)):
        draft.put("serve.weight_dtype", said, "the model's name", draft.model)
        hub.tell_type(draft, said, draft.model)


def _shared_out(keys: Keys, draft: Draft) -> int:
    """Ranks in all, and how they share out the experts. vLLM has as many as tensor and data
    parallelism make (FusedMoEParallelConfig); SGLang and TensorRT-LLM count data-parallel attention
    within their tensor-parallel ranks (DpPaddingMode, Mapping.enable_attention_dp)."""
    tp, pp = (draft.fields.get(f"serve.{name}", 1) for name in ("tp", "pp"))
    copies = draft.count(keys, "data_parallel_size", "dp", "dp_size")
    experts = draft.count(keys, "ep", "ep_size", "expert_parallel_size", "moe_expert_parallel_size")
    if keys.on("enable_expert_parallel") or keys.values.get("ep") is True:
        experts = tp * max(1, copies)
    apart = keys.on("enable_dp_attention", "enable_attention_dp")
    limit = draft.fields.get("serve.max_num_seqs", 0)
    if limit and copies > 1 and keys.on("enable_dp_attention"):
        # SGLang's limit is of all ranks together (tp_worker.py: max_running_requests // dp_size)
        key, said = keys.named("max_running_requests"), f"{limit} of {copies} ranks"
        draft.forget("serve.max_num_seqs")
        draft.put("serve.max_num_seqs", max(1, limit // copies), key, said)

    def share_out(draft: Draft, around: Around) -> None:
        ranks = draft.fields.get("serve.tp", 1)
        if apart and ranks > 1:
            draft.forget("serve.tp")
            each = max(1, ranks // (copies or ranks))
            draft.put("serve.tp", each, "data-parallel attention", f"{ranks} ranks")
        over = ranks if apart else experts
        if over > 1 and around.model.experts:
            draft.put("parallel.ep", over, "expert parallelism", over)

    draft.later.append(share_out)
    return int(tp * pp * (1 if apart else max(1, copies)))


TOKENS = "num_speculative_tokens"
HUGE = 160 * GiB  # of a GPU on which vLLM reads more tokens at once
OF_LLAMA_CPP = "LLAMA_ARG_"
OFFLINE = "LLM"  # vLLM's class that has a batch of prompts, and no clients
BESIDE = {"KvCacheConfig", "SpeculativeConfig"}  # whose values are the engine's
QUANTIZED = "QuantConfig"  # TensorRT-LLM's, which names its algorithms
ENVIRONMENT = Program("environment")
BOUND = "llama_cpp"  # the key of what a module of Python says of llama.cpp
OF_CACHE = "kv_cache_dtype"  # what KvCacheConfig calls dtype


def called(content: str) -> tuple[Server, dict[str, Any]] | None:
    """The engine that a module of Python starts by a call, and what the call says."""
    imported = re.findall(r"^[ \t]*(?:from|import)\s+(\w+)", content, re.MULTILINE)
    starts = ((each.table.get("imports"), each) for each in SERVERS)
    server = next((each for name, each in starts if name in imported), None)
    if server is None:
        return None
    calls = server.names["calls"]
    tree, found = module(content), dict[str, Any]()
    constants = python.constants(tree)
    made = {
        target.id
        for node in python.nodes(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        for target in node.targets
        if isinstance(target, ast.Name) and python.last_name(node.value.func) in {*calls, *BESIDE}
    }
    for node in python.nodes(tree):
        if not isinstance(node, ast.Call):
            continue
        function = python.last_name(node.func)
        if function == OFFLINE:
            found[OFFLINE] = server.engine == server.label == VLLM
        if function in calls and node.args:
            found.setdefault("model", python.value(node.args[0], constants))
        own = server is not LLAMA or "Llama" in ast.unparse(node.func)  # of several from_pretrained
        if function in calls | BESIDE and own:
            given, unknown = python.arguments(node, constants)
            written = {each.arg: each.value for each in node.keywords}
            for key, said in given.items():
                expression = written.get(key)
                computed = expression and not (
                    isinstance(expression, (ast.Constant, ast.Call))
                    or (isinstance(expression, ast.Name) and expression.id in made)
                )
                name = OF_CACHE if (function, key) == ("KvCacheConfig", "dtype") else key
                found[name] = f"{UNSET}{name}" if said is None and computed else said
            found |= dict.fromkeys(unknown, True)
        if function == QUANTIZED:
            for each in node.keywords:
                said = python.last_name(each.value) or str(python.value(each.value, constants))
                if each.arg == "quant_algo":
                    found["quantization"] = TENSORRT.table["algorithms"].get(said, said)
                elif each.arg == "kv_cache_quant_algo":
                    found[OF_CACHE] = said.lower()
    if server is LLAMA and found:
        found[BOUND] = True
    return (server, found) if any(found.values()) else None


PRESET = re.compile(r"^\[([^\]\n]+)\][ \t]*$", re.MULTILINE)
SETTING = re.compile(r"^([A-Za-z][\w.-]*)[ \t]*=(.*)$", re.MULTILINE)


def presets(content: str) -> dict[str, dict[str, Any]]:
    """The models of an INI file as `llama-server --models-preset` takes it, by name, each with the
    options that its section and [*] have; {} where it is none."""
    parts = PRESET.split(content)
    sections = {
        name: LLAMA.rename(
            {key.replace("-", "_"): text.strip() for key, text in SETTING.findall(body)}
        )
        for name, body in zip(parts[1::2], parts[2::2], strict=True)
    }
    shared = sections.pop("*", {})
    named = {"model", "hf_repo"}
    if not any(named & each.keys() for each in sections.values()):
        return {}
    known = {"ctx_size", "gpu_layers", "ubatch_size", "cache_type_k", "parallel"}
    if not known & {key for each in (shared, *sections.values()) for key in each}:
        return {}
    return {name: shared | each for name, each in sections.items() if named & each.keys()}


def of_presets(content: str, draft: Draft) -> None:
    """The first model of such a file; the others are told."""
    found = presets(content)
    name = next(iter(found))
    _read(LLAMA, Keys(found[name], hyphened), "", draft)
    draft.chosen(f"[{name}]", "model", (each for each in found if each != name))


MODEL = re.compile(r"[/.~]?[\w.-]+(?:/[\w.-]+)+")  # a name on the hub, or a folder


def _served(command: Sequence[str], plain: Sequence[str], given: dict[str, Any]) -> str:
    """The model, of a command that has it as a word without an option: after 'serve', or after all
    options, whose last would have it as its value (it is taken out of `given`)."""
    if first := _after_serve(command):
        return first
    if "serve" not in command and not any(
        "trtllm-serve" in w or "vllm-openai" in w for w in command
    ):
        return ""
    starts = {"serve", "trtllm-serve", *command[:1]}
    if named := [w for w in plain if w not in starts and (MODEL.fullmatch(w) or hub.preset(w))]:
        return named[-1]
    for option, value in reversed(given.items()):
        words = value if isinstance(value, list) else [value]
        flag = isinstance(value, str) and option.startswith(SHARED.listed("flags"))
        last = words[-1] if len(words) > 1 or flag else None
        if option in SHARED.names["several"] or not isinstance(last, str) or last.startswith(UNSET):
            continue
        if MODEL.fullmatch(last) or hub.preset(last):
            given[option] = True if flag else words[0] if len(words) == 2 else words[:-1]
            return last
    return ""


def _after_serve(command: Sequence[str]) -> str:
    """The word after 'serve': `vllm serve MODEL`, `trtllm-serve serve MODEL`."""
    starts = ("serve", "vllm-serve", "trtllm-serve", "api_server")
    after = [
        b
        for a, b in pairwise(command)
        if (a in starts or "vllm-openai" in a) and not b.startswith("-")
    ]
    return next((word for word in after if word not in starts), "")


def _drafts(draft: Draft, method: Any, model: Any, tokens: Any) -> None:
    """Who guesses, and how many tokens."""
    if method is None and model is None:
        return
    kind = str(method or "").lower().replace("_", "").replace("-", "")
    guessers = SHARED.words["guessers"]
    known = (k for k in guessers if kind.startswith(k) and not kind.removeprefix(k).isdigit())
    kind = next(known, kind)
    guesser = guessers.get(kind) or hub.preset(str(model or ""))
    if kind.endswith("mtp"):
        guesser = "mtp"
    elif model and guesser != "none":
        draft.guesser = str(model)  # whose config.json says more than a word does
    if not guesser and not draft.guesser:
        draft.leave("speculative decoding", f"{shown(method or model)} has no word in a plan")
        return
    if guesser:
        draft.put("serve.draft_model", guesser, "speculative decoding", method or model)
    try:
        draft.put("serve.draft_tokens", positive(tokens), "speculative decoding", tokens)
    except UnsaidError:
        draft.put("serve.draft_tokens", 3, "speculative decoding", "tokens not said: 3")


def _vllm(keys: Keys, draft: Draft) -> None:
    text = keys.take("speculative_config")
    if text is not None or any(key.startswith("speculative_config.") for key in keys.values):
        try:
            given = text if isinstance(text, Mapping) else json.loads(str(text).replace("'", '"'))
        except (ValueError, RecursionError):
            given = {}
        given = given if isinstance(given, Mapping) else {}
        for key, mine in (("method", "method"), ("model", "model"), (TOKENS, "tokens")):
            keys.values[f"spec_{mine}"] = given.get(key, keys.take(f"speculative_config.{key}"))
        if not (keys.values["spec_method"] or keys.values["spec_model"]):
            draft.leave("speculative decoding", "neither its method nor its model is said")
    elif (model := keys.take("speculative_model")) is not None:  # of versions before 0.9
        method = "ngram" if "ngram" in str(model) else None
        keys.values |= {
            "spec_method": method,
            "spec_model": model,
            "spec_tokens": keys.take(TOKENS),
        }
    draft.later.append(functools.partial(_tokens, keys.on(OFFLINE)))


def _second_tier(keys: Keys, draft: Draft, option: str) -> None:
    """A cache in the host's memory, which an option switches on or says the size of."""
    said = keys.one(option)
    if said is None or not keys.on(option) or str(said).strip("0.") == "":
        return
    SHARED.later(Keys({option: said}, hyphened), draft, "second_tier")
    if said is not True:
        why = f"{said}: what runs does not hang on it, so as much of the host's memory is planned"
        draft.leave(hyphened(option), f"{why} as of the GPU's")


def _tokens(offline: bool, draft: Draft, around: Around) -> None:
    """Tokens of a forward where a plan has others: of the class without clients, and on the largest
    GPUs (EngineArgs.get_batch_defaults of vLLM 0.33)."""
    huge = around.gpu.usable_bytes >= HUGE
    if offline or huge:
        tokens = 16384 if huge or roomy(around.gpu) else 8192
        draft.otherwise("serve.max_batched_tokens", tokens, "max_num_batched_tokens")


def _sglang(keys: Keys, draft: Draft) -> None:
    method = keys.take("speculative_algorithm")
    model = keys.take("speculative_draft_model_path", "speculative_draft_model")
    # With the token that is sure; in a chain of guesses one more than steps.
    checked = draft.count(keys, "speculative_num_draft_tokens")
    wide, steps = (draft.count(keys, f"speculative_{n}") for n in ("eagle_topk", "num_steps"))
    if wide > 1 and steps:
        why = f"a tree of {checked or 'several'} tokens is planned as a chain of {steps}, its depth"
        draft.leave(keys.written("speculative_eagle_topk"), why)
    elif checked > 1:
        keys.values["speculative_num_steps"] = checked - 1
    if str(method).lower() == "eagle" and model is None:
        keys.values["speculative_algorithm"] = "nextn"  # a head of the model's own


def _llama(keys: Keys, draft: Draft) -> None:
    if said := hub.stored(f"-{keys.one('hf_file') or ''}".removesuffix(".gguf")):
        draft.put("serve.weight_dtype", said, "--hf-file")  # of a repository with several
        hub.tell_type(draft, said, f"-{keys.one('hf_file')}")
    _values(draft)
    batch = draft.count(keys, "batch_size") or 2048  # of which a forward takes a piece
    if draft.fields.get("serve.max_batched_tokens", ENGINES[LLAMA_CPP].tokens[0]) > batch:
        draft.fields["serve.max_batched_tokens"] = batch
    slots = draft.count(keys, "parallel") or 1
    unsaid = keys.one("parallel") is None
    draft.put("serve.concurrency", slots, "--parallel", "not said: 1" if unsaid else slots)
    if unsaid:  # slots that share the context (tools/server/server.cpp)
        draft.put("serve.max_num_seqs", 4, "--parallel", "not said: 4 slots")
    context = keys.one("ctx_size")
    unset = str(context).startswith(UNSET)
    whole_context = 0 if unset else draft.count(keys, "ctx_size")
    if whole_context:
        draft.put("serve.max_seq_len", whole_context // slots, "--ctx-size", whole_context)
    elif unset:
        draft.leave("--ctx-size", f"{shown(context)} is not set: the context is llama.cpp's own")
    if whole_context:  # the longer context of Qwen's 1M models is all that tells them apart
        draft.model = re.sub(r"[-_]1M(?=[-_.:]|$)", "", draft.model)
    layers = keys.one("gpu_layers")
    gpu_layers = 0 if layers in ("all", "auto") else draft.count(keys, "gpu_layers")
    devices = [d for d in str(keys.one("device") or "").split(",") if d and d != "none"]
    parts = [p for p in re.split(r"[,/]", str(keys.one("tensor_split") or "")) if p]
    if len({*parts} - {"0"}) > 1:
        draft.differ("-ts, --tensor-split", placement.unequal(parts))
    parts = [p for p in parts if p != "0"]
    mode = str(keys.one("split_mode", words=(placement.NONE,)) or placement.LAYER).lower()
    draft.ranks = max(draft.ranks, 1 if mode == placement.NONE else len(devices or parts))
    draft.later.append(placement.share_out(mode, len(devices or parts)))
    if said := keys.one("override_tensor"):
        draft.later.append(placement.overridden(str(said)))
    if gpu_layers:
        draft.later.append(placement.layers_on_gpu(gpu_layers, "--gpu-layers"))
    moved = ("override_tensor", "n_cpu_moe", "cpu_moe", "tensor_split")
    off = str(keys.one("fit")).lower() in ("off", "0", "false") or layers not in (
        None,
        "auto",
        -1,
        "-1",
    )
    if not off and mode == placement.LAYER and all(keys.values.get(name) is None for name in moved):
        draft.places = placement.LLAMA
    if str(layers) == "0":
        draft.put("serve.gpu_layers", placement.FEWEST, "--gpu-layers", 0)
        draft.differ("--gpu-layers", placement.ON_CPU)
    LLAMA.later(keys, draft)
    kind = str(keys.one("spec_type")).removeprefix("draft-")
    named = keys.values.get("spec_draft_model") is not None
    _draft_type(str(keys.values.get("spec_draft_model") or ""), draft)
    keys.values["spec_type"] = None if named or kind == "None" else kind


def _draft_type(name: str, draft: Draft) -> None:
    """A draft's weights are of the type that its own file says."""
    if said := hub.stored(f"-{name}".removesuffix(".gguf")):
        draft.put("serve.draft_weight_dtype", said, "--model-draft", name)


def _values(draft: Draft) -> None:
    """Keys and values are kept apart: where one is not said it is in fp16."""
    both = ("serve.kv_dtype", "serve.value_dtype")
    kept, values = (draft.fields.get(path, "fp16") for path in both)
    if both[1] in draft.fields and kept == values:
        draft.fields[both[1]] = "same"
    elif kept != values:
        draft.put(both[1], values, "--cache-type-v", f"not said: {values}")


def _tgi(keys: Keys, draft: Draft) -> None:
    prompt, total = (
        draft.count(keys, *named)
        for named in (("max_input_tokens", "max_input_length"), ("max_total_tokens",))
    )
    if prompt and prompt < total:
        draft.put("serve.prompt_len", prompt, "--max-input-tokens")
        draft.put("serve.output_len", total - prompt, "--max-total-tokens", total)


def _no_more(keys: Keys, draft: Draft) -> None:
    """Of a server whose table says all."""


# What no table says, by the table.
MORE: Mapping[str, Callable[[Keys, Draft], None]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "tensorrt-llm": _no_more,
    "llama.cpp": _llama,
    "tgi": _tgi,
}
# Of a command that starts several the first counts.
SERVERS = tuple(map(Server, dict.fromkeys((*MORE, *tables_with("engine", "command")))))
VLLM_TABLE, SGLANG, TENSORRT, LLAMA, *_ = SERVERS
