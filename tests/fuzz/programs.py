"""Texts in which commands stand among others, and training programs with the command that starts them."""

from __future__ import annotations

import json
from typing import Any

from tests.fuzz import grammars
from tests.fuzz.choices import Choices

QUOTING_TOKENS = (
    *("```", "```bash\n", "~~~\n", "\t", "    ", "$ ", "> ", "\\\n", "|", "<<EOF\n", "EOF\n", "'''", '"""', "# "),
    *("!", "%%bash\n", "@", "-", "$(A)", "$$A", "${{ a.b }}", "{{a}}", "RUN ", "CMD ", "define X\n", "endef\n", "\r\n"),
    *("\\u0000", '"', "]", "}", "run: |\n", "\u2028", "%", "&&"),
)
NAMES = ("README.md", "a.ipynb", "Makefile", "justfile", "Dockerfile", ".github/workflows/a.yml", "a.mdx", "x.mk")


def quoting(choices: Choices) -> dict[str, str]:
    """One text, by its name."""
    name = choices.pick(NAMES)
    if name.endswith(".ipynb"):
        return {name: grammars.broken(choices, _notebook(choices), QUOTING_TOKENS)}
    parts = [_part(choices, name, _commands(choices)) for _ in range(1 + choices.number(3))]
    return {name: grammars.broken(choices, "".join(parts), QUOTING_TOKENS)}


def _commands(choices: Choices) -> str:
    if choices.one_in(3):
        return grammars.shell_text(choices)
    program = choices.pick(("accelerate launch", "torchrun --nproc_per_node 2", "python", "deepspeed"))
    flags = choices.some(lambda: f"--{grammars.key(choices)} {choices.pick(grammars.NUMBERS)}", 4)
    separator = choices.pick((" ", " \\\n  ", "\n"))
    return f"{program} {choices.pick(('train.py', 'sft.py', '-m trl', '$A'))} {separator.join(flags)}\n"


def _part(choices: Choices, name: str, commands: str) -> str:
    lines = commands.splitlines(keepends=True)
    if name.endswith((".md", ".mdx")):
        mark, word = choices.pick(("```", "~~~", "````")), choices.pick(("bash", "sh", "", "python", "console"))
        return f"text\n\n{mark}{word}\n{commands}{mark}\n"
    if name == "Dockerfile":
        return choices.pick(("FROM a:1 AS b\n", "ARG A=1\nENV B=$A C=2\n", "WORKDIR /a\n")) + "RUN " + commands
    if name.endswith(".yml"):
        return "jobs:\n  a:\n    steps:\n    - run: |\n" + "".join(f"        {line}" for line in lines)
    target = choices.pick(("train:\n", "train: a b\n", "A := $(B)\nB ?= 1\n.PHONY: x\nx:\n", "train a='1':\n"))
    return target + "".join(f"\t{choices.pick(('', '@', '-'))}{line}" for line in lines)


def _notebook(choices: Choices) -> str:
    cells: list[Any] = []
    for _ in range(1 + choices.number(3)):
        kind = choices.pick(("code", "markdown", "raw"))
        text = choices.pick(("!", "%%bash\n", "%%writefile a.yaml\n", "")) + _commands(choices)
        source: Any = text if choices.one_in(2) else text.splitlines(keepends=True)
        cells.append({"cell_type": kind, "source": choices.pick((source, source, source, None, 1, [1, None]))})
    tree = {"cells": cells, "nbformat": choices.pick((4, 3, None, "4")), "metadata": {}}
    return json.dumps(tree, indent=choices.pick((1, None)))


# -- training programs

PROGRAM_TOKENS = (*grammars.PYTHON_TOKENS, "return", "import ", "@dataclass\n", "self", "args.", "(", ")", "yield ")
PIECES = (
    "parser = argparse.ArgumentParser()\n",
    "parser.add_argument('--model', default='./model')\n",
    "parser.add_argument('--batch', type=int, default=2, dest='b')\n",
    "parser.add_argument('--x', action='store_true')\n",
    "args = parser.parse_args()\n",
    "@dataclass\nclass Options:\n    model: str = field(default='./model')\n    length: int = 128\n",
    "options, rest = HfArgumentParser((Options, TrainingArguments)).parse_args_into_dataclasses()\n",
    "model = AutoModelForCausalLM.from_pretrained('./model', torch_dtype=torch.bfloat16)\n",
    "model = get_peft_model(model, LoraConfig(r=8, target_modules=['q_proj']))\n",
    "model = prepare_model_for_kbit_training(model)\n",
    "trainer = SFTTrainer(model=model, args=SFTConfig(output_dir='o', max_length=64), train_dataset=d)\n",
    "trainer = Trainer(model, TrainingArguments('o', per_device_train_batch_size=args.b), train_dataset=d)\n",
    "trainer = DPOTrainer(model, ref, args=options, beta=0.1)\n",
    "trainer.train()\n",
    "loader = DataLoader(d, batch_size=args.b, collate_fn=collate)\n",
    "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)\n",
    "accelerator = Accelerator(mixed_precision='bf16')\n"
    "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)\n",
    "for batch in loader:\n    out = model(**batch)\n    out.loss.backward()\n    optimizer.step()\n"
    "    optimizer.zero_grad()\n",
    "for i, batch in enumerate(loader):\n    with torch.autocast('cuda', torch.bfloat16):\n"
    "        logits = model(batch['input_ids']).logits\n"
    "        loss = F.cross_entropy(logits[:, :-1].reshape(-1, 9), batch['labels'][:, 1:].reshape(-1)) / 4\n"
    "    scaler.scale(loss).backward()\n    if i % 4 == 0:\n        scaler.step(optimizer)\n"
    "        optimizer.zero_grad()\n        del logits, loss\n",
    "class Ours:\n    def __init__(self, m):\n        self.m = m\n    def train(self):\n        for b in loader:\n"
    "            self.m(**b).loss.backward()\n            optimizer.step()\n",
    "Ours(model).train()\n",
    "model.gradient_checkpointing_enable()\n",
    "for p in model.parameters():\n    p.requires_grad = False\n",
)
IMPORTS = (
    "import torch.nn.functional as F\nfrom accelerate import Accelerator\nfrom torch.utils.data import DataLoader\n"
    "import argparse, torch\nfrom dataclasses import dataclass, field\nfrom transformers import *\n"
    "from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments\n"
    "from trl import SFTConfig, SFTTrainer, DPOTrainer\n"
    "from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training\n"
)


def training(choices: Choices) -> dict[str, str]:
    """A program, and perhaps the script that starts it."""
    body = ["x = 1\n"]
    for _ in range(1 + choices.number(9)):
        piece = choices.pick(PIECES) if not choices.one_in(4) else grammars.python_text(choices)
        body.append(_held(choices, piece))
    program = grammars.broken(choices, IMPORTS + "".join(body), PROGRAM_TOKENS)
    if choices.one_in(3):
        return {"train.py": program}
    flags = " ".join(
        choices.some(lambda: f"--{choices.pick(('model', 'batch', 'x', 'length'))} {choices.pick(VALUES)}", 4)
    )
    return {
        "train.py": program,
        "run.sh": f"#!/bin/sh\n{choices.pick(('python', 'accelerate launch'))} train.py {flags}\n",
    }


VALUES = ("./model", "2", "true", "0", "-1", "x", "'a b'", "$A", "1e9", "")


def _held(choices: Choices, piece: str) -> str:
    """A piece as it stands, or below a condition, in a loop or in a function of the program's own."""
    head = choices.pick(
        ("", "", "", "if args.x:\n", "for a in range(3):\n", "def main(a=1):\n", "try:\n", "while a:\n")
    )
    if not head:
        return piece
    indented = "".join(f"    {line}\n" for line in piece.splitlines())
    return head + indented + {"try:\n": "finally:\n    pass\n", "def main(a=1):\n": "main()\n"}.get(head, "")
