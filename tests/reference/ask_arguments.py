"""Ask programs which arguments they have: `ask_arguments.py [--write] [FOLDER]`.

Of each version its wheel is taken out of FOLDER, or brought there by pip, without what it needs;
the classes of arguments are read from its source, of which nothing is run. For each argument: its
type and its default, as they stand there. The last version of a program has all; those before
it have what was otherwise (null: it was not there). Needs no program of these.
"""

import ast
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

TABLE = Path(__file__).with_name("arguments.json")
# Versions of each, the newest last, and by the name of a class where its fields stand: a file, or a
# folder of which all classes count.
PROGRAMS = {
    "transformers": (
        ("4.57.6", "5.23.0", "5.24.0"),
        {"TrainingArguments": "transformers/training_args.py"},
    ),
    "trl": (
        ("0.24.0", "1.14.0", "1.16.0"),
        {
            "_BaseConfig": "trl/trainer/base_config.py",
            "SFTConfig": "trl/trainer/sft_config.py",
            "DPOConfig": "trl/trainer/dpo_config.py",
            "GRPOConfig": "trl/trainer/grpo_config.py",
            "ModelConfig": "trl/trainer/model_config.py",
        },
    ),
    "peft": (("0.21.2",), {"LoraConfig": "peft/tuners/lora/config.py"}),
    "vllm": (("0.33.0",), {"EngineArgs": "vllm/engine/arg_utils.py"}),
    "sglang": (("0.5.23",), {"ServerArgs": "sglang/srt/arg_groups/fields/"}),
}
ELSEWHERE = {"vllm": "vllm/config/"}  # where the defaults stand that EngineArgs names


def wheel(program, version, folder):
    """The wheel of a version."""
    called = f"{program}-{version}-*.whl"
    if not list(folder.glob(called)):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*command, "--dest", folder, f"{program}=={version}"], check=True)
    return zipfile.ZipFile(next(folder.glob(called)))


def fields(tree):
    """By class its fields, each with its type and its default."""
    return {
        each.name: {
            line.target.id: [kind(line.annotation), default(line.value)]
            for line in each.body
            if isinstance(line, ast.AnnAssign)
            and isinstance(line.target, ast.Name)
            and not line.target.id.startswith("_")
        }
        for each in tree.body
        if isinstance(each, ast.ClassDef)
    }


def kind(annotation):
    """The type of a field, without what SGLang says with it."""
    said = isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "A"
    return ast.unparse(annotation.slice.elts[0] if said else annotation)


def default(value):
    """What a field is where nobody says it."""
    if isinstance(value, ast.Call) and ast.unparse(value.func).endswith("ield"):
        named = {each.arg: each.value for each in value.keywords}
        value = named.get("default", named.get("default_factory"))
    return "" if value is None else ast.unparse(value)


def asked(program, version, folder):
    """The arguments of a version, by class."""
    files = wheel(program, version, folder)

    def within(start):
        names = (name for name in files.namelist() if name.startswith(start))
        trees = (ast.parse(files.read(name)) for name in names if name.endswith(".py"))
        return {name: rows for tree in trees for name, rows in fields(tree).items()}

    other = within(ELSEWHERE[program]) if program in ELSEWHERE else {}
    found = {}
    for class_, place in PROGRAMS[program][1].items():
        here = within(place)
        whole = {name: row for rows in here.values() for name, row in rows.items()}
        found[class_] = whole if place.endswith("/") else here.get(class_, {})
        for row in found[class_].values():
            owner, _, name = row[1].partition(".")
            row[1] = other.get(owner, {}).get(name, row)[1]
    return found


def before(then, now):
    """What an earlier version had otherwise."""
    return {
        class_: {
            name: then.get(class_, {}).get(name)
            for name in sorted({*now[class_], *then.get(class_, {})})
            if then.get(class_, {}).get(name) != now[class_].get(name)
        }
        for class_ in now
    }


def main():
    folders = [Path(word) for word in sys.argv[1:] if word != "--write"]
    with tempfile.TemporaryDirectory() as own:
        found = {}
        for program, (versions, _) in PROGRAMS.items():
            said = [asked(program, version, (folders or [Path(own)])[0]) for version in versions]
            moved = [before(each, said[-1]) for each in said[:-1]]
            found[program] = dict(zip(versions, [*moved, said[-1]], strict=True))
    lines = ",\n".join(
        f' "{program}": {{\n'
        + ",\n".join(
            f'  "{version}": {{\n'
            + ",\n".join(
                f'   "{class_}": {{\n'
                + ",\n".join(f"    {json.dumps(n)}: {json.dumps(row)}" for n, row in rows.items())
                + "}"
                for class_, rows in classes.items()
            )
            + "}"
            for version, classes in versions.items()
        )
        + "}"
        for program, versions in found.items()
    )
    text = f"{{\n{lines}\n}}\n"
    if "--write" in sys.argv:
        TABLE.write_text(text)
    else:
        print("as before" if text == TABLE.read_text() else text)


if __name__ == "__main__":
    main()
