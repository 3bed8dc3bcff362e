"""What a forward pass calls: functions of torch that are made of others are recorded as what they call."""

from __future__ import annotations

import torch
from torch import nn

from memlint.measure import forward


class Composed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turned = torch.einsum("nhwc->nchw", x)
        return nn.functional.normalize(turned * self.weight, dim=1)


def test_functions_that_are_made_of_others_are_their_parts_and_an_einsum_of_one_tensor_is_a_permutation() -> None:
    made = forward.program(Composed, lambda s: {"x": torch.empty(s["B"], 4, 4, 3)}, {"B": 2}, "composed", "the test")
    names = [row[0] for row in made["bodies"][-1]["rows"]]
    assert names[0] == "permute"
    assert made["bodies"][-1]["rows"][0][2] == ["%-1", [0, 3, 1, 2]]
    assert "einsum" not in names
    assert {"norm", "div"} & {name.lstrip("~") for name in names}
    assert "normalize" not in names
