"""What :mod:`memlint.tape.phases`, ``breakdown`` and ``allocator`` say of a tape, of one in pieces.

The figures are those of the whole tape, to the byte: sums over turns are products; and the allocator is replayed turn
by turn, where a turn that meets the free blocks that an earlier one met is not gone through again.

That is decided by what the earlier turn looked at (:class:`_Trace`): its blocks are named by where they come from (a
free block that a request was given or that a freed neighbour merged with, a block that was freed, a new segment). If
the same names can be given to blocks of the same sizes, in the same order of addresses, and no other free block would
have been preferred by any request, then the allocator makes the same choices, and only addresses differ.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from memlint.meta.fold import Folded, Piece
from memlint.named_tuple import NamedTuple
from memlint.tape.allocator import (
    AllocatorConf,
    AllocatorResult,
    round_size,
    segment_size,
    simulate,
)
from memlint.tape.breakdown import MODULE_DEPTH, part_name, rank
from memlint.tape.estimate import Component, Part
from memlint.tape.phases import ROUNDING_BYTES, SETUP, SMALL_BYTES

_UNIT_SHIFT = 9
_SMALL_UNITS = SMALL_BYTES >> _UNIT_SHIFT
# A free block is one int, (size << _SHIFT) + address.
_SHIFT = 32
_MASK = (1 << _SHIFT) - 1
LEAST_TURNS = 6  # of a loop, before turns that repeat are looked for
LEAST_EVENTS = 24  # of a turn, likewise
TRACES = 6  # of turns that are kept


# -- peaks and parts


class FoldedPeak(NamedTuple):
    """As :class:`memlint.tape.phases.Peak`; ``piece``, ``turn`` and ``place`` say which event reaches it."""

    peak_bytes: int
    piece: int
    turn: int
    place: int
    phase: str
    phases: dict[str, int]


def _rounded(size: int) -> int:
    if size >= 0:
        return (size + ROUNDING_BYTES - 1) & -ROUNDING_BYTES
    return -((ROUNDING_BYTES - 1 - size) & -ROUNDING_BYTES)


def find_peak(tape: Folded) -> FoldedPeak:
    """As :func:`memlint.tape.phases.find_peak`."""
    peak, where, phase, phases = _highest(tape.pieces)
    return FoldedPeak(peak, *where, phase, phases)


def _highest(pieces: list[Piece]) -> tuple[int, tuple[int, int, int], str, dict[str, int]]:
    phases: dict[str, int] = {}
    peak, where, phase = 0, (-1, 0, 0), SETUP
    live = 0
    for number, piece in enumerate(pieces):
        name = piece.phase or SETUP
        if not piece.events and piece.phase is None:
            continue
        if piece.begins:
            phases[name] = max(phases.get(name, 0), live)
            if live > peak:
                peak, where, phase = live, (number, 0, -1), name
        highest, at, now = 0, -1, 0
        for place, delta in enumerate(map(_rounded, piece.deltas)):
            now += delta
            if now > highest:
                highest, at = now, place
        if at >= 0:
            turn = piece.times - 1 if now > 0 else 0
            top = live + turn * now + highest
            phases[name] = max(phases[name], top)
            if top > peak:
                peak, where, phase = top, (number, turn, at), name
        live += now * piece.times
    return peak, where, phase, phases


def first_pass_bytes(tape: Folded) -> int:
    """As :func:`memlint.tape.phases.first_pass_bytes`."""
    begins = [number for number, piece in enumerate(tape.pieces) if piece.begins and piece.phase == "forward"]
    return _highest(tape.pieces[: begins[1]])[0] if len(begins) > 1 else 0


def packed_bytes(tape: Folded) -> int:
    """As :func:`memlint.tape.phases.packed_bytes`."""
    live: dict[int, int] = {}
    peaks: dict[int, int] = {}
    streams: dict[int, int] = {}
    for piece in tape.pieces:
        for place, stream in piece.streams.items():
            for turn in range(piece.times):
                streams[piece.first + turn * len(piece.sizes) + place] = stream
    for piece in tape.pieces:
        change: dict[int, int] = {}
        highest: dict[int, int] = {}
        for event, delta in zip(piece.events, map(_rounded, piece.deltas)):
            small = abs(delta) <= SMALL_BYTES
            pool = 2 * (streams.get(event if event >= 0 else ~event, 0) if streams else 0) + (not small)
            now = change[pool] = change.get(pool, 0) + delta
            if now > highest.get(pool, 0):
                highest[pool] = now
        for pool, now in change.items():
            before = live.get(pool, 0)
            top = before + highest.get(pool, 0) + max(now, 0) * (piece.times - 1)
            peaks[pool] = max(peaks.get(pool, 0), top)
            live[pool] = before + now * piece.times
    return sum(peaks.values())


def break_down(tape: Folded, peak: FoldedPeak, depth: int = MODULE_DEPTH) -> tuple[Component, ...]:
    """Components of what is live at the peak, as :func:`memlint.tape.breakdown.break_down` has them."""
    names: dict[str, str] = {}
    found: dict[str, dict[str, list[int]]] = {}
    for number, piece in enumerate(tape.pieces[: peak.piece + 1]):
        times = piece.times
        for place, (event, label, delta) in enumerate(zip(piece.events, piece.labels, piece.deltas)):
            if number == peak.piece:
                times = peak.turn + (place <= peak.place)
            module = label.module
            name = names.get(module)
            if name is None:
                name = names[module] = part_name(module, depth)
            parts = found.setdefault(label.component, {})
            known = parts.get(name)
            if known is None:
                known = parts[name] = [0, 0]
            known[0] += times if event >= 0 else -times
            known[1] += times * _rounded(delta)
    components = []
    for component in sorted(found, key=rank):
        live = [
            Part(name, held[1], title=tape.titles.get(name, "")) for name, held in found[component].items() if held[0]
        ]
        live.sort(key=lambda part: (-part.size_bytes, part.name))
        total = sum(part.size_bytes for part in live)
        if total:
            components.append(Component(component, total, tuple(live)))
    return tuple(components)


# -- the allocator


def simulate_folded(tape: Folded, conf: AllocatorConf) -> AllocatorResult:
    """:func:`memlint.tape.allocator.simulate` without a limit."""
    if conf.max_split_bytes is None and not conf.expandable_segments:
        found = _Replay(conf).run(tape)
        if found is not None:
            return found
    return simulate(tape.unfold(), conf)


class _Pool:
    """Free blocks of one stream, small or large ones: sorted, and by either end."""

    __slots__ = ("ending", "inside", "keys", "small", "starting")

    def __init__(self, small: bool) -> None:
        self.small = small
        self.keys: list[int] = []
        self.starting: dict[int, int] = {}
        self.ending: dict[int, int] = {}
        # Of blocks that became free in the turn that is being watched: address -> what they are part of.
        self.inside: dict[int, int] = {}

    def remove(self, key: int) -> None:
        keys = self.keys
        del keys[bisect_left(keys, key)]
        address = key & _MASK
        del self.starting[address]
        del self.ending[address + (key >> _SHIFT)]

    def put(self, address: int, size: int) -> None:
        key = (size << _SHIFT) + address
        insort(self.keys, key)
        self.starting[address] = self.ending[address + size] = key


# Whether it allocates, which storage (a place among the turn's; ~n: the n-th from outside), pool, units.
_Event = tuple[bool, int, int, int]
PICKED, FREED, MERGED, NEW = range(4)
_Part = tuple[int, int, int, int]  # address, units, what kind, pool
_Watched = tuple[int, int, int, int, int]
_Left = tuple[int, int, int, int]


class _Trace:
    """What a turn did to the allocator, by the names of blocks ("parts": what a place is in, and how far from its
    beginning).

    freed     (which of those from outside, pool, units, part, part above, part below, freed part above) of blocks from
              before
    taken     (part, pool, request, units) of free blocks that requests were given; a request is the least key that fits
    grown     (part, units) of new segments
    watched   (pool, request, units of the choice, its part, its offset): no other block may lie between
    nothing   (pool, request) that no free block is large enough for
    order     parts by address
    left      (pool, part, offset, units) of free blocks afterwards; ``gone``: parts that were free, and are no more
    alive     (place, pool, part, offset, units) of the turn's storages
    """

    __slots__ = (
        "alive", "allocated", "freed", "given", "gone", "grown", "highest", "highest_reserved", "left", "nothing",
        "order", "reserved", "seen", "sizes", "taken", "watched",
    )  # fmt: skip

    alive: list[tuple[int, int, int, int, int]]
    allocated: int
    freed: list[tuple[int, int, int, int, int, int, int]]
    given: int
    gone: list[tuple[int, int, int]]
    grown: list[tuple[int, int]]
    highest: int
    highest_reserved: int
    left: list[tuple[int, int, int, int]]
    nothing: list[tuple[int, int]]
    order: list[list[int]]
    reserved: int
    # What the rest is made of when it is first asked for: parts; requests that blocks of the turn's own served, and
    # that none did; free blocks afterwards; the turn's storages. None once it is made.
    seen: tuple[list[_Part], list[_Watched], list[tuple[int, int]], list[_Left], dict[int, _Left]] | None
    sizes: list[int]
    taken: list[tuple[int, int, int, int]]
    watched: list[_Watched]

    def finish(self) -> None:
        assert self.seen is not None
        parts, watched, nothing, free, own = self.seen
        self.seen = None
        begins = [address for address, _, _, _ in parts]
        self.watched = _widest(
            [
                (number, request, units, holder, address - begins[holder])
                for number, request, units, holder, address in watched
            ],
            begins,
        )
        self.nothing = list(dict(sorted(nothing, reverse=True)).items())  # the least request of each pool
        by_pool: dict[int, list[int]] = {}
        for holder in sorted(range(len(parts)), key=begins.__getitem__):
            _, _, kind, number = parts[holder]
            if kind != NEW:
                by_pool.setdefault(number, []).append(holder)
        self.order = [members for members in by_pool.values() if len(members) > 1]
        self.left, same = [], set()
        for number, address, holder, units in free:
            begin, whole, kind, _ = parts[holder]
            if begin == address and units == whole and kind in (PICKED, MERGED):
                same.add(holder)
            else:
                self.left.append((number, holder, address - begin, units))
        self.gone = [
            (holder, number, units)
            for holder, (_, units, kind, number) in enumerate(parts)
            if kind in (PICKED, MERGED) and holder not in same
        ]
        self.alive = [
            (place, number, holder, address - begins[holder], units)
            for place, (number, address, units, holder) in own.items()
        ]


class _Replay:
    def __init__(self, conf: AllocatorConf) -> None:
        self.conf = conf
        self.pools: list[_Pool] = []
        self.pool_numbers: dict[tuple[int, bool], int] = {}
        self.live: dict[int, tuple[int, int, int]] = {}  # storage -> pool, address, units
        self.next_address = 1
        self.segments: list[int] = []
        self.reserved = self.allocated = self.peak = self.reserved_at_peak = 0
        self.skipped = 0
        self.known: dict[tuple[_Event, ...], list[_Trace]] = {}

    def run(self, tape: Folded) -> AllocatorResult | None:
        for piece in tape.pieces:
            self.piece(piece)
            if self.next_address > _MASK:
                return None
        return AllocatorResult(
            self.peak << _UNIT_SHIFT,
            self.reserved << _UNIT_SHIFT,
            self.reserved_at_peak << _UNIT_SHIFT,
            tuple([units << _UNIT_SHIFT for units in self.segments]),
            None,
            self.allocated << _UNIT_SHIFT,
        )

    def pool_of(self, stream: int, units: int) -> int:
        key = stream, units <= _SMALL_UNITS
        number = self.pool_numbers.get(key)
        if number is None:
            number = self.pool_numbers[key] = len(self.pools)
            self.pools.append(_Pool(key[1]))
        return number

    def piece(self, piece: Piece) -> None:
        divisions = self.conf.roundup_power2_divisions
        units = {size: round_size(size, divisions) >> _UNIT_SHIFT for size in set(piece.sizes)}
        first, count = piece.first, len(piece.sizes)
        events: list[_Event] = []
        outer: list[tuple[int, int]] = []  # (event, step) of what a turn frees, and did not allocate
        for event, step in zip(piece.events, piece.steps):
            place = event - first
            if event >= 0:
                size = units[piece.sizes[place]]
                if size:
                    events.append((True, place, self.pool_of(piece.streams.get(place, 0), size), size))
                continue
            place = ~event - first
            if not 0 <= place < count or (step != -count and piece.times > 1):
                events.append((False, ~len(outer), 0, 0))
                outer.append((event, step))
            elif units[piece.sizes[place]]:
                events.append((False, place, 0, 0))
        watches = piece.times >= LEAST_TURNS
        # Loops over the same layers have the same turns.
        traces = self.known.setdefault(tuple(events), []) if watches else []
        if not watches or len(events) < LEAST_EVENTS:
            turns = range(piece.times)
            numbered = [
                (a, event + turn * count if event >= 0 else event - turn * len(outer), pool, size)
                for turn in turns
                for a, event, pool, size in events
            ]
            self.go(numbered, [~(event + turn * step) for turn in turns for event, step in outer], first)
            return
        following: dict[int, _Trace] = {}
        last = 0
        for turn in range(piece.times):
            base = first + turn * count
            given = [~(event + turn * step) for event, step in outer]
            found = following.get(last)
            if found is None or not self.repeat(found, given, base):
                for trace in traces:
                    if trace is not found and self.repeat(trace, given, base):
                        found = trace
                        break
                else:
                    found = self.watch(events, given, base)
                    traces.insert(0, found)
                    del traces[TRACES:]
                    following[last] = found
                    last = id(found)
                    continue
            self.skipped += 1
            following[last] = found
            last = id(found)

    def go(self, events: list[_Event], outer: list[int], base: int) -> None:
        """Go through a turn."""
        tables = [(pool.keys, pool.starting, pool.ending, pool.small) for pool in self.pools]
        live, allocated, peak = self.live, self.allocated, self.peak
        for allocates, event, number, size in events:
            if allocates:
                keys, starting, ending, small = tables[number]
                slot = bisect_left(keys, size << _SHIFT)
                if slot < len(keys):
                    key = keys.pop(slot)
                    address, block = key & _MASK, key >> _SHIFT
                    del starting[address]
                    end = address + block
                    if block == size:
                        del ending[end]
                else:
                    block = segment_size(size << _UNIT_SHIFT, self.conf) >> _UNIT_SHIFT
                    address = self.next_address
                    end = address + block
                    self.next_address = end + 1
                    self.reserved += block
                    self.segments.append(block)
                rest = block - size
                if rest:
                    if small or rest > _SMALL_UNITS:
                        address_of_rest = address + size
                        key = (rest << _SHIFT) + address_of_rest
                        insort(keys, key)
                        starting[address_of_rest] = ending[end] = key
                        block = size
                    else:
                        ending.pop(end, 0)
                live[base + event] = number, address, block
                allocated += block
                if allocated > peak:
                    peak = self.peak = allocated
                    self.reserved_at_peak = self.reserved
                continue
            held = live.pop(base + event if event >= 0 else outer[~event], None)
            if held is None:
                continue
            number, address, size = held
            allocated -= size
            keys, starting, ending, small = tables[number]
            end = address + size
            key = starting.pop(end, 0)
            if key:
                del keys[bisect_left(keys, key)]
                end += key >> _SHIFT
            key = ending.pop(address, 0)
            if key:
                address = key & _MASK
                del keys[bisect_left(keys, key)]
            key = ((end - address) << _SHIFT) + address
            insort(keys, key)
            starting[address] = ending[end] = key
        self.allocated = allocated

    # -- once

    def watch(self, events: list[_Event], given: list[int], base: int) -> _Trace:
        """Go through a turn, and see what it looks at."""
        pools, live = self.pools, self.live
        parts: list[_Part] = []
        touched: dict[int, int] = {}  # address of a free block from before -> its part

        # Neighbours of what will be freed, before anything happens.
        outer: list[tuple[int, int, int, int, int, int]] = []
        starts: dict[int, int] = {}
        numbers: dict[int, int] = {}
        for ordinal, storage in enumerate(given):
            held = live.get(storage)
            if held is None:
                continue
            number, address, units = held
            holder = numbers[storage] = starts[address] = len(parts)
            parts.append((address, units, FREED, number))
            over = pools[number].starting.get(address + units, 0)
            under = pools[number].ending.get(address, 0)
            outer.append((ordinal, number, units, holder, over, under))
        beside = [starts.get(address + units, -1) for address, units, _, _ in parts]

        own: dict[int, tuple[int, int, int, int]] = {}
        taken, grown, watched, nothing = [], [], [], []
        before, before_reserved = self.allocated, self.reserved
        allocated, highest, highest_reserved = before, before, 0
        tables = [(pool.keys, pool.starting, pool.ending, pool.inside, pool.small) for pool in pools]
        for allocates, event, number, size in events:
            if allocates:
                keys, starting, ending, inside, small = tables[number]
                request = size << _SHIFT
                slot = bisect_left(keys, request)
                if slot < len(keys):
                    key = keys.pop(slot)
                    address, block = key & _MASK, key >> _SHIFT
                    del starting[address]
                    end = address + block
                    del ending[end]
                    holder = inside.pop(address, -1)
                    if holder < 0:
                        holder = touched[address] = len(parts)
                        parts.append((address, block, PICKED, number))
                        taken.append((holder, number, request, block))
                    else:
                        watched.append((number, request, block, holder, address))
                else:
                    block = segment_size(size << _UNIT_SHIFT, self.conf) >> _UNIT_SHIFT
                    address = self.next_address
                    end = address + block
                    self.next_address = end + 1
                    self.reserved += block
                    self.segments.append(block)
                    holder = len(parts)
                    parts.append((address, block, NEW, number))
                    grown.append((holder, block))
                    nothing.append((number, request))
                rest = block - size
                if rest and (small or rest > _SMALL_UNITS):
                    begin = address + size
                    key = (rest << _SHIFT) + begin
                    insort(keys, key)
                    starting[begin] = ending[end] = key
                    inside[begin] = holder
                    block = size
                own[event] = number, address, block, holder
                allocated += block
                if allocated > highest:
                    highest, highest_reserved = allocated, self.reserved - before_reserved
                continue
            if event >= 0:
                number, address, size, holder = own.pop(event)
            else:
                storage = given[~event]
                if storage not in numbers:
                    continue
                holder = numbers[storage]
                number, address, size = live.pop(storage)
            allocated -= size
            keys, starting, ending, inside, small = tables[number]
            end = address + size
            key = starting.pop(end, 0)
            if key:
                if inside.pop(end, -1) < 0:
                    touched[end] = len(parts)
                    parts.append((end, key >> _SHIFT, MERGED, number))
                del keys[bisect_left(keys, key)]
                end += key >> _SHIFT
            key = ending.pop(address, 0)
            if key:
                address = key & _MASK
                holder = inside.pop(address, -1)
                if holder < 0:
                    holder = touched[address] = len(parts)
                    parts.append((address, key >> _SHIFT, MERGED, number))
                del keys[bisect_left(keys, key)]
            key = ((end - address) << _SHIFT) + address
            insort(keys, key)
            starting[address] = ending[end] = key
            inside[address] = holder
        if highest > self.peak:
            self.peak, self.reserved_at_peak = highest, before_reserved + highest_reserved
        self.allocated = allocated
        for place, (number, address, units, _) in own.items():
            live[base + place] = number, address, units

        trace = _Trace()
        trace.sizes = [units for _, units, _, _ in parts]
        trace.given = len(given)
        trace.freed = [
            (
                ordinal,
                number,
                units,
                holder,
                touched[over & _MASK] if over else -1,
                touched[under & _MASK] if under else -1,
                next_to,
            )
            for (ordinal, number, units, holder, over, under), next_to in zip(outer, beside)
        ]
        trace.taken, trace.grown = taken, grown
        left = [
            (number, address, holder, pool.starting[address] >> _SHIFT)
            for number, pool in enumerate(pools)
            for address, holder in pool.inside.items()
        ]
        for pool in pools:
            pool.inside.clear()
        trace.seen = parts, watched, nothing, left, own
        trace.allocated = allocated - before
        trace.highest, trace.highest_reserved = highest - before, highest_reserved
        trace.reserved = self.reserved - before_reserved
        return trace

    # -- again

    def repeat(self, trace: _Trace, given: list[int], base: int) -> bool:
        """Do what ``trace`` says, where the allocator would."""
        pools, live = self.pools, self.live
        sizes = trace.sizes
        parts = [-1] * len(sizes)
        used: set[int] = set()  # addresses of free blocks that the turn touches
        starts: dict[int, int] = {}
        if len(given) != trace.given or len(trace.freed) != sum([storage in live for storage in given]):
            return False
        for ordinal, number, units, holder, _, _, _ in trace.freed:
            held = live.get(given[ordinal])
            if held is None or held[0] != number or held[2] != units:
                return False
            parts[holder] = held[1]
            starts[held[1]] = holder
        for _, number, units, holder, over, under, beside in trace.freed:
            pool = pools[number]
            address = parts[holder]
            end = address + units
            if starts.get(end, -1) != beside:
                return False
            key = pool.starting.get(end, 0)
            if key:
                if over < 0 or key >> _SHIFT != sizes[over] or parts[over] not in (-1, end):
                    return False
                parts[over] = end
                used.add(end)
            elif over >= 0:
                return False
            key = pool.ending.get(address, 0)
            if key:
                at = key & _MASK
                if under < 0 or key >> _SHIFT != sizes[under] or parts[under] not in (-1, at):
                    return False
                parts[under] = at
                used.add(at)
            elif under >= 0:
                return False
        for holder, number, request, units in trace.taken:
            keys = pools[number].keys
            slot = bisect_left(keys, request)
            if parts[holder] < 0:
                while slot < len(keys) and keys[slot] & _MASK in used:
                    slot += 1
                if slot == len(keys) or keys[slot] >> _SHIFT != units:
                    return False
                parts[holder] = keys[slot] & _MASK
                used.add(parts[holder])
            else:  # the neighbour of a block that is freed later
                key = (units << _SHIFT) + parts[holder]
                while keys[slot] != key:
                    if keys[slot] & _MASK not in used:
                        return False
                    slot += 1
                    if slot == len(keys):
                        return False
        if trace.seen is not None:
            trace.finish()
        for members in trace.order:
            last = -1
            for holder in members:
                address = parts[holder]
                if address <= last:
                    return False
                last = address
        address = self.next_address
        for holder, units in trace.grown:
            parts[holder] = address
            address += units + 1
        for number, request, units, holder, offset in trace.watched:
            keys = pools[number].keys
            slot = bisect_left(keys, request)
            key = (units << _SHIFT) + parts[holder] + offset
            while slot < len(keys) and keys[slot] < key:
                if keys[slot] & _MASK not in used:
                    return False
                slot += 1
        for number, request in trace.nothing:
            keys = pools[number].keys
            for key in keys[bisect_left(keys, request) :]:
                if key & _MASK not in used:
                    return False
        # From here on it is so.
        for ordinal, *_ in trace.freed:
            del live[given[ordinal]]
        for holder, number, units in trace.gone:
            pools[number].remove((units << _SHIFT) + parts[holder])
        for number, holder, offset, units in trace.left:
            pools[number].put(parts[holder] + offset, units)
        for place, number, holder, offset, units in trace.alive:
            live[base + place] = number, parts[holder] + offset, units
        if self.allocated + trace.highest > self.peak:
            self.peak = self.allocated + trace.highest
            self.reserved_at_peak = self.reserved + trace.highest_reserved
        self.allocated += trace.allocated
        self.reserved += trace.reserved
        self.next_address = address
        self.segments += [units for _, units in trace.grown]
        return True


def _widest(watched: list[tuple[int, int, int, int, int]], parts: list[int]) -> list[tuple[int, int, int, int, int]]:
    """Those that no other one stands for: a request that is as small, and was given a larger block."""
    found: list[tuple[int, int, int, int, int]] = []
    ordered = sorted(set(watched), key=lambda entry: (entry[0], entry[1], -entry[2], -parts[entry[3]] - entry[4]))
    pool, widest = -1, -1
    for entry in ordered:
        if entry[0] != pool:
            pool, widest = entry[0], -1
        if entry[2] > widest or (entry[2] == widest and entry not in found):
            found.append(entry)
            widest = max(widest, entry[2])
    return found
