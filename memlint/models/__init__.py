"""TrainingSpec -> Tape: architectures written over meta tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memlint.facts.spec import TrainingSpec
from memlint.facts.spec import UnknownModel as UnknownModel
from memlint.meta.fold import Folded
from memlint.meta.tape import Tape
from memlint.named_tuple import NamedTuple

if TYPE_CHECKING:
    from memlint.models.templates import Templates

# architecture (TrainingSpec.architecture) -> module of this package: its `build(spec)` makes the System, or its
# `record(spec, symbolic)` and `saved_bytes(spec)` run a training step that is not PyTorch's, its
# `record_folded(spec, symbolic)` writes what is done again and again no more often than needed, or is None, and its
# `upper(spec, folded)` is that step where its compiler's choices fall out least well
ARCHITECTURES = {
    "uni3d_dp": "uni3d_dp",
    "diffusion_policy": "diffusion_policy",
    "stdiff": "stdiff",
    "dit3d": "dit3d",
    "diffusion": "diffusion",
    "sd_scripts": "sd_scripts",
    "fsdm_lag": "fsdm_lag",
    "video_llm": "video_llm",
    "language_model": "language",
    "llm_c": "llm_c",
    "rwkv": "rwkv",
    "nanochat": "nanochat",
    "openmmlab": "openmmlab",
    "openmmlab_least": "openmmlab.least",
    "detectron2": "detectron2",
    "detectron2_least": "detectron2_least",
    "torchvision_detection": "torchvision_detection",
    "yolo": "yolo",
    "classifier": "classifier",
    "contrastive": "contrastive",
    "videomae": "videomae",
    "mae": "mae",
    "dit": "dit",
    "deit": "deit",
    "recorded": "recorded",
    "own_model": "own",
    "own_states": "own.states",
}


class Recording(NamedTuple):
    """A tape with what the Estimate needs besides.

    upper  the same step where a compiler's choices (fusion) fall out least well: the high end of the interval
    basis  which source wrote the tape
    library  the step is a library's: its releases differ, and the config does not say which one runs
    host_bytes      of states and activations that live in (pinned) host memory, per rank
    loading         how the model is brought to the card, where more of it is there than in any step and is given back
                    before the first
    warmed_bytes    taken in one piece before the model is loaded, as far as the card has it, and given back to the
                    allocator at once
    process_groups  (what its members share, how many they are) of each that the rank talks in
    assumptions     (fact, value, reason): which rank this is, where they differ
    folded          the whole tape, where ``tape`` is that of fewer layers or passes (:func:`record` with ``folded``
                    alone)
    """

    tape: Tape
    parameters: int
    trainable_parameters: int
    framework: str = "torch"
    has_matmul: bool = True
    has_convolution: bool = False
    upper: Tape | Folded | None = None
    basis: str = "static"
    host_bytes: int = 0
    loading: Tape | None = None
    warmed_bytes: int = 0
    process_groups: tuple[tuple[str, int], ...] = ()
    assumptions: tuple[tuple[str, str, str], ...] = ()
    library: bool = False
    folded: Folded | None = None

    @property
    def whole(self) -> Tape | Folded:
        """The step of all layers."""
        return self.tape if self.folded is None else self.folded


def record(
    spec: TrainingSpec,
    symbolic: bool = False,
    folded: bool = False,
    templates: Templates | None = None,
) -> Recording:
    """The tape of one steady training step of this run. With ``symbolic``, sizes keep their formulas; with
    ``folded``, equal layers of a deep model may be written once; with ``templates``, runs that differ from earlier ones
    in sizes alone need not be recorded.

    Raises UnknownModel where the architecture, or a size it cannot do without, is unknown.
    """
    spec, module = spec.insisting(), _module(spec)
    if hasattr(module, "record"):  # not PyTorch: the model brings its own training step
        alike: Recording | None = None
        if folded and hasattr(module, "record_folded"):
            alike = module.record_folded(spec, symbolic)
        recording: Recording = alike or module.record(spec, symbolic)
        return recording
    return _step(module, spec, symbolic, folded, templates)._replace(library=hasattr(module, "LIBRARY"))


def with_upper(
    recording: Recording, spec: TrainingSpec, folded: bool = False, templates: Templates | None = None
) -> Recording:
    """A recording of this run with what a compiler's choices may come to. Raises UnknownModel like :func:`record`."""
    spec, module = spec.insisting(), _module(spec)
    if recording.upper is not None:
        return recording
    if hasattr(module, "upper"):
        return recording._replace(upper=module.upper(spec, folded))
    if spec.get("compile", False) and hasattr(module, "uncompiled"):
        return recording._replace(upper=_step(module, module.uncompiled(spec), False, folded, templates).whole)
    return recording


def _step(module: Any, spec: TrainingSpec, symbolic: bool, folded: bool, templates: Templates | None) -> Recording:
    from memlint.models.step import record_step

    def recorded(run: TrainingSpec) -> Recording:
        return record_step(module.build, run, symbolic)

    what = (module.__name__,)
    if folded and hasattr(module, "stack"):
        from memlint.models import depth

        made = depth.record(recorded, spec, module.stack(spec), None if symbolic else templates, what)
        if made is not None:
            return made
    if templates is None or symbolic:
        return recorded(spec)
    found: Recording = templates.record(what, recorded, spec)
    return found


def saved_bytes(spec: TrainingSpec, templates: Templates | None = None) -> int:
    """Bytes that autograd holds at the end of a micro-batch's forward. Raises UnknownModel like :func:`record`."""
    spec, module = spec.insisting(), _module(spec)
    if hasattr(module, "record"):
        held: int = module.saved_bytes(spec)
        return held
    from memlint.models.step import record_forward

    def recorded(one: TrainingSpec) -> int:
        def plainly(run: TrainingSpec) -> int:
            return record_forward(module.build, run)

        if templates is None:
            return plainly(one)
        found: int = templates.record((module.__name__, "forward"), plainly, one)
        return found

    if hasattr(module, "stack"):
        from memlint.models import depth

        held_by_few = depth.saved_bytes(recorded, spec, module.stack(spec))
        if held_by_few is not None:
            return held_by_few
    return recorded(spec)


def _module(spec: TrainingSpec) -> Any:
    if spec.architecture is None or spec.architecture not in ARCHITECTURES:
        raise UnknownModel(spec.unknown_reason or f"the model of family {spec.family!r} is not known")
    from memlint.architectures.sizes import check_facts

    check_facts(spec)
    return __import__("memlint.models." + ARCHITECTURES[spec.architecture], fromlist=["build"])
