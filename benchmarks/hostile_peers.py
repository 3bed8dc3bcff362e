"""memlint and other linters on the same hostile trees: who answers, who refuses, who crashes, who hangs.

    python benchmarks/hostile_peers.py [--peers FOLDER] [TREE ...]

Each tree is made afresh and each program runs on it as a whole process, under ten seconds of CPU time and 2 GiB of
address space. ``ok`` is any end with a report, ``refused`` an end with a message and an exit code above 1;
``traceback``, ``killed`` and ``hang`` lose the report of every other file; ``overwrote`` is said of a file of the
checkout. A dash means that the program does not read such a file at all. ``--peers`` is the ``bin`` folder of an
environment that has ruff, yamllint, check-jsonschema and zizmor; memlint is that of this interpreter.

Exit code 1: memlint ends worse than the best of those that read the file.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

CPU_SECONDS = 10
ADDRESS_SPACE_BYTES = 2 << 30
CONFIG = "per_device_train_batch_size: 4\nmodel_name_or_path: Qwen/Qwen2.5-1.5B\nmax_length: 1024\nbf16: true\n"
SOURCE = "import os\n"

COMMANDS = {
    "memlint": ["check", "."],
    "ruff": ["check", "--no-cache", "."],
    "yamllint": ["."],
    "check-jsonschema": ["--schemafile", "schema.json", "t.yaml"],
    "zizmor": ["--offline", "--quiet", "."],
}
# From best to worst: the last three lose what was said of every other file.
ENDS = ("ok", "refused", "traceback", "killed", "hang", "overwrote")


class Tree(NamedTuple):
    """What a checkout holds, and which programs read that at all."""

    make: Callable[[Path], None]
    readers: tuple[str, ...]


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def yaml_of(text: str) -> Callable[[Path], None]:
    """One YAML file, also where zizmor looks for workflows."""

    def make(root: Path) -> None:
        write(root, "t.yaml", CONFIG + text)
        write(root, ".github/workflows/t.yml", CONFIG + text)

    return make


def link_to_itself(root: Path) -> None:
    (root / "a.yaml").symlink_to("a.yaml")
    (root / "a.py").symlink_to("a.py")


def link_below_a_file(root: Path) -> None:
    write(root, "f", "")
    for suffix in ("yaml", "py"):
        (root / f"a.{suffix}").symlink_to(f"f/x.{suffix}")


def nested_folders(root: Path) -> None:
    here = os.open(root, os.O_RDONLY)
    for _ in range(1200):  # by handles: the whole path is longer than the system takes
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def many_files(root: Path) -> None:
    for number in range(10_000):
        write(root, f"d{number % 100}/f{number}.yaml", "a: 1\n")


def pattern_in_settings(root: Path) -> None:
    pattern = "*a" * 10 + "b"
    name = "a" * 200
    write(root, "memlint.toml", f'exclude = ["{pattern}"]\n')
    write(root, "ruff.toml", f'exclude = ["{pattern}"]\n')
    write(root, ".yamllint", f"extends: default\nignore: ['{pattern}']\n")
    write(root, f"{name}.yaml", CONFIG)
    write(root, f"{name}.py", SOURCE)


def pattern_in_gitignore(root: Path) -> None:
    write(root, ".gitignore", "*a" * 10 + "b\n" + "**/" * 25 + "x\n")
    write(root, "a" * 200 + ".yaml", CONFIG)
    write(root, "a" * 200 + ".py", SOURCE)


def deep_settings(root: Path) -> None:
    deep = "[" * 2000 + "]" * 2000
    write(root, "memlint.toml", f"x = {deep}\n")
    write(root, "ruff.toml", f"x = {deep}\n")
    write(root, ".yamllint", f"x: {deep}\n")
    write(root, ".github/zizmor.yml", f"x: {deep}\n")


def settings_that_write(root: Path) -> None:
    write(root, "precious", "as it was\n")
    write(root, "memlint.toml", 'output-file = "precious"\n')
    write(root, "ruff.toml", 'output-file = "precious"\n')
    write(root, ".yamllint", "extends: default\noutput-file: precious\n")


def pipe(root: Path) -> None:
    for name in ("a.yaml", "a.py", ".gitignore"):
        os.mkfifo(root / name)


def aliases(levels: int = 9, width: int = 9) -> str:
    lines = [f"a0: &a0 [{', '.join(['x'] * width)}]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, levels)]
    return "\n".join(lines) + "\n"


YAML = ("memlint", "yamllint", "check-jsonschema", "zizmor")
TREES = {
    "a link to itself": Tree(link_to_itself, ("memlint", "ruff", "yamllint")),
    "a link below a file": Tree(link_below_a_file, ("memlint", "ruff", "yamllint")),
    "1,200 nested folders": Tree(nested_folders, ("memlint", "ruff", "yamllint")),
    "10,000 files": Tree(many_files, ("memlint", "yamllint")),
    "a pattern of ten stars in the settings": Tree(pattern_in_settings, ("memlint", "ruff", "yamllint")),
    "a pattern of ten stars in .gitignore": Tree(pattern_in_gitignore, ("memlint", "ruff")),
    "settings nested 2,000 deep": Tree(deep_settings, ("memlint", "ruff", "yamllint", "zizmor")),
    "settings that name an output file": Tree(settings_that_write, ("memlint", "ruff", "yamllint")),
    "pipes in place of files": Tree(pipe, ("memlint", "ruff", "yamllint")),
    "aliases that stand for 9^9 values": Tree(yaml_of(aliases()), YAML),
    "YAML nested 100,000 deep": Tree(yaml_of("deep: " + "[" * 100_000 + "]" * 100_000 + "\n"), YAML),
    "90,000 equal keys": Tree(yaml_of("a: 1\n" * 90_000), YAML),
    "90,000 keys": Tree(yaml_of("".join(f"k{n}: 1\n" for n in range(90_000))), YAML),
    "a key of 0.5 MB over 95,000 values": Tree(
        yaml_of("? " + "K" * 500_000 + "\n: [" + ", ".join(["1"] * 95_000) + "]\n"), YAML
    ),
    "50,000 comments that mention the linter": Tree(
        yaml_of("".join(f"# {tool}: x\n" for tool in ("memlint", "yamllint", "zizmor")) * 16_000), YAML
    ),
}


class Run(NamedTuple):
    end: str
    cpu_seconds: float
    peak_mib: int


def limit() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    os.setsid()


def run(command: list[str], root: Path) -> Run:
    """One whole process in the tree. Whoever waits without using the CPU is stopped after a minute."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command, cwd=root, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said, preexec_fn=limit
        )
        waiting = False
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            waiting = True
            process.kill()
            process.wait()
        said.seek(0)
        text = said.read().decode("utf-8", "replace")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Run(_end(process.returncode, text, waiting), used.ru_utime + used.ru_stime, used.ru_maxrss // 1024)


def _end(code: int, text: str, waiting: bool) -> str:
    if waiting or code in (-24, -9):  # SIGXCPU, and the SIGKILL behind it
        return "hang"
    if "Traceback (most recent call last)" in text or "panicked at" in text:
        return "traceback"
    if code < 0:
        return "killed"
    return "ok" if code in (0, 1) else "refused"


def measured(command: list[str], root: Path) -> Run:
    """``run`` in a child of its own, so that what it used is told apart from what others used."""
    receive, send = os.pipe()
    child = os.fork()
    if not child:
        found = run(command, root)
        os.write(send, "\t".join(map(str, found)).encode())
        os._exit(0)
    os.close(send)
    with os.fdopen(receive) as result:
        end, cpu, peak = result.read().split("\t")
    os.waitpid(child, 0)
    return Run(end, float(cpu), int(peak))


def compare(name: str, tree: Tree, programs: dict[str, str]) -> dict[str, Run]:
    found = {}
    for tool in tree.readers:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / ".git").mkdir()
            tree.make(root)
            write(root, "schema.json", '{"type": "object"}')
            found[tool] = measured([programs[tool], *COMMANDS[tool]], root)
            precious = root / "precious"
            if precious.exists() and precious.read_text(encoding="utf-8") != "as it was\n":
                found[tool] = found[tool]._replace(end="overwrote")
            subprocess.run(["rm", "-rf", *map(str, root.iterdir())], check=False)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peers", type=Path, default=Path(sys.executable).parent, help="bin folder of the peers")
    parser.add_argument("trees", nargs="*", metavar="TREE", help="names of trees, or parts of them (default: all)")
    given = parser.parse_args()
    programs = {tool: str(given.peers / tool) for tool in COMMANDS}
    programs["memlint"] = str(Path(sys.executable).parent / "memlint")
    print("| tree |" + "".join(f" {tool} |" for tool in COMMANDS))
    print("|---|" + "---|" * len(COMMANDS))
    worse = []
    for name, tree in TREES.items():
        if given.trees and not any(part in name for part in given.trees):
            continue
        readers = tuple(tool for tool in tree.readers if Path(programs[tool]).exists())
        found = compare(name, tree._replace(readers=readers), programs)
        cells = [
            f" {found[tool].end}, {found[tool].cpu_seconds:.1f} s, {found[tool].peak_mib} MiB |"
            if tool in found
            else " - |"
            for tool in COMMANDS
        ]
        print(f"| {name} |" + "".join(cells), flush=True)
        best = min((ENDS.index(one.end) for tool, one in found.items() if tool != "memlint"), default=len(ENDS))
        if ENDS.index(found["memlint"].end) > max(best, ENDS.index("refused")):
            worse.append(name)
    for name in worse:
        print(f"memlint ends worse than the best of the others: {name}", file=sys.stderr)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
