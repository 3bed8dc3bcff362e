"""The run up to the step that is recorded: what it has left in the allocator.

PyTorch's optimizers make their states in their first ``step()`` (``torch/optim/adamw.py``, ``_init_group``). By then
the activations of that step are free, and the states are cut out of their blocks; the second step, which is like all
later ones, finds these blocks taken. So it is with DeepSpeed (0.19, ``stage_1_and_2.py``,
``initialize_optimizer_states``), whose fp32 copies of the weights are there from the start. The peak of what is
allocated is the same either way, reserved bytes are not.
"""

from __future__ import annotations

from memlint.meta.tape import Tape

STEP = "optimizer_step"
MASTERS = "master weights"  # made with the optimizer, before any step
EVALUATION = "evaluation"


def from_the_start(tape: Tape) -> list[int]:
    """Events of the first two steps: the recorded one, but without states until its optimizer steps, and again."""
    begin = next((at for at, phase in tape.marks if phase != "setup"), len(tape.events))
    step = next((at for at, phase in tape.marks if phase == STEP), len(tape.events))
    end = next((at for at, phase in tape.marks if phase == EVALUATION), len(tape.events))
    setup = tape.events[:begin]
    freed = {~event for event in setup if event < 0}
    labels = tape.labels
    states = [
        event
        for event in setup
        if event >= 0
        and event not in freed
        and labels[event].component == "optimizer"
        and labels[event].name != MASTERS
    ]
    late = set(states)
    alive: dict[int, None] = {}
    for event in tape.events[begin:end]:
        if event >= 0:
            alive[event] = None
        else:
            alive.pop(~event, None)
    return [
        *[event for event in setup if event not in late],
        *tape.events[begin:step],
        *states,
        *tape.events[step:end],
        *[~storage for storage in alive],
        *tape.events[begin:],
    ]
