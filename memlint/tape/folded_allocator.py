"""The allocator, replayed on a tape in pieces: :func:`memlint.tape.allocator.simulate`, turn by turn.

A turn that meets the free blocks that an earlier one met is not gone through again. That is decided by what the
earlier turn looked at (:class:`_Trace`): its blocks are named by where they come from (a free block that a request was
given or that a freed neighbour merged with, a block that was freed, a new segment). If the same names can be given to
blocks of the same sizes, in the same order of addresses, and no other free block would have been preferred by any
request, then the allocator makes the same choices, and only addresses differ.

Pools of small blocks hand out what they are asked for and never meet the large ones, so they are gone through apart:
few events a turn, which no two turns answer alike, as what layers keep fills their segments bit by bit.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left, insort

from memlint import work
from memlint.meta.fold import Folded, Piece
from memlint.tape.allocator import AllocatorConf, AllocatorResult, round_size, segment_size, simulate
from memlint.tape.phases import SMALL_BYTES

_UNIT_SHIFT = 9
_SMALL_UNITS = SMALL_BYTES >> _UNIT_SHIFT
# A free block is one int, (size << _SHIFT) + address.
_SHIFT = 32
_MASK = (1 << _SHIFT) - 1
_SPLIT = (_SMALL_UNITS + 1) << _SHIFT  # the least rest that is split off a large block
LEAST_TURNS = 6  # of a loop, before turns that repeat are looked for
LEAST_EVENTS = 24  # of a turn, likewise
TRACES = 6  # of turns that are tried


def simulate_folded(tape: Folded, conf: AllocatorConf) -> AllocatorResult:
    """:func:`memlint.tape.allocator.simulate` without a limit."""
    if conf.max_split_bytes is None and not conf.expandable_segments:
        with contextlib.suppress(_OutOfAddresses):
            return _Replay(conf).run(tape)
    return simulate(tape.unfold(), conf)


class _OutOfAddresses(Exception):
    """More is asked for than an address here tells apart (2 TiB)."""


class _Pool:
    """Free blocks of one stream, small or large ones: sorted, and by either end."""

    __slots__ = ("ending", "inside", "keys", "starting")

    def __init__(self) -> None:
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

    def take_back(self, address: int, size: int) -> None:
        """A block that is freed is one with its free neighbours."""
        end = address + size
        above, below = self.starting.pop(end, 0), self.ending.pop(address, 0)
        if above:
            del self.keys[bisect_left(self.keys, above)]
            end += above >> _SHIFT
        if below:
            del self.keys[bisect_left(self.keys, below)]
            address = below & _MASK
        self.put(address, end - address)


# Of large blocks: ALLOCATES, which storage (a place among the turn's), pool, units, and which event of the piece it is;
# FREES, which storage (~n: the n-th from outside). Of small ones in between: COUNTS, by how many units they change what
# is allocated, by how many at most, and where that is.
ALLOCATES, FREES, COUNTS = 1, 0, -1
_Event = tuple[int, int, int, int, int]
# Which event of the piece, which storage, pool, units (0: it is freed).
_Small = tuple[int, int, int, int]
_Held = tuple[int, int, int]  # pool, address, units
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
    highest   units that are allocated at most, more than before; ``highest_at``: at which event of the piece
    """

    __slots__ = (
        "alive", "allocated", "freed", "given", "gone", "grown", "highest", "highest_at", "highest_reserved", "left",
        "nothing", "order", "reserved", "seen", "sizes", "taken", "watched",
    )  # fmt: skip

    alive: list[tuple[int, int, int, int, int]]
    allocated: int
    freed: list[tuple[int, int, int, int, int, int, int]]
    given: int
    gone: list[tuple[int, int, int]]
    grown: list[tuple[int, int]]
    highest: int
    highest_at: int
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


class _Turns:
    """What is known of turns with the same events: traces, the last ones first, and the one of each turn of the last
    loop: those over the same layers, of one micro-batch after the other, have the same turns."""

    __slots__ = ("traces", "usual")

    def __init__(self) -> None:
        self.traces: list[_Trace] = []
        self.usual: list[_Trace] = []


class _Replay:
    def __init__(self, conf: AllocatorConf) -> None:
        self.conf = conf
        self.pools: list[_Pool] = []
        self.pool_numbers: dict[int, int] = {}  # stream -> which of them
        self.live: dict[int, _Held] = {}
        self.next_address = 1
        self.small_pools: list[_Pool] = []
        self.small_numbers: dict[int, int] = {}
        self.small_live: dict[int, _Held] = {}
        self.next_small = 1
        self.segments: list[int] = []
        self.reserved = self.allocated = self.peak = self.reserved_at_peak = 0
        # Of the turn: what was reserved before it, and (event, units) of what its small blocks were short of.
        self.before = 0
        self.short: list[tuple[int, int]] = []
        self.skipped = 0
        self.known: dict[tuple[_Event, ...], _Turns] = {}

    def run(self, tape: Folded) -> AllocatorResult:
        for piece in tape.pieces:
            self.piece(piece)
        return AllocatorResult(
            self.peak << _UNIT_SHIFT,
            self.reserved << _UNIT_SHIFT,
            self.reserved_at_peak << _UNIT_SHIFT,
            tuple([units << _UNIT_SHIFT for units in self.segments]),
            None,
            self.allocated << _UNIT_SHIFT,
        )

    def piece(self, piece: Piece) -> None:
        divisions = self.conf.roundup_power2_divisions
        units = {size: round_size(size, divisions) >> _UNIT_SHIFT for size in set(piece.sizes)}
        first, count, times = piece.first, len(piece.sizes), piece.times
        events: list[_Event] = []
        smalls: list[_Small] = []
        # (event, step) of what a turn frees, and did not allocate
        outer: list[tuple[int, int]] = []
        small_outer: list[tuple[int, int]] = []
        for position, (event, step, delta) in enumerate(zip(piece.events, piece.steps, piece.deltas)):
            size = units.get(abs(delta), -1)
            if size < 0:
                size = units[abs(delta)] = round_size(abs(delta), divisions) >> _UNIT_SHIFT
            if not size:
                continue
            small = size <= _SMALL_UNITS
            if event >= 0:
                place = event - first
                stream = piece.streams.get(place, 0)
                if small:
                    smalls.append((position, place, _number(self.small_pools, self.small_numbers, stream), size))
                else:
                    number = _number(self.pools, self.pool_numbers, stream)
                    events.append((ALLOCATES, place, number, size, position))
            else:
                place = ~event - first
                if not 0 <= place < count or (step != -count and times > 1):
                    others = small_outer if small else outer
                    place = ~len(others)
                    others.append((event, step))
                if small:
                    smalls.append((position, place, 0, 0))
                    size = -size
                else:
                    events.append((FREES, place, 0, 0, 0))
            if small:
                net = high = at = 0
                if events and events[-1][0] == COUNTS:
                    _, net, high, at, _ = events.pop()
                net += size
                if net > high:
                    high, at = net, position
                events.append((COUNTS, net, high, at, 0))
        turns = None
        if times >= LEAST_TURNS and len(events) >= LEAST_EVENTS:
            turns = self.known.setdefault(tuple(events), _Turns())
        # Whether small blocks are to be gone through, and whether none outlives a turn.
        busy = bool(smalls)
        passing = not small_outer and sum([1 if size else -1 for _, _, _, size in smalls]) == 0
        following: dict[int, _Trace] = {}
        usual: list[_Trace] = []
        last = 0
        # Most turns are one of those that were watched, again: they cost a fraction of it.
        price = len(smalls) + len(events) // (1 if turns is None else 4)
        for turn in range(times):
            work.spend(price * work.SERVED, "simulating the allocator")
            base = first + turn * count
            self.before = self.reserved
            self.short.clear()
            if busy:
                free = [pool.keys[:] for pool in self.small_pools] if passing else []
                self.go_small(smalls, [~(event + turn * step) for event, step in small_outer], base)
                # Turns that leave everything as they found it: so will the others.
                busy = not passing or free != [pool.keys for pool in self.small_pools]
            given = [~(event + turn * step) for event, step in outer]
            if turns is None:
                self.go(events, given, base)
                continue
            likely = turns.usual[turn : turn + 1]
            if last in following:
                likely.append(following[last])
            for found in (*likely, *turns.traces[:TRACES]):
                if self.repeat(found, given, base):
                    self.skipped += 1
                    break
            else:
                work.spend(len(events) * work.SERVED, "simulating the allocator")
                found = self.watch(events, given, base)
                turns.traces.insert(0, found)
            usual.append(found)
            following[last] = found
            last = id(found)
        if turns is not None:
            turns.usual = usual

    def go_small(self, events: list[_Small], given: list[int], base: int) -> None:
        """Go through what a turn does to small blocks."""
        tables = [(pool.keys, pool.starting, pool.ending) for pool in self.small_pools]
        live = self.small_live
        for position, place, number, size in events:
            if size:
                keys, starting, ending = tables[number]
                slot = bisect_left(keys, size << _SHIFT)
                if slot < len(keys):
                    key = keys.pop(slot)
                    address = key & _MASK
                    del starting[address]
                else:
                    block = self.segment(size)
                    self.short.append((position, block))
                    address = self.next_small
                    self.next_small += block + 1
                    key = (block << _SHIFT) + address
                end = address + (key >> _SHIFT)
                live[base + place] = number, address, size
                address += size
                if address < end:
                    key = ((end - address) << _SHIFT) + address
                    insort(keys, key)
                    starting[address] = ending[end] = key
                else:
                    ending.pop(end, 0)
            else:
                number, address, size = live.pop(base + place if place >= 0 else given[~place])
                self.small_pools[number].take_back(address, size)

    def segment(self, size: int) -> int:
        """Units of a new segment for so many. Raises _OutOfAddresses."""
        block = segment_size(size << _UNIT_SHIFT, self.conf) >> _UNIT_SHIFT
        if max(self.next_address, self.next_small) + block > _MASK:
            raise _OutOfAddresses
        self.reserved += block
        self.segments.append(block)
        return block

    def reach(self, allocated: int, at: int, grown: int) -> None:
        """So much is allocated at an event of the turn, when its large blocks have taken so much in new segments."""
        if allocated > self.peak:
            self.peak = allocated
            self.reserved_at_peak = (
                self.before + grown + sum([units for position, units in self.short if position <= at])
            )

    def go(self, events: list[_Event], given: list[int], base: int) -> None:
        """Go through a turn."""
        tables = [(pool.keys, pool.starting, pool.ending) for pool in self.pools]
        live = self.live
        allocated = highest = self.allocated
        highest_at = grown = highest_grown = 0
        for kind, event, number, size, position in events:
            if kind > 0:
                keys, starting, ending = tables[number]
                request = size << _SHIFT
                slot = bisect_left(keys, request)
                if slot < len(keys):
                    key = keys.pop(slot)
                    address = key & _MASK
                    del starting[address]
                else:
                    block = self.segment(size)
                    grown += block
                    address = self.next_address
                    self.next_address += block + 1
                    key = (block << _SHIFT) + address
                rest = key - request
                end = address + (key >> _SHIFT)
                if rest >= _SPLIT:
                    rest += size
                    insort(keys, rest)
                    starting[address + size] = ending[end] = rest
                else:
                    size = key >> _SHIFT
                    ending.pop(end, 0)
                live[base + event] = number, address, size
                allocated += size
                if allocated > highest:
                    highest, highest_at, highest_grown = allocated, position, grown
                continue
            if kind:
                if allocated + number > highest:
                    highest, highest_at, highest_grown = allocated + number, size, grown
                allocated += event
                continue
            held = live.pop(base + event if event >= 0 else given[~event], None)
            if held is None:
                continue
            number, address, size = held
            allocated -= size
            self.pools[number].take_back(address, size)
        self.allocated = allocated
        self.reach(highest, highest_at, highest_grown)

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
        allocated = highest = before = self.allocated
        highest_at = reserved = highest_reserved = 0
        tables = [(pool.keys, pool.starting, pool.ending, pool.inside) for pool in pools]
        for kind, event, number, size, position in events:
            if kind > 0:
                keys, starting, ending, inside = tables[number]
                request = size << _SHIFT
                slot = bisect_left(keys, request)
                if slot < len(keys):
                    key = keys.pop(slot)
                    address, block = key & _MASK, key >> _SHIFT
                    del starting[address]
                    holder = inside.pop(address, -1)
                    if holder < 0:
                        holder = touched[address] = len(parts)
                        parts.append((address, block, PICKED, number))
                        taken.append((holder, number, request, block))
                    else:
                        watched.append((number, request, block, holder, address))
                else:
                    block = self.segment(size)
                    reserved += block
                    address = self.next_address
                    self.next_address += block + 1
                    key = (block << _SHIFT) + address
                    holder = len(parts)
                    parts.append((address, block, NEW, number))
                    grown.append((holder, block))
                    nothing.append((number, request))
                rest = key - request
                if rest >= _SPLIT:
                    rest += size
                    begin = address + size
                    insort(keys, rest)
                    starting[begin] = ending[address + block] = rest
                    inside[begin] = holder
                else:
                    size = block
                    ending.pop(address + block, 0)
                own[event] = number, address, size, holder
                allocated += size
                if allocated > highest:
                    highest, highest_at, highest_reserved = allocated, position, reserved
                continue
            if kind:
                if allocated + number > highest:
                    highest, highest_at, highest_reserved = allocated + number, size, reserved
                allocated += event
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
            keys, starting, ending, inside = tables[number]
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
        self.reach(highest, highest_at, highest_reserved)
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
        trace.highest, trace.highest_at, trace.highest_reserved = highest - before, highest_at, highest_reserved
        trace.reserved = reserved
        return trace

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
        if address > _MASK:
            return False
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
        self.reach(self.allocated + trace.highest, trace.highest_at, trace.highest_reserved)
        self.allocated += trace.allocated
        self.reserved += trace.reserved
        self.next_address = address
        self.segments += [units for _, units in trace.grown]
        return True


def _number(pools: list[_Pool], numbers: dict[int, int], stream: int) -> int:
    """Which of the pools is a stream's."""
    number = numbers.get(stream)
    if number is None:
        number = numbers[stream] = len(pools)
        pools.append(_Pool())
    return number


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
