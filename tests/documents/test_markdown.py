"""Commands in Markdown: which blocks are read, and that each stands where the reader finds it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memlint.documents import markdown
from memlint.documents.load import load

COMMAND = "accelerate launch train.py --lr 0.1"


def programs(text: str) -> list[str]:
    return [str(command.program.value) for command in load("README.md", text).commands]


def fenced(language: str, *lines: str, fence: str = "```") -> str:
    return "\n".join(["Some text.", "", fence + language, *lines, fence, "", "More text."])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param(fenced("bash", COMMAND), ["train.py"], id="a block of bash"),
        pytest.param(fenced("", COMMAND), ["train.py"], id="a block of no language that bash would take"),
        pytest.param(fenced("Shell", COMMAND), ["train.py"], id="languages are not told apart by capitals"),
        pytest.param(fenced("{.bash .annotate}", COMMAND), ["train.py"], id="a language with attributes"),
        pytest.param(fenced("{code-block} bash", COMMAND), ["train.py"], id="a directive of Sphinx"),
        pytest.param(fenced("{code-block} yaml", COMMAND), [], id="a directive of Sphinx for another language"),
        pytest.param(fenced("bash", COMMAND, fence="~~~~"), ["train.py"], id="a longer fence of tildes"),
        pytest.param(fenced("json", COMMAND), [], id="another language is no script"),
        pytest.param(fenced("python", COMMAND), ["train.py"], id="commands that are called Python"),
        pytest.param(fenced("python", "python = 1", "deepspeed.initialize()"), [], id="and what is Python"),
        pytest.param(
            "\n".join((fenced("json", "{}"), fenced("", COMMAND), fenced("python", "pass"), fenced("sh", COMMAND))),
            ["train.py", "train.py"],
            id="and what closes its block opens none",
        ),
        pytest.param(COMMAND, [], id="prose is none"),
        pytest.param(fenced("bash", "$ " + COMMAND), ["train.py"], id="a prompt before the command"),
        pytest.param(fenced("bash", "# " + COMMAND), [], id="a comment in a script"),
        pytest.param(fenced("console", "# " + COMMAND), ["train.py"], id="and root's prompt in a session"),
        pytest.param(fenced("console", "$ " + COMMAND, "python b.py --a 1"), ["train.py"], id="output is not typed"),
        pytest.param(
            fenced("console", "$ accelerate launch \\", "  train.py --lr 0.1"), ["train.py"], id="a line that goes on"
        ),
        pytest.param(fenced("bash", 'echo "', COMMAND), [], id="a block that bash would refuse is passed over"),
        pytest.param(
            fenced("bash", 'echo "') + "\n" + fenced("bash", COMMAND), ["train.py"], id="and spoils no other block"
        ),
        pytest.param(
            fenced("", "## Thinking", "[Reasoning process]") + "\n" + fenced("bash", COMMAND),
            ["train.py"],
            id="nor does a listing in brackets",
        ),
        pytest.param(fenced("bash", "python one.py --a 1 \\") + "\n" + fenced("bash", COMMAND), ["one.py", "train.py"],
                     id="a last line that goes on ends with its block"),
        pytest.param("- item\n\n    ```bash\n    " + COMMAND + "\n    ```\n", ["train.py"], id="a block in a list"),
        pytest.param("> ```bash\n> echo\n> ```\n", [], id="a quoted block"),
        pytest.param("```bash\n" + COMMAND, ["train.py"], id="a fence that nobody closes reaches to the end"),
        pytest.param("````md\n```bash\n" + COMMAND + "\n```\n````\n", [], id="a fence within a longer fence"),
        pytest.param(fenced("commandline", COMMAND), ["train.py"], id="a name that is no language's"),
        pytest.param("- `$ " + COMMAND + "`\n", ["train.py"], id="an entry of a list with a prompt"),
        pytest.param("1. `$ " + COMMAND + "`\r\n", ["train.py"], id="of a numbered one"),
        pytest.param("- `" + COMMAND + "`\n", [], id="an entry without a prompt"),
        pytest.param("- run `$ " + COMMAND + "` now\n", [], id="a command in a sentence"),
        pytest.param("- `$ (" + COMMAND + "`\n", [], id="what bash would refuse"),
        pytest.param("", [], id="nothing"),
        pytest.param("To train:\n\n    " + COMMAND + "\n\nDone\n", ["train.py"], id="a block that is only indented"),
        pytest.param("To train:\n    " + COMMAND + "\n", [], id="what goes on with a paragraph"),
        pytest.param("- item\n\n    more of `train.py --lr 0.1`\n", [], id="an entry's second paragraph"),
        pytest.param(
            "Train\n\n    # twice\n    " + COMMAND + "\n\n    " + COMMAND.replace("train", "tune") + "\n",
            ["train.py", "tune.py"],
            id="blank lines within it",
        ),
        pytest.param(
            "- a\n\n    ```json\n    " + COMMAND + "\n    ```\n", [], id="a block of another language in a list"
        ),
        pytest.param(fenced("bashs", COMMAND), ["train.py"], id="a slip in the language's name"),
        pytest.param(fenced("text", COMMAND), ["train.py"], id="commands that are called text"),
        pytest.param(fenced("text", "out of train.py: done"), [], id="and what is text"),
    ],
)  # fmt: skip
def test_shell_blocks_of_a_document_are_its_script(text: str, found: list[str]) -> None:
    assert programs(text) == found
    assert load("README.md", text).faults == ()


def test_a_value_stands_on_its_line_and_column_of_the_document() -> None:
    text = "# Title\r\n\r\nText\r\n```bash\r\n$ accelerate launch train.py \\\r\n    --lr 0.1\r\n```\r\n"
    (command,) = load("README.md", text).commands
    rate = command.options.get("lr")
    assert rate is not None
    assert (rate.span.line, rate.span.column) == (6, 10)
    assert text.splitlines()[5][9:12] == "0.1"


@pytest.mark.parametrize(
    "place", ["<your_port>", "<path to a model>", "{number of gpus}", "{large; 1 for toys}", "<N>"]
)
def test_what_a_reader_fills_in_is_a_value_that_is_not_known(place: str) -> None:
    (command,) = load(
        "README.md", fenced("bash", f"torchrun --master_port={place} train.py --lr 0.1 --out {place}")
    ).commands
    assert command.program.value == "train.py"
    out, rate = command.options.get("out"), command.options.get("lr")
    assert rate is not None
    assert rate.value == "0.1"
    assert out is not None
    assert not isinstance(out.value, str)


@pytest.mark.parametrize(
    "line", ["python a.py --x 1 <in.txt >out.txt", "python a.py --x ${A} <in.txt", "python a.py --x {1,2}"]
)
def test_redirections_and_braces_of_a_shell_are_what_they_are(line: str) -> None:
    assert line in markdown.blocks(fenced("bash", line))


def test_what_one_block_sets_the_next_one_sees() -> None:
    text = fenced("bash", "export LR=0.5") + "\n" + fenced("bash", "python train.py --lr $LR")
    (command,) = load("README.md", text).commands
    rate = command.options.get("lr")
    assert rate is not None
    assert rate.value == "0.5"


@given(st.text(alphabet="`~ \n\r\t>$#ab\\'\"{}.python train.py --a 1", max_size=300))
def test_blanked_text_keeps_every_line_and_column(text: str) -> None:
    script = markdown.blocks(text)
    assert len(script) == len(text)
    for ours, theirs in zip(script.splitlines(keepends=True), text.splitlines(keepends=True)):
        assert len(ours) == len(theirs)
        assert all(a in (b, " ", "$", "_") for a, b in zip(ours, theirs))
