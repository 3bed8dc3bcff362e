from __future__ import annotations

from collections.abc import Iterator

from memlint.facts.spec import Name
from memlint.plugin import ERROR, WARNING, Example, Finding, Rule, Run
from memlint.units import format_bytes

ONE_DEVICE = 'one device, as nothing here says that more share the run (`--gpu "{} x8"` does)'

# Devices that are tried where nothing says how many share the run, each with all states shared (ZeRO 3).
SHARED = (2, 4, 8, 16)


class StatesExceedGpu(Rule):
    """states-exceed-gpu: weights, gradients and optimizer alone are larger than the budget.

    ## What it does
    Compares what the optimizer's step holds, weights, gradients and states without temporaries, with the budget. A
    warning where one device is an assumption.

    ## Why it matters
    No batch is small enough: the run cannot start on this card.

    ## Example
    A full fine-tune of a 2.5-billion-parameter model with AdamW in fp32: 37.3 GiB on a 16 GB card.

    ## Use instead
    Adapters on frozen weights, quantised weights, sharding over several cards, or offload.

    ## Fix safety
    No fix: each of these is another kind of training.

    ## References
    Rajbhandari et al., "ZeRO", arXiv 1910.02054, section 3.
    """

    code = "MEM308"
    name = "states-exceed-gpu"
    severity = ERROR
    invalid = (
        Example(
            "video_llm/config_before.yaml",
            replace=(("max_frames: null ", "max_frames: 50 "),),
            budget="16GB",
            expect="dtype",
        ),
    )
    valid = (
        Example("video_llm/config_before.yaml", replace=(("max_frames: null ", "max_frames: 50 "),), budget="80GB"),
        Example("uni3d_dp/uni3d+dp.yaml", budget="16GB"),
        Example(
            "language_models/torchtune_llama3_1b.yaml",
            replace=(("max_seq_len: 4096", "max_seq_len: 256"), ("batch_size: 4", "batch_size: 1")),
            budget="10GB",
            note="temporaries of the step exceed it, states do not",
        ),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        if run.estimate is None or run.budget_bytes is None or not run.over_budget:
            return
        # The step holds all three at once. Its temporaries are none of them: one fused kernel does without.
        apart = run.value("optimizer_implementation") in ("foreach", "loop")
        step = run.whole_if(optimizer_implementation="fused") if apart else run.estimate
        total = step.phases.get("optimizer_step", 0)
        if total <= run.budget_bytes:
            return
        weights = run.estimate.component_bytes("parameters")
        stated = run.those("model", "parameter_dtype", "optimizer")
        place = next((fact for fact in stated if fact.node is not None), None)
        yield self.finding(
            run,
            f"weights ({format_bytes(weights)}), gradients and optimizer states alone take {format_bytes(total)} of "
            f"{format_bytes(run.budget_bytes)}",
            place,
            severity="" if run.is_launched else WARNING,
            size_bytes=total - run.budget_bytes,
            notes=lambda _: [] if run.fact("device_count") is not None else self._alone(run),
        )

    def _alone(self, run: Run) -> list[str]:
        """What a reader of a config that names no devices has to know, and on how many of them it would fit."""
        said = [ONE_DEVICE.format(self._card(run))]
        if run.fact("parallelism.strategy") is not None or run.spec.architecture != "language_model":
            return said
        for count in SHARED:
            shared: dict[Name, int | str] = {"parallelism.strategy": "zero", "parallelism.zero_stage": 3}
            shared |= {"device_count": count, "world_size": count}
            if run.fits_if(shared):
                peak = format_bytes(run.what_if(shared).device_bytes)
                return [*said, f"fits from {count} devices on, with all states shared (ZeRO 3): peak {peak} on each"]
        return [*said, f"does not fit {SHARED[-1]} devices either, with all states shared (ZeRO 3)"]

    def _card(self, run: Run) -> str:
        """The card that --gpu names, or one that it could."""
        if not run.gpu:
            return "h100-80gb"
        from memlint.data.catalogue import parse_gpu

        return parse_gpu(run.gpu)[0].name
