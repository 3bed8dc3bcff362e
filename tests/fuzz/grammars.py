"""Texts of each format, made of choices: of its own tokens and of keys that configs have, whole or slightly broken."""

from __future__ import annotations

import functools
import json
from pathlib import Path

from tests.fuzz.choices import Choices

ROOT = Path(__file__).parents[2]

NUMBERS = (
    "1",
    "0",
    "-1",
    "8",
    "4096",
    "1e-4",
    "0.5",
    "1_000",
    "0x10",
    "0o17",
    "1e400",
    "9" * 40,
    ".inf",
    "nan",
    "-0.0",
)
WORDS = (
    "a",
    "true",
    "null",
    "bf16",
    "adamw_torch",
    "gpt2",
    "no",
    "~",
    "auto",
    "é",
    "😀",
    "",
    "meta-llama/Llama-3.2-1B",
)
HARD = ("\t", "\r\n", "\r", "\u2028", "\u0085", "\u202e", "\ufeff", "\x0b", "\x1b[31m", "\x7f", " ", "\n\n")


@functools.cache
def keys() -> tuple[str, ...]:
    """Keys that families read, some of each."""
    found: dict[str, None] = {}
    for path in sorted((ROOT / "schemas").glob("*.schema.json")):
        properties = json.loads(path.read_text(encoding="utf-8")).get("properties", {})
        found.update(dict.fromkeys(list(properties)[:12]))
    return tuple(found)


def key(choices: Choices) -> str:
    return choices.pick(("a", "b", "c", "a.b", "defaults", "_target_", "<<", *keys()))


def scalar(choices: Choices) -> str:
    return choices.pick((*NUMBERS, *WORDS))


def broken(choices: Choices, text: str, tokens: tuple[str, ...]) -> str:
    """The text, now and then with a token put in, or a piece left out or said twice."""
    for _ in range(choices.number(3) if choices.one_in(2) else 0):
        at, to = sorted(choices.byte() * (len(text) + 1) // 256 for _ in range(2))
        what = choices.number(4)
        if what == 0:
            continue
        piece = text[at:to]
        text = text[:at] + (choices.pick((*tokens, *HARD)), "", piece + piece, piece[::-1])[what - 1] + text[to:]
    return text


# -- YAML

YAML_TOKENS = (
    *("&a ", "*a", "? ", ": ", "- ", "|\n  ", ">-\n  ", "{", "}", "[", "]", "!!int ", "!!python/object:os.system "),
    *("---\n", "...\n", "%YAML 1.1\n", "# memlint: ignore\n", "'", '"', "${a}", "${oc.env:HOME}", "@", "`", "<<: *a\n"),
)


def yaml_text(choices: Choices) -> str:
    text = _yaml_mapping(choices, 0)
    return broken(choices, text, YAML_TOKENS)


def _yaml_mapping(choices: Choices, depth: int) -> str:
    indent = "  " * depth
    lines = []
    for _ in range(1 + choices.number(4)):
        name = choices.pick(("{}", "{}", '"{}"', "? {}\n" + indent, "'{}'", "!!str {}")).format(key(choices))
        lines.append(f"{indent}{name}:{_yaml_value(choices, depth)}{_yaml_comment(choices)}\n")
    return "".join(lines)


def _yaml_comment(choices: Choices) -> str:
    return choices.pick(("", "", "  # why", "  # memlint: ignore[MEM101]", "  # memlint: off"))


def _yaml_value(choices: Choices, depth: int) -> str:
    kind = choices.number(12) if choices.left and depth < 6 else 0
    if kind <= 4:
        return " " + scalar(choices)
    if kind == 5:
        return "\n" + _yaml_mapping(choices, depth + 1).rstrip("\n")
    if kind == 6:
        indent = "  " * depth
        return "".join(f"\n{indent}-{_yaml_value(choices, depth + 1)}" for _ in range(1 + choices.number(3)))
    if kind == 7:
        return " [" + ", ".join(scalar(choices) for _ in range(choices.number(3))) + "]"
    if kind == 8:
        return " {" + ", ".join(f"{key(choices)}: {scalar(choices)}" for _ in range(choices.number(3))) + "}"
    if kind == 9:
        return f" &{choices.pick('ab')} {scalar(choices)}"
    if kind == 10:
        return f" *{choices.pick('ab')}"
    if kind == 11:
        return " " + interpolation(choices)
    indent = "  " * (depth + 1)
    return f" {choices.pick('|>')}{choices.pick(('', '-', '+', '2'))}\n{indent}text\n{indent}{scalar(choices)}"


def interpolation(choices: Choices) -> str:
    inner = choices.pick(
        ("a", "b", ".a", "..b", "a.b", "a[0]", "oc.env:HOME", "oc.env:NO,8", "eval:1+1", "", "oc.decode:8")
    )
    if choices.left and choices.one_in(4):
        inner = interpolation(choices) if choices.one_in(2) else "oc.select:a," + interpolation(choices)
    return choices.pick(("${{{}}}", "x${{{}}}y", "${{{}", '"${{{}}}"', "\\${{{}}}")).format(inner)


# -- JSON

JSON_TOKENS = ("{", "}", "[", "]", ",", ":", '"', "//x\n", "/* x */", "/*", "NaN", "-Infinity", "\\u", "\\", "'", "#")


def json_text(choices: Choices) -> str:
    return broken(choices, _json(choices, 0, mapping=True), JSON_TOKENS)


def _json(choices: Choices, depth: int, mapping: bool = False) -> str:
    kind = 3 if mapping else choices.number(5) if choices.left and depth < 8 else 0
    blank = choices.pick(("", " ", "\n", "\t", " // why\n", "/**/"))
    if kind == 0:
        return choices.pick(NUMBERS)
    if kind == 1:
        return choices.pick(("true", "false", "null", "NaN", "Infinity", "-Infinity", "tru", "None"))
    if kind == 2:
        return '"' + choices.pick((*WORDS, "\\n", "\\u00e9", "\\ud83d\\ude00", "\\ud800", "\\x", "\\")) + '"'
    inside = [_json(choices, depth + 1) for _ in range(choices.number(4))]
    if kind == 3:
        inside = [f'"{key(choices)}":{blank}{value}' for value in inside]
        return "{" + blank + ",".join(inside) + choices.pick(("", "", ",")) + "}"
    return "[" + ",".join(inside) + blank + choices.pick(("", "", ",")) + "]"


# -- TOML

TOML_TOKENS = (
    "[",
    "]",
    "[[",
    "]]",
    "=",
    ".",
    ",",
    "{",
    "}",
    '"',
    '"""',
    "'''",
    "#",
    "1979-05-27",
    "07:32:00",
    "inf",
    "_",
)


def toml_text(choices: Choices) -> str:
    lines = []
    for number in range(1 + choices.number(6)):
        kind = choices.number(6)
        name = ".".join(_toml_key(choices) for _ in range(1 + choices.number(2)))
        name += "" if choices.one_in(4) else str(number)
        if kind == 5:
            lines.append(f"[{name}]")
        elif kind == 6:
            lines.append(f"[[{name}]]")
        else:
            lines.append(f"{name} = {_toml(choices, 0)}{choices.pick(('', '', '  # why'))}")
    return broken(choices, "\n".join(lines), TOML_TOKENS)


def _toml_key(choices: Choices) -> str:
    name = choices.pick(("a", "b", "training", "model", *keys()))
    return name if name.replace("_", "").isalnum() and name.isascii() else "c"


def _toml(choices: Choices, depth: int) -> str:
    kind = choices.number(7) if choices.left and depth < 6 else 0
    if kind <= 2:
        return choices.pick(
            ("1", "8", "-1", "0.5", "1e-4", "true", "false", "1979-05-27T07:32:00Z", "0b101", "+1", *NUMBERS)
        )
    if kind <= 5:
        quote = choices.pick(('"', "'", '"""', "'''"))
        hard = ("\\n", "\\u00e9", "\\U0001f600", "\n", "\\\n  ", "\\q")
        return quote + choices.pick((*WORDS, *hard) if choices.one_in(3) else WORDS) + quote
    if kind == 6:
        return "[" + ", ".join(_toml(choices, depth + 1) for _ in range(choices.number(3))) + "]"
    return "{" + ", ".join(f"{name} = {_toml(choices, depth + 1)}" for name in "abc"[: choices.number(3)]) + "}"


# -- Python

PYTHON_TOKENS = (
    "(",
    ")",
    "[",
    "]",
    ":",
    "=",
    "\n",
    "\n    ",
    "'",
    '"""',
    "\\",
    "if ",
    "else",
    "lambda: ",
    "**",
    ",",
    "#",
)


def python_text(choices: Choices) -> str:
    lines = []
    for _ in range(1 + choices.number(6)):
        kind = choices.number(9)
        name, value = choices.pick(("a", "b", "batch_size", "n_layer", "model.depth")), _python(choices, 0)
        lines.append(
            (
                f"{name} = {value}",
                f"{name}: int = {value}",
                f"{name} = dict({choices.pick('ab')}={value}, c={_python(choices, 1)})",
                f"class {choices.pick(('Config', 'A(B)', 'C'))}:\n    {choices.pick('ab')} = {value}",
                f"if {value}:\n    a = 1\nelse:\n    a = {_python(choices, 1)}",
                f"for b in {value}:\n    a = b",
                f"def f(a={value}):\n    return a",
                f"{name}.update({value})",
                f"from os import path as {choices.pick('ab')}",
                f"a += {value}",
            )[kind]
        )
    return broken(choices, "\n".join(lines) + "\n", PYTHON_TOKENS)


def _python(choices: Choices, depth: int) -> str:
    kind = choices.number(11) if choices.left and depth < 6 else 0
    if kind <= 1:
        return choices.pick(("1", "8", "0", "-1", "1e400", "0x10", "9" * 40, "1_0", "True", "None", "0.5", "1j", "..."))
    if kind == 2:
        return choices.pick(("'a'", '"b"', "f'{a}'", "b'c'", "'''d\n'''", "r'\\'", "f'{a:{b}}'", "'a' 'b'"))
    if kind == 3:
        return choices.pick(("a", "b", "a.b", "os.environ['HOME']", "Config.a", "f(1)", "a[0]", "int('8')", "len(a)"))
    left, right = _python(choices, depth + 1), _python(choices, depth + 1)
    if kind <= 6:
        operator = choices.pick(
            ("+", "*", "-", "/", "//", "%", "**", "<<", "and", "or", "==", "if 1 else", "in", "@", "|")
        )
        return f"({left} {operator} {right})"
    if kind == 7:
        return f"[{left}, {right}]"
    if kind == 8:
        return f"{{'a': {left}, 'b': {right}}}"
    if kind == 9:
        return f"dict(a={left}, **{right})"
    if kind == 10:
        return f"({left}, *{right})"
    return f"[x for x in {left} if {right}]"


# -- shell

SHELL_TOKENS = (
    *(
        "$(",
        ")",
        "${",
        "}",
        "`",
        '"',
        "'",
        "\\\n",
        "|",
        "&&",
        ";",
        "&",
        "<<EOF\n",
        "EOF\n",
        "$((",
        "))",
        "[[",
        "]]",
        "{1..9}",
    ),
    *(
        "if ",
        "then\n",
        "fi\n",
        "for i in 1 2; do\n",
        "done\n",
        "case $A in\n",
        "esac\n",
        "f() {\n",
        "}\n",
        "$@",
        "#",
        "\\",
    ),
)


def shell_text(choices: Choices) -> str:
    text = "#!/bin/bash\n" + _shell_block(choices, 0)
    return broken(choices, text, SHELL_TOKENS)


def _shell_block(choices: Choices, depth: int) -> str:
    return "".join(_shell_line(choices, depth) for _ in range(1 + choices.number(4)))


def _shell_line(choices: Choices, depth: int) -> str:
    kind = choices.number(14) if choices.left and depth < 5 else 0
    name, word = choices.pick("ABC"), shell_word(choices, 0)
    if kind <= 2:
        return f"{choices.pick(('', 'export ', 'local ', 'declare -i ', 'readonly '))}{name}={word}\n"
    if kind <= 5:
        options = " ".join(
            f"--{key(choices)}{choices.pick((' ', '='))}{shell_word(choices, 0)}" for _ in range(choices.number(4))
        )
        program = choices.pick(
            ("python train.py", "torchrun --nproc_per_node 2 run_clm.py", "accelerate launch sft.py", "trl sft")
        )
        return (
            f"{program} {options} {choices.pick(('', '', chr(34) + '$@' + chr(34), '2>&1 | tee log', '&', '> out'))}\n"
        )
    inner = _shell_block(choices, depth + 1)
    return (
        f"if {_shell_test(choices)}; then\n{inner}else\n{name}={word}\nfi\n",
        f"for {name} in {word} {shell_word(choices, 0)}; do\n{inner}done\n",
        f"case {word} in\n{shell_word(choices, 0)}) {inner};;\n*) {name}=1;;\nesac\n",
        f"f() {{\n{inner}}}\nf {word} {shell_word(choices, 0)}\n",
        f"while {_shell_test(choices)}; do\n{inner}done\n",
        f"{name}=({word} {shell_word(choices, 0)})\n",
        f"{name}+={word}\n",
        f"(( {name} {choices.pick(('=', '+=', '**=', '<<=', '++', '/='))} {arithmetic(choices, 0)} ))\n",
        f"{name}=$(cat <<{choices.pick(('EOF', chr(39) + 'EOF' + chr(39)))}\n{word}\nEOF\n)\n",
    )[kind - 6]


def _shell_test(choices: Choices) -> str:
    one, other = shell_word(choices, 0), shell_word(choices, 0)
    operator = choices.pick(("=", "==", "!=", "-eq", "-lt", "=~", "<", "-gt"))
    return choices.pick(
        ("[ {} {} {} ]", "[[ {} {} {} ]]", "! [[ {} {} {} && -z $A ]]", "test {} {} {}", "(( {} {} {} ))")
    ).format(one, operator, other)


def shell_word(choices: Choices, depth: int) -> str:
    kind = choices.number(13) if choices.left and depth < 5 else 0
    if kind <= 2:
        return choices.pick(("1", "8", "a", "x/y", "0", "''", "-1", "010", "a\\ b", "~", "*", "é"))
    if kind == 3:
        return f"$(({arithmetic(choices, depth + 1)}))"
    if kind == 4:
        return f'"{shell_word(choices, depth + 1)} {shell_word(choices, depth + 1)}"'.replace('""', "")
    if kind == 5:
        return choices.pick(("{a,b}", "{1..3}", "{3..1}", "{01..10..3}", "{a..e}", "{,x}", "{1..9}{1..9}", "{x"))
    if kind == 6:
        return f"$(echo {shell_word(choices, depth + 1)})"
    if kind == 7:
        return "`nproc`"
    name = choices.pick(("A", "B", "C", "@", "*", "1", "#", "?", "A[0]", "A[@]", "!A", "#A", "RANDOM"))
    if kind == 8:
        return f"${name[:1]}"
    inner = shell_word(choices, depth + 1)
    operator = choices.pick((":-", "-", ":=", ":+", "+", ":?", "#", "##", "%", "%%", "/", "//", ":", "^^", ",,", "@Q"))
    if operator in ("/", "//"):
        inner += "/" + shell_word(choices, depth + 1)
    return f"${{{name}{operator if kind > 9 else ''}{inner if kind > 9 else ''}}}"


def arithmetic(choices: Choices, depth: int) -> str:
    kind = choices.number(6) if choices.left and depth < 6 else 0
    if kind <= 1:
        return choices.pick(("1", "8", "A", "$A", "0", "0x10", "2#101", "08", "9" * 20, "B", "A[0]", "${A:-3}"))
    left, right = arithmetic(choices, depth + 1), arithmetic(choices, depth + 1)
    if kind == 2:
        return f"({left})"
    if kind == 3:
        return f"{left} ? {right} : {left}"
    if kind == 4:
        return choices.pick(("-{}", "!{}", "~{}", "++A", "A--", "+{}")).format(left)
    operator = choices.pick(
        ("+", "-", "*", "/", "%", "**", "<<", ">>", "<", "==", "&&", "||", "&", "^", ",", "=", "+=")
    )
    return f"{left} {operator} {right}"


# -- Hydra: a primary config and the group files beside it

HYDRA_TOKENS = (*YAML_TOKENS, "# @package _global_\n", "override ", "optional ", "_self_", "@_here_", "- ")


def hydra_files(choices: Choices) -> dict[str, str]:
    files = {"config.yaml": _hydra_config(choices, "")}
    for group in ("task", "model", "task/size"):
        for option in ("a", "b"):
            if not choices.one_in(4):
                files[f"{group}/{option}.yaml"] = _hydra_config(choices, group)
    return files


def _hydra_config(choices: Choices, group: str) -> str:
    header = choices.pick(
        ("", "", "# @package _global_\n", "# @package _group_\n", "# @package x.y\n", "# @package :\n")
    )
    entries = [f"  - {_default(choices)}\n" for _ in range(choices.number(4))]
    defaults = "defaults:\n" + "".join(entries) if entries else ""
    return header + broken(choices, defaults + _yaml_mapping(choices, 0), HYDRA_TOKENS)


def _default(choices: Choices) -> str:
    name = choices.pick(("task", "model", "size", "/task", "/model", "task/size", "../task", "/config"))
    package = choices.pick(("", "", "@x", "@_global_", "@_here_", "@:"))
    option = choices.pick(("a", "b", "[a, b]", "null", "???", "${task}", "${model}_x", "config", "../a"))
    word = choices.pick(("", "", "override ", "optional ", "override hydra/"))
    return choices.pick(
        (f"{word}{name}{package}: {option}", "_self_", option, f"{name}/{option}", f"{{{word}{name}: {option}}}")
    )


def hydra_overrides(choices: Choices) -> list[str]:
    def one() -> str:
        sign = choices.pick(("", "+", "++", "~"))
        value = choices.pick(
            ("=", "=a", "=8", "=[1,2]", "={a:1}", "='x y'", "", "=null", "=1,2", "=${a}", "=choice(1,2)")
        )
        return (
            sign + choices.pick(("a", "task", "model", "a.b", "task@x", "x.y.z", "task/size", "hydra.run.dir")) + value
        )

    return choices.some(one, 3)


# -- pins

PIN_FILES = ("requirements.txt", "environment.yml", "pyproject.toml", "uv.lock", "poetry.lock", "Pipfile.lock")
RELEASES = (
    "2.1.0",
    "2.1",
    "1",
    "2.1.0+cu118",
    "2.1²",
    "9" * 50 + ".1",
    "2.",
    "v2.1",
    "2.1.0.dev1",
    "2.1.*",
    "",
    "1!2.0",
)


def pin_files(choices: Choices) -> dict[str, str]:
    return {name: _pins(choices, name) for name in PIN_FILES if not choices.one_in(3)}


def _pins(choices: Choices, name: str) -> str:
    package = choices.pick(("torch", "transformers", "jax", "pytorch", "torchtune", "numpy", "torch[x]"))
    release, sign = choices.pick(RELEASES), choices.pick(("==", "=", "===", ">=", "~=", " == ", "@"))
    lines = choices.some(
        lambda: choices.pick((f"{package}{sign}{release}", f"  - {package}{sign}{release}", "", "# x", "-r x.txt")), 5
    )
    if name.endswith(".lock"):
        lines = [
            f'[[package]]\nname = "{package}"\nversion = "{release}"',
            f'"{package}": {{"version": "=={release}"}}',
            *lines,
        ]
    elif name == "pyproject.toml":
        lines = [
            "[project]",
            f'dependencies = ["{package}{sign}{release}"]',
            "[tool.poetry.dependencies]",
            f'{package} = "{release}"',
        ]
    return broken(choices, "\n".join(lines) + "\n", ("torch", "==", "\n", '"', "[", "]", "  - "))
