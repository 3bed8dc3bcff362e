"""A Python module is a config where it is imported for its names: a program is none, nor is another library's."""

from __future__ import annotations

from pathlib import Path

import pytest

from memlint.dialects import registry
from memlint.documents.load import load

NAMES = "train_dataloader = dict(batch_size=2)\noptim_wrapper = dict(type='OptimWrapper')\nmodel = dict(type='X')\n"


@pytest.mark.parametrize(
    ("text", "families"),
    [
        pytest.param(NAMES, ["openmmlab"], id="a config of mmengine"),
        pytest.param(NAMES + "\nif __name__ == '__main__':\n    main()\n", [], id="a program with such names"),
        pytest.param(NAMES + '\nif __name__ == "__main__":\n    main()\n', [], id="in double quotes"),
        pytest.param("args = parser.parse_args()\n" + NAMES, [], id="one that reads options"),
        pytest.param(NAMES + "\nmodel.fit(train_objectives=[(train_dataloader, loss)])\n", [], id="one that trains"),
        pytest.param(
            "from mmengine.config import read_base\nmodels = []\nwith read_base():\n    from .a import b\n",
            [],
            id="what OpenCompass is to evaluate",
        ),
    ],
)
def test_which_modules_are_configs(text: str, families: list[str], tmp_path: Path) -> None:
    path = tmp_path / "run.py"
    path.write_text(text, encoding="utf-8")
    assert [spec.family for spec in registry.specs(load(str(path)))] == families
