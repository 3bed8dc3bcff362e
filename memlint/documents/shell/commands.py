"""Words of a command -> the training run that it starts, seen through its launchers and wrappers."""

from __future__ import annotations

from collections.abc import Sequence

from memlint.documents import arguments
from memlint.documents.node import Command, Launcher, Node, Span, Unresolved
from memlint.documents.shell.words import Pieces, part, reason_of, text_of

# Commands that run the rest of their words as a command. Their own options differ too much to know how many words
# each takes, so the next word that is known to start a program ends them.
_WRAPPERS = frozenset(
    (
        *("nohup", "time", "exec", "command", "sudo", "nice", "ionice", "stdbuf", "setsid", "timeout", "numactl"),
        *("taskset", "xvfb-run", "unbuffer", "builtin", "env", "chrt", "caffeinate", "ts", "tsp", "strace", "ltrace"),
        *("srun", "sbatch", "mpirun", "mpiexec", "orterun", "horovodrun", "jsrun", "aprun", "ibrun", "salloc"),
        *(
            "poetry",
            "uv",
            "conda",
            "mamba",
            "micromamba",
            "pixi",
            "pipenv",
            "pdm",
            "hatch",
            "rye",
            "ray",
            "nsys",
            "ncu",
        ),
        *("singularity", "apptainer", "docker", "podman", "nvidia-docker", "enroot", "kubectl", "ssh", "gcloud"),
        *("screen", "tmux", "kernprof", "coverage", "cog", "xargs", "parallel", "flock", "runai", "modal", "sky"),
    )
)

# Launchers that take a script, and those of their options that take no value.
_SWITCHES = {
    "torchrun": frozenset(
        ("standalone", "m", "module", "no-python", "no_python", "run-path", "run_path", "use-env", "use_env")
    )
    | {"use_libuv", "use-libuv"},
    "accelerate": frozenset(
        ("m", "module", "no_python", "cpu", "multi_gpu", "tpu", "mps", "use_mps_device", "use_xpu", "ipex", "quiet")
    )
    | {"use_deepspeed", "use_fsdp", "use_megatron_lm", "use_tpu", "tpu_use_cluster", "tpu_use_sudo", "same_network"}
    | {"debug", "use_parallelism_config", "use_cpu", "dynamo_use_fullgraph", "dynamo_use_dynamic"},
    "deepspeed": frozenset(
        ("module", "no_python", "no_local_rank", "no_ssh", "no_ssh_check", "force_multi", "bind_cores_to_rank")
    )
    | {"save_pid", "elastic_training"},
    "fabric": frozenset(),
}
# Options that take a value: of python, of its profiler, and of debuggers.
_PYTHON_OPTIONS = frozenset(("-X", "-W", "-o", "--listen", "--connect"))
_LAUNCHING_MODULES = {
    "torch.distributed.launch": "torchrun",
    "torch.distributed.run": "torchrun",
    "torch.distributed.launcher": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
    "deepspeed": "deepspeed",
    "paddle.distributed.launch": "torchrun",
    "torch.utils.bottleneck": "python",
    "cProfile": "python",
    "debugpy": "python",
    "pdb": "python",
    "ipdb": "python",
}
_LAUNCHER_NAMES = {
    "torchrun": "torchrun",
    "torchrun_xpu": "torchrun",
    "torch_distributed_launch": "torchrun",
    "ft_launcher": "torchrun",  # nvidia-resiliency-ext's, "based on torchrun" (its usage guide)
    "deepspeed": "deepspeed",
    "composer": "torchrun",
    "colossalai": "torchrun",
    "accelerate-launch": "accelerate",
    # lightning 2.0 to 2.5, fabric/cli.py: until 2.3 `lightning run model`, then `fabric run`, with options of its own
    # before the script.
    "lightning": "fabric",
    "fabric": "fabric",
    "ipython": "python",
    "pypy3": "python",
}

# What a launcher is told to do, before its options.
_VERBS = {"colossalai": ("run",), "lightning": ("run", "model"), "fabric": ("run", "model")}

# Programs that train and are installed as commands of their own.
_CONSOLE = frozenset(
    (
        *("axolotl", "llamafactory-cli", "lmf", "swift", "megatron", "trl", "lerobot-train", "yolo", "litgpt", "tune"),
        *("ns-train", "nemo", "nemorun", "oumi", "autotrain", "xtuner", "fairseq-train", "fairseq-hydra-train"),
        *("onmt_train", "onmt-main", "espnet2", "t2t-trainer", "paddlenlp", "unsloth", "mim", "torchtune", "xtune"),
        *(
            "train_network",
            "lora_pti",
            "ctranslate2",
            "allennlp",
            "flair",
            "speechbrain",
            "sgpt",
            "openrlhf",
            "dora",
            "kohya_ss",
        ),
    )
) | {"run_train.sh"}
# Programs that take their config from a variable, and may need no option.
_BARE = frozenset(("run_train.sh",))
_TRAINING_WORDS = ("train", "finetune", "fine_tune", "fine-tune", "sft")
_CONFIGS = (".yaml", ".yml", ".json", ".toml")
_NOT_PROGRAMS = (".sh", ".slurm", ".sbatch", ".bash", ".yaml", ".yml", ".json", ".toml", ".txt", ".log", "/")


def text(node: Node) -> str:
    """A word's text; "" where it is not known."""
    if isinstance(node.value, dict):
        return "".join(f"{name}={inner.value}" for name, inner in node.value.items())
    return node.value if isinstance(node.value, str) else ""


def _base(node: Node) -> str:
    return text(node).rpartition("/")[2]


def _is_python(node: Node) -> bool:
    """``python``, ``python3.11``, ``/venv/bin/python``, and a variable of such a name (``$PYTHON``)."""
    if isinstance(node.value, Unresolved):
        return "python" in node.value.text.lower()
    base = _base(node)
    return base.startswith("python") and all(c in "0123456789." for c in base[6:])


def _is_script(node: Node) -> bool:
    value = node.value.text if isinstance(node.value, Unresolved) else text(node)
    return value.endswith((".py", ".pyc")) and not value.startswith("-")


def _starts(words: Sequence[Node], at: int) -> bool:
    """Whether a program that is known starts at this word."""
    if at >= len(words):
        return False
    node = words[at]
    base = _base(node)
    if _is_python(node) or _is_script(node) or base in _LAUNCHER_NAMES or base in _CONSOLE:
        return True
    return base == "accelerate" and at + 1 < len(words) and text(words[at + 1]) in ("launch", "test")


def _training_name(node: Node) -> bool:
    if isinstance(node.value, dict):  # sbatch --job-name=my_sft
        return False
    base = _base(node).lower()
    return bool(base) and not base.endswith(_NOT_PROGRAMS) and any(word in base for word in _TRAINING_WORDS)


def inner_script(words: list[Pieces]) -> Pieces | None:
    """The text that a command hands to another shell: ``bash -c '...'``, ``sbatch --wrap "..."``; else None."""
    texts = ["" if reason_of(word) else text_of(word) for word in words]
    bases = [one.rpartition("/")[2] for one in texts]
    for at, base in enumerate(bases[:-2]):
        if base not in ("bash", "sh", "zsh", "dash", "ksh"):
            continue
        if at and bases[0] not in _WRAPPERS and "=" not in bases[0]:
            return None
        for option in range(at + 1, len(words) - 1):
            one = texts[option]
            if one[:1] == "-" and one[1:2] != "-" and one.endswith("c"):
                return words[option + 1]
            if one[:1] != "-":
                break
    if bases[:1] == ["sbatch"]:
        for at, one in enumerate(texts):
            if one == "--wrap" and at + 1 < len(words):
                return words[at + 1]
        for word in words[1:]:
            whole = text_of(word)
            if whole.startswith("--wrap="):
                return part(word, len("--wrap="), len(whole))
    return None


_SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch")
_STARTERS = frozenset(("bash", "sh", "zsh", "dash", "ksh", "sbatch", "srun", "nohup", "time", "exec"))


def called_script(words: list[Pieces]) -> int | None:
    """Which word of a command is the script that it starts; None where it starts none."""
    texts = ["" if reason_of(word) else text_of(word) for word in words]
    if not texts or not (texts[0].rpartition("/")[2] in _STARTERS or texts[0].endswith(_SCRIPTS)):
        return None
    return next((at for at, one in enumerate(texts) if one.endswith(_SCRIPTS) and one[:1] != "-"), None)


def submission(words: Sequence[str]) -> tuple[str, ...]:
    """Of the words in front of a script, those that sbatch reads before it submits it."""
    at = next((at for at, word in enumerate(words) if word.rpartition("/")[2] == "sbatch"), len(words))
    return tuple(words[at + 1 :])


def training_command(words: list[Node], environment: dict[str, Node], span: Span) -> Command | None:
    """The training run that a command starts, or None where it starts none.

    ``environment`` gets the variables that the command itself sets (``env A=1 ...``).
    """
    launchers: list[Launcher] = []
    rest = list(words)
    for _ in range(16):
        while rest and not isinstance(rest[0].value, dict) and _is_assignment(text(rest[0])) and not _starts(rest, 0):
            _note_assignment(rest[0], environment)
            rest = rest[1:]
        if not rest:
            return None
        rest = _as_timm_starts(rest)
        base = _base(rest[0])
        if _is_python(rest[0]) or base in _LAUNCHER_NAMES or _is_accelerate(rest):
            step = _launched(rest, launchers)
            if step is None:
                return None
            program, rest = step
            inner = _after_dashes(rest)
            if inner is not None:  # mason.py --cluster x -- accelerate launch ...
                launchers.append(Launcher(text(program), _options(rest[: len(rest) - len(inner) - 1], program.span)))
                rest = inner
                continue
            if isinstance(program.value, str) and program.value in _LAUNCHING_MODULES:
                rest = [Node(_LAUNCHING_MODULES[program.value], program.span, None, "", program.via), *rest]
                if _LAUNCHING_MODULES[program.value] == "accelerate":
                    rest.insert(1, Node("launch", program.span, None, "", program.via))
                continue
            return _command(program, launchers, rest, environment, span)
        inner = _after_dashes(rest) if _is_script(rest[0]) else None
        if inner is not None:  # uv run mason.py --cluster x -- python ...
            launchers.append(Launcher(text(rest[0]), _options(rest[1 : len(rest) - len(inner) - 1], rest[0].span)))
            rest = inner
            continue
        if base in _CONSOLE or _is_script(rest[0]) or (_training_name(rest[0]) and len(rest) > 1):
            return _command(rest[0], launchers, rest[1:], environment, span)
        at = next((at for at in range(1, len(rest)) if _starts(rest, at) or _nested_wrapper(rest, at)), 0)
        if at and (base in _WRAPPERS or isinstance(rest[0].value, Unresolved) or _is_a_job(rest)):
            name = base or "?"
            if base == "env":
                for word in rest[1:at]:
                    _note_assignment(word, environment)
            launchers.append(Launcher(name, _options(rest[1:at], rest[0].span)))
            rest = rest[at:]
            continue
        if base in _WRAPPERS:  # nohup ./train --x 1
            end = next((at for at in range(1, len(rest)) if text(rest[at]).endswith(_SCRIPTS)), len(rest))
            at = next((at for at in range(1, end) if _training_name(rest[at])), 0)
            if at and not arguments.is_option(rest[at].value):
                launchers.append(Launcher(base, _options(rest[1:at], rest[0].span)))
                return _command(rest[at], launchers, rest[at + 1 :], environment, span)
        return None
    return None


def _as_timm_starts(words: list[Node]) -> list[Node]:
    """timm 1.0.31, distributed_train.sh: how many processes, and behind that what its train.py is given."""
    if _base(words[0]) != "distributed_train.sh" or len(words) < 2 or not text(words[1]).isdigit():
        return words
    torchrun, count, script = (
        Node(word, words[0].span, None, "", words[0].via) for word in ("torchrun", "--nproc_per_node", "train.py")
    )
    return [torchrun, count, words[1], script, *words[2:]]


def _is_a_job(words: Sequence[Node]) -> bool:
    """``hf jobs run IMAGE COMMAND``, ``hf jobs uv run SCRIPT`` (huggingface_hub 1.0, cli/jobs.py): a command that runs
    on the hub's machines. Other words behind ``hf`` name files and start none."""
    return len(words) > 2 and _base(words[0]) == "hf" and text(words[1]) == "jobs"


def _nested_wrapper(words: Sequence[Node], at: int) -> bool:
    """``srun ... env A=1 python``: a wrapper among the words of another one, where a command may start."""
    return _base(words[at]) in ("env", "nohup", "time", "numactl", "timeout") and text(words[at - 1]) != "-n"


def _note_assignment(word: Node, environment: dict[str, Node]) -> None:
    """Put ``NAME=value`` into an environment. The value stands where the word does."""
    if _is_assignment(text(word)):
        name, _, value = text(word).partition("=")
        environment[name] = Node(value, word.span, word.span, name, word.via)


def _is_assignment(word: str) -> bool:
    name, equals, _ = word.partition("=")
    return bool(equals) and name.isidentifier()


def _is_accelerate(words: Sequence[Node]) -> bool:
    return len(words) > 2 and _base(words[0]) == "accelerate" and text(words[1]) == "launch"


def _after_dashes(words: list[Node]) -> list[Node] | None:
    """The command behind ``--``, where one stands there; of ``a && b`` there, the last one."""
    at = next((at for at, word in enumerate(words) if word.value == "--"), None)
    if at is None:
        return None
    joints = [index for index in range(at, len(words)) if words[index].value in ("--", "&&", ";")]
    joined = [index for index in range(at, len(words)) if text(words[index]).startswith("&&") and index not in joints]
    if joined and joined[-1] > joints[-1]:  # &&python
        first = words[joined[-1]]
        inner = [Node(text(first)[2:], first.span, None, "", first.via), *words[joined[-1] + 1 :]]
        if _starts(inner, 0):
            return inner
    for joint in reversed(joints):
        if _starts(words, joint + 1) or (joint + 1 < len(words) and _base(words[joint + 1]) in _WRAPPERS):
            return words[joint + 1 :]
    return None


def _launched(words: list[Node], launchers: list[Launcher]) -> tuple[Node, list[Node]] | None:
    """(the script or module, the words after it) of a launcher; the launcher itself is added to ``launchers``."""
    if _is_accelerate(words):
        kind, name, start = "accelerate", "accelerate launch", 2
    elif _is_python(words[0]):
        kind, name, start = "python", "python", 1
    else:
        name = _base(words[0])
        kind, start = _LAUNCHER_NAMES[name], 1
        for verb in _VERBS.get(name, ()):
            start += start < len(words) and text(words[start]) == verb
    at = start
    while at < len(words):
        word = words[at]
        value = text(word)
        if kind == "python" and value == "-c":
            return None
        if value in ("-m", "--module") and at + 1 < len(words):
            if kind == "python" or not _module_comes_later(words, at + 1):
                return _found(words, at + 1, start, at, name, kind, launchers)
            at += 1
            continue
        if isinstance(word.value, dict) or value == "--":
            at += 1
            continue
        if arguments.is_option(word.value):
            takes = value in _PYTHON_OPTIONS if kind == "python" else value.lstrip("-") not in _SWITCHES[kind]
            if takes and at + 1 < len(words) and _is_script(words[at + 1]):
                takes = False  # an unknown switch just before the script
            at += 2 if takes else 1
            continue
        if kind == "python" and value == "-":
            return None
        return _found(words, at, start, at, name, kind, launchers)
    return None


def _module_comes_later(words: Sequence[Node], at: int) -> bool:
    """torchrun's ``-m`` is a switch: options may stand between it and the module."""
    return arguments.is_option(words[at].value) or isinstance(words[at].value, dict)


def launcher(name: str, words: list[Node]) -> Launcher:
    """A launcher with its own options, of the words of a command that begins with it."""
    shells = ("bash", "sh", "zsh", "dash", "ksh")
    end = next((at for at in range(1, len(words)) if _base(words[at]) in shells), len(words))
    return Launcher(name, _options(words[1:end], words[0].span))


def _found(
    words: list[Node], at: int, start: int, end: int, name: str, kind: str, launchers: list[Launcher]
) -> tuple[Node, list[Node]]:
    if kind != "python":
        launchers.append(Launcher(name, _options(words[start:end], words[0].span, _SWITCHES[kind])))
    return words[at], words[at + 1 :]


def _options(words: Sequence[Node], span: Span, switches: frozenset[str] = frozenset()) -> Node:
    options, _ = arguments.split(words, lambda name: arguments.SWITCH if name in switches else arguments.ONE)
    return Node(dict(options), span)


def _command(
    program: Node, launchers: list[Launcher], words: list[Node], environment: dict[str, Node], span: Span
) -> Command | None:
    """The command, where its words look like those of a training run: any option, ``key=value`` or config will do, and
    so will a launcher that starts a file of Python on several devices."""
    options, rest = arguments.split(words)
    names = (one.name.partition(" ")[0] for one in launchers)  # ``accelerate launch``
    spread = _is_script(program) and any(name in _LAUNCHER_NAMES or name in _SWITCHES for name in names)
    if not options and not spread and not _training_name(program) and _base(program) not in _BARE:
        words_of_a_run = (text(word) for word in rest)
        if not any(_is_override(word) or word.endswith(_CONFIGS) for word in words_of_a_run):
            return None
    if _base(program) in ("pip", "setup.py", "http.server", "venv", "ensurepip"):
        return None
    return Command(program, tuple(launchers), Node(dict(options), span), tuple(rest), environment, span, tuple(words))


def _is_override(word: str) -> bool:
    """``dataloader.batch_size=32``, ``+x=1``, ``task=adroit_hammer``."""
    name, equals, _ = word.lstrip("+~").partition("=")
    return bool(equals) and bool(name) and all(c.isalnum() or c in "._/@-" for c in name)
