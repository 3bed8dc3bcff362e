"""A fact's change as an edit of the text: afterwards the file says the new value, and everything else as before."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memlint.dialects.spelling import spell
from memlint.facts.spec import TrainingSpec
from memlint.fixes.edits import apply_edits
from tests.dialects import families

_installed = pytest.fixture(autouse=True)(families.installed)


def changed(spec: TrainingSpec, **changes: Any) -> str:
    """The text of the run's file with these facts spelled into it."""
    edits = [edit for fact, value in changes.items() for edit in spell(spec, fact, value)]
    return apply_edits(spec.document.text, edits)


def edited(path: str, text: str, **changes: Any) -> str:
    return changed(families.spec(path, text), **changes)


W = "hyperparameters.width"


@pytest.mark.parametrize(
    ("path", "text", "changes", "expected"),
    [
        # -- YAML
        pytest.param(
            "a.yaml",
            "training:\n  batch: 16  # per card\nmodel: {width: 1}\n",
            {"micro_batch_size": 8},
            "training:\n  batch: 8  # per card\nmodel: {width: 1}\n",
            id="YAML: a value, its comment stays",
        ),
        pytest.param(
            "a.yaml",
            "training:\n  batch: 16\n  precision: '32'\nmodel:\n  width: 1\n",
            {"compute_dtype": "bfloat16"},
            "training:\n  batch: 16\n  precision: 'bf16-mixed'\nmodel:\n  width: 1\n",
            id="YAML: the family's word for the fact, in the quotes that were there",
        ),
        pytest.param(
            "a.yaml",
            "training:\n  batch: 16\n\n# the model\nmodel:\n  width: 1\n",
            {"gradient_accumulation_steps": 4},
            "training:\n  batch: 16\n  accumulate: 4\n\n# the model\nmodel:\n  width: 1\n",
            id="YAML: an absent key goes after the last one of its mapping",
        ),
        pytest.param(
            "a.yaml",
            "training: {batch: 16}\nmodel: {width: 1}",
            {"checkpointing": "full"},
            "training: {batch: 16, remat: true}\nmodel: {width: 1}",
            id="YAML: into a flow mapping",
        ),
        pytest.param(
            "a.yaml",
            "model:\n    width: 1\ntraining:\n    batch: 16  # x",
            {"checkpointing": "full"},
            "model:\n    width: 1\ntraining:\n    batch: 16  # x\n    remat: true",
            id="YAML: at the end of a file without a line break, in its own indent",
        ),
        pytest.param(
            "a.yaml",
            "training: &t\n  batch: 16\nmodel:\n  width: 1\n  <<: *t\n",
            {"source": "big"},
            "training: &t\n  batch: 16\nmodel:\n  width: 1\n  <<: *t\n  name: big\n",
            id="YAML: after a merge key",
        ),
        pytest.param(
            "a.yaml",
            "training:\n  batch: 16\nmodel:\n  width: 1\n  note: |\n    many\n    words\n\nother: 1\n",
            {"source": "big"},
            "training:\n  batch: 16\nmodel:\n  width: 1\n  note: |\n    many\n    words\n  name: big\n\nother: 1\n",
            id="YAML: after a block of text",
        ),
        pytest.param(
            "a.yaml",
            "training:\n  batch: 16\nmodel:\n  width: 1\n  parts:\n  - a\n  - b: 1\n    c: [1,\n      2]\nother: 1\n",
            {"source": "big"},
            "training:\n  batch: 16\nmodel:\n  width: 1\n  parts:\n  - a\n  - b: 1\n    c: [1,\n      2]\n"
            "  name: big\nother: 1\n",
            id="YAML: after a nested list",
        ),
        pytest.param(
            "a.yaml",
            "training:\n  batch: 16\nmodel:\n  width: 1\n",
            {"zero_stage": 2},
            "training:\n  batch: 16\nmodel:\n  width: 1\nzero:\n  stage: 2\n",
            id="YAML: with a parent that was missing too",
        ),
        pytest.param(
            "a.yaml",
            "training:\n  batch: 16\n  remat:\nmodel:\n  width: 1\n",
            {"checkpointing": "full"},
            "training:\n  batch: 16\n  remat: true\nmodel:\n  width: 1\n",
            id="YAML: an empty value is filled",
        ),
        pytest.param(
            "a.yaml",
            "b: 8  # here\ntraining:\n  batch: ${b}\nmodel:\n  width: 1\n",
            {"micro_batch_size": 4},
            "b: 4  # here\ntraining:\n  batch: ${b}\nmodel:\n  width: 1\n",
            id="YAML: an interpolated value is changed where it is written",
        ),
        pytest.param(
            "a.yaml",
            "training:\n  batch: 8\nmodel:\n  width: ${training.batch}\n",
            {W: 4},
            "training:\n  batch: 8\nmodel:\n  width: 4\n",
            id="YAML: but at its use where another fact is written there",
        ),
        pytest.param(
            "a.yaml",
            "n: &n 8\ntraining:\n  batch: *n\nmodel:\n  width: *n\n",
            {W: 4},
            "n: &n 8\ntraining:\n  batch: *n\nmodel:\n  width: 4\n",
            id="YAML: an alias that two facts use is replaced where it is used",
        ),
        pytest.param(
            "a.yaml",
            "training: {batch: 1}\nmodel: {width: 1, dims: [64, 128]}",
            {"hyperparameters.dims": [64, 32]},
            "training: {batch: 1}\nmodel: {width: 1, dims: [64, 32]}",
            id="YAML: only the element that changes",
        ),
        pytest.param(
            "a.yaml",
            "training: {batch: 1}\nmodel:\n  width: 1\n  dims:\n  - 64  # a\n  - 128\n",
            {"hyperparameters.dims": [64, 32]},
            "training: {batch: 1}\nmodel:\n  width: 1\n  dims:\n  - 64  # a\n  - 32\n",
            id="YAML: of a block list too",
        ),
        pytest.param(
            "a.yaml",
            "training:\r\n  batch: 16\r\nmodel: {width: 1}\r\n",
            {"checkpointing": "full"},
            "training:\r\n  batch: 16\r\n  remat: true\r\nmodel: {width: 1}\r\n",
            id="YAML: CRLF line breaks",
        ),
        pytest.param(
            "a.yaml",
            "training: {batch: 1}\nmodel: {width: 1}\n",
            {"rate": 1e-05},
            "training: {batch: 1, rate: 1.0e-05}\nmodel: {width: 1}\n",
            id="YAML: a small number stays a number for every reader",
        ),
        pytest.param(
            "a.yaml",
            "training: {batch: 1}\nmodel: {width: 1}\n",
            {"source": "yes"},
            'training: {batch: 1}\nmodel: {width: 1, name: "yes"}\n',
            id="YAML: text that looks like a constant is quoted",
        ),
        pytest.param(
            "a.yaml",
            "training: {batch: 1}\nmodel:\n  width: 1\n  tags: [&a x]\n  more:\n  - *a\n# end\n",
            {"source": "big"},
            "training: {batch: 1}\nmodel:\n  width: 1\n  tags: [&a x]\n  more:\n  - *a\n  name: big\n# end\n",
            id="YAML: after a list that ends in an alias",
        ),
        pytest.param(
            "a.yaml",
            "training: {batch: 1}\nmodel: {width: 1}\nzero: {}\n",
            {"zero_stage": 2},
            "training: {batch: 1}\nmodel: {width: 1}\nzero: {stage: 2}\n",
            id="YAML: into an empty mapping",
        ),
        pytest.param(
            "a.yaml",
            "training: {batch: 1}\nmodel: {width: 1, dims: [64, 128]}",
            {"hyperparameters.dims": [64, 32, 16]},
            "training: {batch: 1}\nmodel: {width: 1, dims: [64, 32, 16]}",
            id="YAML: a list of another length",
        ),
        # -- JSON
        pytest.param(
            "a.json",
            '{"training": {"batch": 16}, "model": {"width": 1}, "zero": {}}',
            {"zero_stage": 3},
            '{"training": {"batch": 16}, "model": {"width": 1}, "zero": {"stage": 3}}',
            id="JSON: into an empty mapping",
        ),
        pytest.param(
            "a.json",
            '{\n  "training": {\n    "batch": 16\n  },\n  "model": {"width": 1}\n}\n',
            {"micro_batch_size": 4, "checkpointing": "full"},
            '{\n  "training": {\n    "batch": 4,\n    "remat": true\n  },\n  "model": {"width": 1}\n}\n',
            id="JSON: a value, and a key on a line of its own",
        ),
        pytest.param(
            "a.json",
            '{"training": {"batch": 16}, "model": {"width": 1}}',
            {"source": 'a "b"', "zero_stage": 3},
            '{"training": {"batch": 16}, "model": {"width": 1, "name": "a \\"b\\""}, "zero": {"stage": 3}}',
            id="JSON: on one line, with a parent that was missing",
        ),
        # -- TOML
        pytest.param(
            "a.toml",
            "[training]\nbatch = 16  # per card\n\n[model]\nwidth = 1\n",
            {"micro_batch_size": 4, "checkpointing": "full", "source": "x"},
            '[training]\nbatch = 4  # per card\nremat = true\n\n[model]\nwidth = 1\nname = "x"\n',
            id="TOML: tables",
        ),
        pytest.param(
            "a.toml",
            "training = {batch = 16}\nmodel.width = 1\n",
            {"checkpointing": "full", "source": "x"},
            'training = {batch = 16, remat = true}\nmodel.width = 1\nmodel.name = "x"\n',
            id="TOML: inline tables and dotted keys",
        ),
        pytest.param(
            "a.toml",
            "[training]\nbatch = 16\n[model]\nwidth = 1",
            {"zero_stage": 2},
            "[training]\nbatch = 16\n[model]\nwidth = 1\n[zero]\nstage = 2",
            id="TOML: a table that was missing",
        ),
        pytest.param(
            "a.toml",
            "[training]\nbatch = 16\n[model]\nwidth = 1\n[zero]\n",
            {"zero_stage": 2},
            "[training]\nbatch = 16\n[model]\nwidth = 1\n[zero]\nstage = 2\n",
            id="TOML: into an empty table",
        ),
        # -- Python
        pytest.param(
            "c.py",
            "class Config:\n    BATCH = 16  # per card\n    WIDTH = 4\n\n    def run(self):\n        pass\n",
            {"micro_batch_size": 8, "checkpointing": "full"},
            "class Config:\n    BATCH = 8  # per card\n    WIDTH = 4\n    REMAT = True\n\n"
            "    def run(self):\n        pass\n",
            id="Python: a constant, and a new one after the last",
        ),
        pytest.param(
            "c.py",
            'class Config:\n    BATCH = 16\n    WIDTH = 4\n    NAME = "a"\n    SHAPE = (3,\n             64)\n',
            {"source": "b'", "image_size": 32, "rate": 1e-5},
            'class Config:\n    BATCH = 16\n    WIDTH = 4\n    NAME = "b\'"\n'
            "    SHAPE = (3,\n             32)\n    RATE = 1e-05\n",
            id="Python: quotes, an element, and after a statement of two lines",
        ),
        pytest.param(
            "c.py",
            "class Config:\n    BATCH = 16; WIDTH = 4\n",
            {"checkpointing": "full"},
            "class Config:\n    BATCH = 16; WIDTH = 4; REMAT = True\n",
            id="Python: after two statements on a line",
        ),
        # -- shell
        pytest.param(
            "run.sh",
            "python main_toy.py --batch 16 --name 'a b'  # x\n",
            {"micro_batch_size": 8, "source": "c d"},
            "python main_toy.py --batch 8 --name 'c d'  # x\n",
            id="shell: values of options, in their quotes",
        ),
        pytest.param(
            "run.sh",
            "B=16 # per card\npython main_toy.py --batch $B\n",
            {"micro_batch_size": 8},
            "B=8 # per card\npython main_toy.py --batch $B\n",
            id="shell: a variable where it is set",
        ),
        pytest.param(
            "run.sh",
            'python main_toy.py --batch ${B:-16} --width="${W:-4}"\n',
            {"micro_batch_size": 8, W: 2},
            'python main_toy.py --batch ${B:-8} --width="${W:-2}"\n',
            id="shell: a default in its expansion",
        ),
        pytest.param(
            "run.sh",
            'F="--batch 16 --width 4"\npython main_toy.py $F\n',
            {"micro_batch_size": 8},
            'F="--batch 8 --width 4"\npython main_toy.py $F\n',
            id="shell: a word of a string of options",
        ),
        pytest.param(
            "run.sh",
            "N=16\npython main_toy.py --batch $N --width $N\n",
            {W: 4},
            "N=16\npython main_toy.py --batch $N --width 4\n",
            id="shell: at the use where two facts share a variable",
        ),
        pytest.param(
            "run.sh",
            "python main_toy.py \\\n    --batch 16 \\\n    --name x > log 2>&1 &\n",
            {W: 4},
            "python main_toy.py \\\n    --batch 16 \\\n    --name x \\\n    --width 4 > log 2>&1 &\n",
            id="shell: a new option on a line of its own",
        ),
        pytest.param(
            "run.sh",
            "python main_toy.py --batch 16 | tee log\n",
            {W: 4, "compile": True, "checkpointing": "full"},
            "python main_toy.py --batch 16 --width 4 --compile --remat True | tee log\n",
            id="shell: new options on the same line",
        ),
        pytest.param(
            "run.sh",
            'F=(--batch 16)\npython main_toy.py "${F[@]}"\n',
            {W: 4},
            'F=(--batch 16)\npython main_toy.py "${F[@]}" --width 4\n',
            id="shell: after an array",
        ),
        pytest.param(
            "run.sh",
            "python main_toy.py --batch 16 \\\n  --compile \\\n  --width 1\n",
            {"compile": False},
            "python main_toy.py --batch 16 \\\n  --width 1\n",
            id="shell: a switch is taken away with its line",
        ),
        pytest.param(
            "run.sh",
            "python main_toy.py --batch 16 --remat --width 1\n",
            {"checkpointing": "none"},
            "python main_toy.py --batch 16 --remat False --width 1\n",
            id="shell: an option that takes a boolean is given one",
        ),
        pytest.param(
            "run.sh",
            "python main_toy.py --batch 16 --no_remat\n",
            {"checkpointing": "full"},
            "python main_toy.py --batch 16 --remat\n",
            id="shell: a negative option becomes the positive one",
        ),
        pytest.param(
            "run.sh",
            "python main_toy.py --batch 16 --remat false\n",
            {"checkpointing": "full"},
            "python main_toy.py --batch 16 --remat true\n",
            id="shell: a boolean in the case that was there",
        ),
        pytest.param(
            "run.sh",
            "python main_toy.py --batch 16 --dims 1 2 3 --width 1\n",
            {"hyperparameters.dims": [1, 5, 3]},
            "python main_toy.py --batch 16 --dims 1 5 3 --width 1\n",
            id="shell: one word of several",
        ),
        pytest.param(
            "run.sh",
            "python main_toy.py --batch 16 --dims 1 2 3 --width 1\n",
            {"hyperparameters.dims": [8, 9]},
            "python main_toy.py --batch 16 --dims 8 9 --width 1\n",
            id="shell: another number of words",
        ),
    ],
)
def test_edit(path: str, text: str, changes: dict[str, Any], expected: str) -> None:
    before = families.spec(path, text)
    after_text = changed(before, **changes)
    assert after_text == expected
    after = families.spec(path, after_text)
    for fact in {*before, *after}:
        assert after.get(fact) == changes.get(fact, before.get(fact)), fact


@pytest.mark.parametrize(
    ("path", "text", "fact", "value"),
    [
        pytest.param("a.yaml", "training: {batch: 1}\nmodel: {width: 1}", "tokens", 3, id="a fact without a key"),
        pytest.param(
            "a.yaml",
            "training: {batch: 1}\nmodel: {width: 1}",
            "micro_batch_size",
            0.5,
            id="a value that the key rejects",
        ),
        pytest.param(
            "a.yaml",
            "training: {batch: 1, precision: '32'}\nmodel: {width: 1}",
            "compute_dtype",
            "float8",
            id="a value that the family has no word for",
        ),
        pytest.param("run.sh", "F='--batch 1 --name x'\npython main_toy.py $F", "source", "a b", id="quotes in quotes"),
        pytest.param("run.sh", "python main_toy.py --batch 1", "compile", False, id="a switch that is off"),
        pytest.param("a.yaml", "training: {batch: 1}\nmodel: {width: 1}", "micro_batch_size", 1, id="no change"),
    ],
)
def test_no_edit_rather_than_a_wrong_one(path: str, text: str, fact: str, value: object) -> None:
    assert spell(families.spec(path, text), fact, value) == []


def test_a_fact_that_the_python_half_made_out_of_several_values_is_left_to_it() -> None:
    from types import SimpleNamespace

    from memlint.dialects import registry
    from memlint.dialects.base import Dialect

    def complete(spec: TrainingSpec) -> TrainingSpec:
        fact = spec.facts["micro_batch_size"]
        spec.facts["micro_batch_size"] = fact._replace(value=fact.value // 2)
        return spec

    registry.register(Dialect(families.TREE, SimpleNamespace(complete=complete)))
    spec = families.spec("a.yaml", "training: {batch: 16}\nmodel: {width: 1}")
    assert spec["micro_batch_size"] == 8
    assert spell(spec, "micro_batch_size", 4) == []


def test_an_edit_may_be_in_another_file(tmp_path: Any) -> None:
    from memlint.dialects import registry
    from memlint.documents import load

    (tmp_path / "c.yaml").write_text("training: {batch: 1}\nmodel: {width: 1}\nzero: ds.json\n")
    (tmp_path / "ds.json").write_text('{"stage": 3}')
    (spec,) = registry.specs(load.load(str(tmp_path / "c.yaml")))
    (edit,) = spell(spec, "zero_stage", 2)
    assert edit.span.path.endswith("ds.json")
    assert apply_edits('{"stage": 3}', [edit]) == '{"stage": 2}'


_MODULE = {
    "x-memlint": {"family": "test-module", "formats": ["python"], "signature": {"all": ["model.width"]}},
    "properties": {
        "batch": {"type": "integer", "x-memlint": {"fact": "micro_batch_size"}},
        "model": {
            "type": "object",
            "properties": {
                "width": {"type": "integer", "x-memlint": {"fact": W}},
                "depth": {"type": "integer", "x-memlint": {"fact": "depth"}},
            },
        },
    },
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model = dict(width=1)\n", "model = dict(width=1, depth=2)\nbatch = 8\n"),
        ("model = {'width': 1}\n", "model = {'width': 1, 'depth': 2}\nbatch = 8\n"),
        ('model = {\n    "width": 1,\n}\n', 'model = {\n    "width": 1,\n    "depth": 2,\n}\nbatch = 8\n'),
        ("W = 1\nmodel = dict(width=W)\n", "W = 1\nmodel = dict(width=W, depth=2)\nbatch = 8\n"),
    ],
    ids=["dict()", "a literal", "a literal of several lines", "after a value that stands elsewhere"],
)
def test_keys_of_a_python_module(text: str, expected: str) -> None:
    from memlint.dialects import registry
    from memlint.dialects.base import Dialect

    registry.register(Dialect(_MODULE))
    after = edited("config.py", text, depth=2, micro_batch_size=8)
    assert after == expected
    spec = families.spec("config.py", after)
    assert (spec[W], spec["depth"], spec["micro_batch_size"]) == (1, 2, 8)


def test_a_value_from_the_command_line_is_changed_in_the_file() -> None:
    text = "training: {batch: 16}\nmodel: {width: 1}"
    spec = families.spec("a.yaml", text, "training.batch=4")
    assert changed(spec, micro_batch_size=2) == "training: {batch: 2}\nmodel: {width: 1}"


# ------------------------------------------------------------------------------------------------ laws

_FACTS: dict[str, st.SearchStrategy[Any]] = {
    "micro_batch_size": st.integers(1, 10**6),
    W: st.integers(-5, 10**6),
    "rate": st.floats(allow_nan=False, allow_infinity=False, width=32),
    "checkpointing": st.sampled_from(["full", "none"]),
    "source": st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12),
}
_KEYS = {"micro_batch_size": "batch", W: "width", "rate": "rate", "checkpointing": "remat", "source": "name"}
_SECTION = {
    "micro_batch_size": "training",
    "rate": "training",
    "checkpointing": "training",
    W: "model",
    "source": "model",
}
_numbers = st.integers(1, 64)


def _yaml_config(data: st.DataObject, stated: list[str]) -> str:
    """A YAML config with comments, blank lines, flow and block mappings, anchors and interpolations."""
    sample: dict[str, Any] = {"batch": 16, "width": 8, "rate": 0.5, "remat": "true", "name": "'n'"}
    lines: list[str] = []
    uses = data.draw(st.sampled_from(["plain", "anchor", "interpolation"]))
    if uses == "anchor":
        lines.append("shared: &n 16")
        sample["batch"] = "*n"
    elif uses == "interpolation":
        lines.append("shared: 16")
        sample["batch"] = "'${shared}'"
    for section in data.draw(st.permutations(["training", "model"])):
        keys = [_KEYS[fact] for fact in stated if _SECTION[fact] == section]
        extra = data.draw(
            st.sampled_from(["", "other: {a: [1, 2]}", "note: >\n    x\n    y", "list:\n  - 1\n  - {b: 2}"])
        )
        if data.draw(st.booleans()) and not extra:
            lines.append(f"{section}: {{" + ", ".join(f"{key}: {sample[key]}" for key in keys) + "}")
        else:
            lines.append(f"{section}:  # section")
            body = [f"{key}: {sample[key]}{data.draw(st.sampled_from(['', '  # note']))}" for key in keys]
            body += [extra] if extra else []
            for entry in data.draw(st.permutations(body)):
                lines += ["  " + line for line in entry.split("\n")]
        lines += data.draw(st.sampled_from([[], [""], ["# between"]]))
    return "\n".join(lines) + data.draw(st.sampled_from(["", "\n", "\n\n"]))


def _json_config(data: st.DataObject, stated: list[str]) -> str:
    import json

    sample = {"batch": 16, "width": 8, "rate": 0.5, "remat": True, "name": 'n"'}
    tree: dict[str, Any] = {"x": [1, {"y": 2}]}
    for fact in data.draw(st.permutations(stated)):
        tree.setdefault(_SECTION[fact], {})[_KEYS[fact]] = sample[_KEYS[fact]]
    return json.dumps(tree, indent=data.draw(st.sampled_from([None, 2, 4])))


def _toml_config(data: st.DataObject, stated: list[str]) -> str:
    sample = {"batch": "16", "width": "8", "rate": "0.5", "remat": "true", "name": "'n'"}
    lines = ["top = 1"]
    for section in data.draw(st.permutations(["training", "model"])):
        keys = [_KEYS[fact] for fact in stated if _SECTION[fact] == section]
        style = data.draw(st.integers(0, 2)) if len(lines) == 1 or not lines[-1].startswith("[") else 0
        if style == 1 and not any(line.startswith("[") for line in lines):
            lines.append(f"{section} = {{" + ", ".join(f"{key} = {sample[key]}" for key in keys) + "}")
        elif style == 2 and keys and not any(line.startswith("[") for line in lines):
            lines += [f"{section}.{key} = {sample[key]}" for key in keys]
        else:
            lines += [f"[{section}]  # section", *(f"{key} = {sample[key]}" for key in keys), "list = [\n  1,\n  2,\n]"]
    return "\n".join(lines) + "\n"


def _python_config(data: st.DataObject, stated: list[str]) -> str:
    sample = {"batch": "16", "width": "8", "rate": "0.5", "remat": "True", "name": '"n"'}
    lines = ["import os", "", "class Config:", '    """Settings."""']
    for fact in data.draw(st.permutations(stated)):
        lines.append(f"    {_KEYS[fact].upper()} = {sample[_KEYS[fact]]}{data.draw(st.sampled_from(['', '  # note']))}")
    lines += data.draw(
        st.sampled_from([[], ["    LONG = [", "        1,", "    ]"], ["", "    def f(self):", "        return 1"]])
    )
    return "\n".join(lines) + data.draw(st.sampled_from(["", "\n"]))


def _script_config(data: st.DataObject, stated: list[str]) -> str:
    sample = {"batch": "16", "width": "8", "rate": "0.5", "remat": "True", "name": "'n'"}
    before: list[str] = []
    words: list[str] = []
    for fact in data.draw(st.permutations(stated)):
        key = _KEYS[fact]
        style = data.draw(st.integers(0, 5)) if key in ("batch", "width", "rate") else data.draw(st.integers(0, 1))
        option = f"--{key}=" if style == 1 else f"--{key} "
        value = sample[key]
        if style == 2:
            before.append(f"{key.upper()}={value}  # set here")
            value = f"${key.upper()}"
        elif style == 3:
            value = f'"${{{key.upper()}:-{value}}}"'
        elif style == 4:
            before.append(f'{key.upper()}_FLAGS="--{key} {value}"')
            words.append(f"${key.upper()}_FLAGS")
            continue
        elif style == 5:
            before.append(f"{key.upper()}_LIST=(--{key} {value})")
            words.append(f'"${{{key.upper()}_LIST[@]}}"')
            continue
        words.append(option + value)
    joint = data.draw(st.sampled_from([" ", " \\\n    "]))
    tail = data.draw(st.sampled_from(["", " > log.txt", " 2>&1 | tee log", " &"]))
    program = data.draw(st.sampled_from(["python main_toy.py", "torchrun --nproc_per_node 2 main_toy.py"]))
    return "\n".join([*before, joint.join([program, *words]) + tail]) + "\n"


_CONFIGS = {
    "a.yaml": _yaml_config,
    "a.json": _json_config,
    "a.toml": _toml_config,
    "config.py": _python_config,
    "run.sh": _script_config,
}


@pytest.mark.parametrize("path", _CONFIGS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_edited_file_says_the_new_value_and_everything_else_as_before(path: str, data: st.DataObject) -> None:
    optional = data.draw(st.lists(st.sampled_from(["rate", "checkpointing", "source"]), unique=True))
    stated = ["micro_batch_size", W, *optional]
    text = _CONFIGS[path](data, stated)
    before = families.spec(path, text)
    fact = data.draw(st.sampled_from(sorted(_FACTS)))
    value = data.draw(_FACTS[fact])
    if path in ("config.py", "run.sh") and fact == "source":
        value = value.replace("'", "_")
    edits = spell(before, fact, value)
    if not edits:
        assert before.get(fact) == value or (path == "run.sh" and fact == "source"), "every key has a spelling"
        return
    after = families.spec(path, apply_edits(text, edits))
    assert after[fact] == value
    assert after.facts[fact].origin == "written"
    for name in {*before, *after} - {fact}:
        assert after.get(name) == before.get(name), name
    assert len(after.missing) == len(before.missing)
