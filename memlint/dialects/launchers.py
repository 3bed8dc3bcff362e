"""Launchers -> how many processes a command starts, one per device."""

from __future__ import annotations

from memlint.dialects.fsdm_jax import DEVICES, visible
from memlint.documents.node import Command, Node, Unresolved
from memlint.facts.spec import WRITTEN, Fact, Missing
from memlint.named_tuple import NamedTuple

TORCHRUN = ("torchrun", "torchrun_xpu", "torch_distributed_launch", "ft_launcher", "colossalai")
ACCELERATE = ("accelerate launch", "accelerate-launch", "accelerate")


class Processes(NamedTuple):
    """What the launchers of a command say.

    total        processes of all machines together, with the option that says so; None where it is not known
    distributed  whether the processes find each other: a launcher that starts one process per device is there
    """

    total: Fact | None = None
    distributed: bool = False
    missing: tuple[Missing, ...] = ()


def launcher(command: Command | None, *names: str) -> Node | None:
    """The options of the innermost launcher of these names."""
    if command is not None:
        for one in reversed(command.launchers):
            if one.name in names:
                return one.options
    return None


def option(options: Node, *names: str) -> Node | None:
    """An option of a launcher, in either spelling of its name; of several uses, the last."""
    if not isinstance(options.value, dict):
        return None
    for name in names:
        for spelling in (name, name.replace("_", "-")):
            node = options.value.get(spelling)
            if node is not None:
                return node.value[-1] if isinstance(node.value, list) else node
    return None


def processes(command: Command | None) -> Processes:
    """The processes that torchrun, deepspeed, srun or mpirun start. What accelerate starts is in its own config."""
    options = launcher(command, *TORCHRUN)
    if options is not None:
        return _product(options, ("nproc_per_node", "nproc"), ("nnodes",))
    options = launcher(command, "composer")
    if options is not None:
        return _composer(options, command)
    options = launcher(command, "deepspeed")
    if options is not None:
        return _deepspeed(options, command)
    options = launcher(command, "lightning", "fabric")
    if options is not None and option(options, "devices") is not None:
        return _product(options, ("devices",), ("num_nodes",))
    options = launcher(command, "srun")
    if options is not None and launcher(command, *ACCELERATE) is None:
        tasks = option(options, "ntasks", "n")
        if tasks is not None:
            return _product(options, ("ntasks", "n"), ())
        if option(options, "ntasks_per_node") is not None:
            return _product(options, ("ntasks_per_node",), ("nodes", "N"))
        assert command is not None
        if option(options, "nodes", "N") is None and "SLURM_NTASKS" in command.environment:
            return counted(command, "SLURM_NTASKS", "")
    options = launcher(command, "mpirun", "mpiexec")
    if options is not None and option(options, "np", "n") is not None:
        return _product(options, ("np", "n"), ())
    return Processes()


def per_machine(command: Command | None) -> Fact | None:
    """The processes that torchrun starts on each machine; None where that is not known."""
    options = launcher(command, *TORCHRUN)
    node = None if options is None else option(options, "nproc_per_node", "nproc")
    number = None if node is None else _integer(node)
    return None if node is None or not number else Fact("device_count", number, WRITTEN, "--" + node.key_path, node)


def seen(command: Command | None) -> Fact | None:
    """The number of devices that CUDA_VISIBLE_DEVICES leaves to a command; None where it says nothing."""
    node = command.environment.get(DEVICES) if command is not None else None
    count = visible(node) if node is not None else None
    return Fact("device_count", count, WRITTEN, DEVICES, node) if count else None


def counted(command: Command | None, per_machine: str, machines: str) -> Processes:
    """The processes of a program that starts one per device itself, by two variables of its environment; all devices
    of a machine that are visible, where the first of them is not there."""
    environment = command.environment if command is not None else {}
    first, several = environment.get(per_machine), environment.get(machines)
    found = seen(command) if first is None else None
    total, place, missing = 1 if found is None else int(found.value), first, []
    for node, name in ((first, per_machine), (several, machines)):
        number = 1 if node is None else _integer(node)
        if number is None:
            assert node is not None
            reason = node.value.reason if isinstance(node.value, Unresolved) else f"{node.value} is not a number"
            missing.append(Missing(name, node.key_span or node.span, reason))
        else:
            total *= number
    if missing:
        return Processes(None, True, tuple(missing))
    if place is not None:
        return Processes(Fact("device_count", total, WRITTEN, per_machine, place), total > 1)
    if found is not None:
        return Processes(found._replace(value=total), total > 1)
    return Processes(None, several is not None)


def _product(options: Node, per_machine: tuple[str, ...], machines: tuple[str, ...]) -> Processes:
    """Processes per machine times machines; either is 1 where it is not written."""
    total, first, missing = 1, None, []
    for names in (per_machine, machines):
        node = option(options, *names) if names else None
        if node is None:
            continue
        first = first or node
        number = _integer(node)
        if number is None:
            missing.append(_gap(node, names[0]))
        else:
            total *= number
    if missing:
        return Processes(None, True, tuple(missing))
    if first is None:
        return Processes(Fact("device_count", 1, "default", reason="one process, as no option says otherwise"), True)
    return Processes(Fact("device_count", total, WRITTEN, "--" + first.key_path, first), True)


def _composer(options: Node, command: Command | None) -> Processes:
    """``--world_size``, or the processes of this machine; else one for each device that there is."""
    for names in (("world_size",), ("nproc", "n")):
        if option(options, *names) is not None:
            return _product(options, names, ())
    return Processes(seen(command), True)


def _deepspeed(options: Node, command: Command | None) -> Processes:
    """``--num_gpus`` times ``--num_nodes``, or the devices that ``--include`` lists; else all that there are."""
    include = option(options, "include", "i")
    if include is not None and isinstance(include.value, str) and ":" in include.value:
        slots = [slot for part in include.value.split("@") for slot in part.partition(":")[2].split(",")]
        if all(map(str.isdigit, slots)):
            return Processes(Fact("device_count", len(slots), WRITTEN, "--include", include), True)
        # A host without a list gives all of its devices; any other word ends the launcher (parse_resource_filter).
        why = f"{include.value} does not number all devices"
        return Processes(None, True, (Missing("--include", include.span, why),))
    if option(options, "num_gpus") is not None:
        return _product(options, ("num_gpus",), ("num_nodes",))
    return Processes(seen(command), True)


def _integer(node: Node) -> int | None:
    value = node.value
    if isinstance(value, bool):
        return None
    try:
        number = int(str(value))
    except ValueError:
        return None
    return number if number > 0 else None


def _gap(node: Node, name: str) -> Missing:
    value = node.value
    if isinstance(value, Unresolved):
        return Missing("--" + (node.key_path or name), node.key_span or node.span, value.reason)
    return Missing("--" + (node.key_path or name), node.span, f"{value} is no number of processes")
