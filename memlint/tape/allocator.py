"""PyTorch's CUDA caching allocator, replayed over a tape: what turns allocated bytes into reserved bytes.

Follows ``c10/cuda/CUDACachingAllocator.cpp`` and ``c10/core/AllocatorConfig.cpp`` of torch 2.13, without CUDA
graphs: rounding, the two pools, their streams, best fit, splitting, merging, segment sizes, expandable
segments, and what is given back to the driver before an allocation fails. ``tests/tape`` holds traces of the
real library that this module has to match event by event.

The rules, with their names in the source:

- ``round_size``: multiples of 512 bytes; with ``roundup_power2_divisions``, the next division of a power of 2.
- ``get_pool``: up to 1 MiB the small pool, above it the large pool; they never share a segment.
- ``get_free_block``: the smallest free block of the request's stream that is large enough, the lowest address
  among equals. A segment belongs to one stream: what another stream has freed is of no use.
- ``should_split``: the rest becomes a free block if it is at least 512 bytes (small pool, expandable
  segments) or more than 1 MiB (large pool, and the request is below ``max_split_size``). Otherwise it stays in
  the block, unused but counted as allocated.
- ``get_allocation_size``: a new segment has 2 MiB (small pool), ``large_segment_size`` = 20 MiB (below
  10 MiB), or the request rounded up to 2 MiB.
- ``free_block``: merges with free neighbours of the same segment at once.
- Before it gives up, the allocator returns oversize blocks (only with ``max_split_size``, and of the stream that
  asks), then every segment of any stream that is entirely free, and asks the driver again.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, insort

from memlint import work
from memlint.meta.tape import Tape
from memlint.named_tuple import NamedTuple
from memlint.tape.allocator_conf import DEFAULT as DEFAULT
from memlint.tape.allocator_conf import MIN_LARGE_BYTES, POWER2_INTERVALS
from memlint.tape.allocator_conf import AllocatorConf as AllocatorConf
from memlint.tape.allocator_conf import ConfError as ConfError
from memlint.tape.allocator_conf import parse_conf as parse_conf
from memlint.units import MiB

MIN_BLOCK_BYTES = 512  # kMinBlockSize
SMALL_BYTES = 1 * MiB  # kSmallSize: largest request of the small pool
SMALL_SEGMENT_BYTES = 2 * MiB  # kSmallBuffer
ROUND_LARGE_BYTES = 2 * MiB  # kRoundLarge

# Every quantity of the simulation is a multiple of 512 bytes, so it counts in these units.
_UNIT_SHIFT = 9
_SMALL_UNITS = SMALL_BYTES >> _UNIT_SHIFT
# A free block is one int, (size << _SIZE_SHIFT) + address: ints sort as the allocator's (size, address) pairs.
_SIZE_SHIFT = 52
_ADDRESS_MASK = (1 << _SIZE_SHIFT) - 1
_NARROW_SHIFT = 32  # for addresses up to 2 TiB: the ints are a third shorter, and so are their comparisons
_LARGE_REGION = 1 << 48  # where the large pool's expandable addresses begin, in units
_ENDLESS_UNITS = 1 << 44  # address space of an expandable segment when the card is unknown


class AllocatorResult(NamedTuple):
    """What a tape does to the allocator.

    allocated_peak_bytes        peak of ``torch.cuda.memory_allocated()``: whole blocks, with unsplit rests
    reserved_peak_bytes         peak of ``torch.cuda.memory_reserved()``
    reserved_at_allocated_peak  reserved bytes when the allocated peak is first reached
    segments                    bytes of each segment held at the end; with expandable segments, one per pool
    oom_index                   the event that found no memory, where the run ends; None if all were served
    allocated_bytes             still handed out at the end
    """

    allocated_peak_bytes: int
    reserved_peak_bytes: int
    reserved_at_allocated_peak: int
    segments: tuple[int, ...]
    oom_index: int | None
    allocated_bytes: int


def round_size(size_bytes: int, divisions: tuple[int, ...] = ()) -> int:
    """Bytes of the block that a request needs. ``divisions``: ``AllocatorConf.roundup_power2_divisions``."""
    if size_bytes <= 0:
        return 0  # an empty tensor never reaches the allocator
    if divisions and size_bytes >= MIN_BLOCK_BYTES:
        count = divisions[min(max(size_bytes.bit_length() - 21, 0), POWER2_INTERVALS - 1)]
        if count > 1 and size_bytes > MIN_BLOCK_BYTES * count:
            step = 1 << (size_bytes.bit_length() - count.bit_length())
            return -(-size_bytes // step) * step
    return -(-size_bytes // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES


def segment_size(rounded_bytes: int, conf: AllocatorConf = DEFAULT) -> int:
    """Bytes of the segment that is asked of the driver for a block of ``rounded_bytes``."""
    if rounded_bytes <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if rounded_bytes < MIN_LARGE_BYTES:
        return conf.large_segment_bytes
    return -(-rounded_bytes // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES


def simulate(
    tape: Tape, conf: AllocatorConf = DEFAULT, capacity_bytes: int | None = None, events: list[int] | None = None
) -> AllocatorResult:
    """Replay the tape's events, or these of its storages (one that was freed may come again).

    ``capacity_bytes``: what the driver can give in all; None: without end.
    """
    events = tape.events if events is None else events
    work.spend(len(events) * work.SERVED, "simulating the allocator")
    divisions = conf.roundup_power2_divisions
    # Tens of thousands of storages have some dozens of sizes.
    units = {size: round_size(size, divisions) >> _UNIT_SHIFT for size in set(tape.sizes)}
    sizes = list(map(units.__getitem__, tape.sizes))
    # Negative: a block of another stream than the default one.
    for storage in tape.streams:
        sizes[storage] = -sizes[storage]
    # Only these settings forbid or delay the best fit, or look for it elsewhere.
    plain = conf.max_split_bytes is None and not conf.expandable_segments
    if plain and capacity_bytes is None:
        return _simulate_endless(events, sizes, units, conf, tape.streams)

    card = _Card(conf, capacity_bytes)
    default = card.stream(0)
    addresses = [0] * len(sizes)
    blocks = [0] * len(sizes)  # units of the block that a storage got
    allocated = allocated_peak = reserved_at_peak = 0
    oom_index = None
    for position, event in enumerate(events):
        if event >= 0:
            size = sizes[event]
            if not size:
                continue
            found = default.serve(size) if size > 0 else card.stream(tape.streams[event]).serve(-size)
            if found is None:
                oom_index = position
                break
            addresses[event], block = found
            blocks[event] = block
            allocated += block
            if allocated > allocated_peak:
                allocated_peak, reserved_at_peak = allocated, card.reserved
        else:
            block = blocks[~event]
            if not block:
                continue
            blocks[~event] = 0
            allocated -= block
            stream = default if sizes[~event] > 0 else card.stream(tape.streams[~event])
            stream.take_back(addresses[~event], block)
    return AllocatorResult(
        allocated_peak << _UNIT_SHIFT,
        card.reserved_peak << _UNIT_SHIFT,
        reserved_at_peak << _UNIT_SHIFT,
        card.held(),
        oom_index,
        allocated << _UNIT_SHIFT,
    )


def _simulate_endless(
    events: list[int],
    sizes: list[int],
    units: dict[int, int],
    conf: AllocatorConf,
    streams: dict[int, int],
    shift: int = _NARROW_SHIFT,
) -> AllocatorResult:
    """The same for segments of fixed size, best fit and a driver that always gives: what every estimate asks for.

    ``sizes``: units by storage, negative outside of the default stream; ``units``: the distinct ones. The default
    stream's free blocks are known by the ints that its pools sort, from both ends.
    """
    card = _Card(conf, None)  # what other streams have
    mask, small_units = (1 << shift) - 1, _SMALL_UNITS
    split = (small_units + 1) << shift  # the least rest that the large pool splits off
    small: list[int] = []
    large: list[int] = []
    starting: dict[int, int] = {}  # address of a free block -> the block
    ending: dict[int, int] = {}  # its end -> the block
    segments: list[int] = []
    wanted = {size: size << shift for size in units.values()}
    addresses = [0] * len(sizes)
    blocks = [0] * len(sizes)  # units of the block that a storage has
    next_address = reserved = allocated = allocated_peak = reserved_at_peak = 0
    pop_starting, pop_ending = starting.pop, ending.pop
    for event in events:
        if event >= 0:
            size = sizes[event]
            if size <= 0:
                if size:
                    before = card.reserved
                    found = card.stream(streams[event]).serve(-size)
                    assert found is not None  # without end
                    addresses[event], size = found
                    blocks[event] = -size
                    reserved += card.reserved - before
                    allocated += size
                    if allocated > allocated_peak:
                        allocated_peak, reserved_at_peak = allocated, reserved
                continue
            pool = small if size <= small_units else large
            request = wanted[size]
            slot = bisect_left(pool, request)
            if slot < len(pool):
                key = pool.pop(slot)
                address = key & mask
                rest = key - request  # the rest's size, and the block's address
                if rest == address:
                    del starting[address]
                    del ending[address + size]
                elif size <= small_units or rest >= split:
                    del starting[address]
                    start = address + size
                    rest += size
                    insort(pool, rest, 0, slot)
                    starting[start] = ending[address + (key >> shift)] = rest
                else:
                    del starting[address]
                    size = key >> shift
                    del ending[address + size]
            else:
                block = segment_size(size << _UNIT_SHIFT, conf) >> _UNIT_SHIFT
                address = next_address
                next_address += block + 1  # one unit apart, so that neighbours in different segments never touch
                if next_address > mask:
                    wider = _SIZE_SHIFT if shift < _SIZE_SHIFT else 2 * shift
                    return _simulate_endless(events, sizes, units, conf, streams, wider)
                segments.append(block)
                reserved += block
                rest = block - size
                if rest and (size <= small_units or rest > small_units):
                    start = address + size
                    rest = (rest << shift) + start
                    insort(pool, rest)
                    starting[start] = ending[address + block] = rest
                else:
                    size = block
            addresses[event], blocks[event] = address, size
            allocated += size
            if allocated > allocated_peak:
                allocated_peak, reserved_at_peak = allocated, reserved
        else:
            size = blocks[~event]
            if size <= 0:
                if size:
                    blocks[~event] = 0
                    allocated += size
                    card.stream(streams[~event]).take_back(addresses[~event], -size)
                continue
            address = addresses[~event]
            blocks[~event] = 0
            allocated -= size
            pool = small if size <= small_units else large
            end = address + size
            key = pop_starting(end, 0)  # a free neighbour above
            if key:
                del pool[bisect_left(pool, key)]
                end += key >> shift
            key = pop_ending(address, 0)  # a free neighbour below
            if key:
                del pool[bisect_left(pool, key)]
                address = key & mask
            key = ((end - address) << shift) + address
            insort(pool, key)
            starting[address] = ending[end] = key
    return AllocatorResult(
        allocated_peak << _UNIT_SHIFT,
        reserved << _UNIT_SHIFT,
        reserved_at_peak << _UNIT_SHIFT,
        (*[size << _UNIT_SHIFT for size in segments], *card.held()),
        None,
        allocated << _UNIT_SHIFT,
    )


class _Card:
    """What all streams share: what the driver has given, and what it can give. Sizes in units of 512 bytes."""

    def __init__(self, conf: AllocatorConf, capacity_bytes: int | None) -> None:
        self.conf = conf
        self.streams: dict[int, _Segments] = {}
        self.reserved = self.reserved_peak = 0
        self.next_address = 0
        # The driver counts bytes: a capacity need not be a multiple of 512.
        self.capacity = None if capacity_bytes is None else capacity_bytes >> _UNIT_SHIFT
        self.limit = self.capacity
        self.collects_garbage = False
        if capacity_bytes is not None and conf.per_process_memory_fraction < 1.0:
            allowed = int(conf.per_process_memory_fraction * capacity_bytes)
            self.limit = allowed >> _UNIT_SHIFT
            # torch tracks ages, and collects, only under a memory limit below the whole card.
            self.collects_garbage = conf.garbage_collection_threshold > 0
            self.garbage_limit = int(conf.garbage_collection_threshold * allowed) >> _UNIT_SHIFT
        self.searches = 0  # of large blocks, for their age

    def stream(self, number: int) -> _Segments:
        found = self.streams.get(number)
        if found is None:
            kind = _ExpandableSegments if self.conf.expandable_segments else _Segments
            found = self.streams[number] = kind(self)
        return found

    def room(self, units: int) -> bool:
        return self.limit is None or self.reserved + units <= self.limit

    def add_reserved(self, units: int) -> None:
        self.reserved += units
        if self.reserved > self.reserved_peak:
            self.reserved_peak = self.reserved

    def release_idle(self) -> None:
        """``release_cached_blocks``: every segment that is entirely free."""
        for segments in self.streams.values():
            segments.release_idle()

    def collect_garbage(self) -> None:
        """``garbage_collect_cached_blocks``: idle large segments, those of at least average age first."""
        wanted = self.reserved - self.garbage_limit
        if wanted <= 0:
            return
        idle = [(stream, key) for stream in self.streams.values() for key in stream.idle()]
        age = {key: self.searches - stream.ages[key & _ADDRESS_MASK] for stream, key in idle}
        total, released = sum(age.values()), 0
        while idle and released < wanted:
            threshold = total / len(idle)
            # The average falls as blocks go, but the pass keeps the one that it began with.
            for stream, key in idle:
                if age[key] >= threshold:
                    released += stream.release(stream.large, bisect_left(stream.large, key))
                    total -= age[key]
            idle = [(stream, key) for stream, key in idle if age[key] < threshold]

    def held(self) -> tuple[int, ...]:
        return tuple([size for number in sorted(self.streams) for size in self.streams[number].held()])


class _Segments:
    """One stream's memory, and its free blocks. Sizes and addresses in units of 512 bytes.

    small, large  free blocks of the two pools, as sorted ints
    free_sizes    address of a free block -> its size
    free_starts   end of a free block -> its address
    ages          address of a block that was freed -> the card's searches until then
    """

    def __init__(self, card: _Card) -> None:
        self.card = card
        conf = self.conf = card.conf
        self.small: list[int] = []
        self.large: list[int] = []
        self.free_sizes: dict[int, int] = {}
        self.free_starts: dict[int, int] = {}
        self.segments: dict[int, int] = {}  # address -> size
        self.max_split = None if conf.max_split_bytes is None else conf.max_split_bytes >> _UNIT_SHIFT
        self.split_limit = sys.maxsize if self.max_split is None else self.max_split
        self.rounding = conf.max_non_split_rounding_bytes >> _UNIT_SHIFT
        # A limit below the whole card is looked at first, and failing it is not yet the end.
        self.throws = conf.throw_before_driver and conf.per_process_memory_fraction >= 1.0
        self.ages: dict[int, int] = {}

    def serve(self, size: int) -> tuple[int, int] | None:
        """(address, size) of the block that a request of ``size`` units gets; None: out of memory."""
        pool = self.small if size <= _SMALL_UNITS else self.large
        found = self.take(pool, size, bisect_left(pool, size << _SIZE_SHIFT))
        if found is None:
            return None
        address, block = found
        rest = block - size
        if rest and self.splits(pool, size, rest):
            self.put(pool, address + size, rest)
            block = size
        return address, block

    def splits(self, pool: list[int], size: int, rest: int) -> bool:
        """Whether the rest of a block becomes a block of its own."""
        return pool is self.small or (rest > _SMALL_UNITS and size < self.split_limit)

    def take_back(self, address: int, block: int) -> None:
        """A block is free, and one with its free neighbours."""
        pool = self.small if block <= _SMALL_UNITS else self.large
        end = address + block
        rest = self.free_sizes.pop(end, 0)  # a free neighbour above
        if rest:
            del pool[bisect_left(pool, (rest << _SIZE_SHIFT) + end)]
            end += rest
        start = self.free_starts.pop(address, -1)  # a free neighbour below
        if start >= 0:
            del pool[bisect_left(pool, ((address - start) << _SIZE_SHIFT) + start)]
            address = start
        self.put(pool, address, end - address)
        if self.card.collects_garbage:
            self.ages[address] = self.card.searches

    def take(self, pool: list[int], size: int, slot: int) -> tuple[int, int] | None:
        """(address, size) of a block for ``size`` units; None: out of memory."""
        if pool is self.large:
            self.card.searches += 1
        slot = self.choose(pool, size, slot)
        if slot < len(pool):
            return self.pop(pool, slot)
        if self.card.collects_garbage:
            self.card.collect_garbage()
        units = segment_size(size << _UNIT_SHIFT, self.conf) >> _UNIT_SHIFT
        if self.throws and not self.card.room(units):
            return None
        found = self.grow(pool, size, units)
        if found is None and self.release_oversize(pool, size):
            found = self.grow(pool, size, units)
        if found is None:
            self.card.release_idle()
            found = self.grow(pool, size, units)
        return found

    def choose(self, pool: list[int], size: int, slot: int) -> int:
        """Slot of the block to use, given the first that is large enough; ``len(pool)``: none."""
        if slot < len(pool) and self.max_split is not None:
            block = pool[slot] >> _SIZE_SHIFT
            if size < self.max_split <= block or (size >= self.max_split and block >= size + self.rounding):
                return len(pool)
        return slot

    def pop(self, pool: list[int], slot: int) -> tuple[int, int]:
        key = pool.pop(slot)
        block, address = key >> _SIZE_SHIFT, key & _ADDRESS_MASK
        del self.free_sizes[address]
        del self.free_starts[address + block]
        return address, block

    def put(self, pool: list[int], address: int, size: int) -> None:
        insort(pool, (size << _SIZE_SHIFT) + address)
        self.free_sizes[address] = size
        self.free_starts[address + size] = address

    def grow(self, pool: list[int], size: int, units: int) -> tuple[int, int] | None:
        """Take a segment of ``units`` from the driver."""
        card = self.card
        if not card.room(units):
            return None
        address = card.next_address
        card.next_address += units + 1  # one unit apart, so that neighbours in different segments never touch
        self.segments[address] = units
        card.add_reserved(units)
        return address, units

    def release(self, pool: list[int], slot: int) -> int:
        """Return a free segment to the driver."""
        address, size = self.pop(pool, slot)
        del self.segments[address]
        self.card.reserved -= size
        return size

    def whole(self, key: int) -> bool:
        """Is this free block a whole segment?"""
        return self.segments.get(key & _ADDRESS_MASK) == key >> _SIZE_SHIFT

    def release_oversize(self, pool: list[int], size: int) -> bool:
        """``release_available_cached_blocks``: one oversize block, or the largest until enough is free."""
        if self.max_split is None:
            return False
        wanted = max(size, self.max_split)
        slot = bisect_left(pool, wanted << _SIZE_SHIFT)
        if slot < len(pool):
            self.release(pool, slot)
            return True
        released = 0
        while pool and released < wanted and pool[-1] >> _SIZE_SHIFT >= self.max_split:
            released += self.release(pool, len(pool) - 1)
        return released >= wanted

    def release_idle(self) -> None:
        for pool in (self.large, self.small):
            for slot in range(len(pool) - 1, -1, -1):
                if self.whole(pool[slot]):
                    self.release(pool, slot)

    def idle(self) -> list[int]:
        """Free blocks of the large pool that are whole segments."""
        return [key for key in self.large if self.whole(key)]

    def held(self) -> tuple[int, ...]:
        return tuple(size << _UNIT_SHIFT for size in self.segments.values())


class _ExpandableSegments(_Segments):
    """``expandable_segments:True``: each pool grows one range of addresses page by page.

    unmapped  address -> size of the ranges without memory, by pool, addresses in order
    """

    def __init__(self, card: _Card) -> None:
        super().__init__(card)
        conf = card.conf
        self.pages = {
            id(self.small): SMALL_SEGMENT_BYTES >> _UNIT_SHIFT,
            id(self.large): conf.large_segment_bytes >> _UNIT_SHIFT,
        }
        self.unmapped: dict[int, dict[int, int]] = {id(self.small): {}, id(self.large): {}}
        # The large pool begins on a page of its own, whatever the page size.
        large_page = self.pages[id(self.large)]
        self.next_range = {id(self.small): 0, id(self.large): -(-_LARGE_REGION // large_page) * large_page}
        self.mapped = {id(self.small): 0, id(self.large): 0}

    def splits(self, pool: list[int], size: int, rest: int) -> bool:
        return True

    def choose(self, pool: list[int], size: int, slot: int) -> int:
        if slot >= len(pool):
            return slot
        # A block that can grow counts with what it could grow by, so that others are preferred to it.
        unmapped = self.unmapped[id(pool)]

        def reach(key: int) -> int:
            block = key >> _SIZE_SHIFT
            return block + unmapped.get((key & _ADDRESS_MASK) + block, 0)

        while slot + 1 < len(pool) and reach(pool[slot + 1]) < reach(pool[slot]):
            slot += 1
        return super().choose(pool, size, slot)

    def grow(self, pool: list[int], size: int, units: int) -> tuple[int, int] | None:
        """``try_allocate_expandable_block``: map pages at the lowest address where ``size`` units fit."""
        if self.conf.per_process_memory_fraction < 1.0 and not self.card.room(units):
            return None
        start = self.find_range(pool, size)
        unmapped = self.unmapped[id(pool)]
        while self.free_sizes.get(start, 0) < size:
            hole = start + self.free_sizes.get(start, 0)
            if not self.map(pool, hole, min(size - (hole - start), unmapped[hole])):
                return None
        block = self.free_sizes[start]
        return self.pop(pool, bisect_left(pool, (block << _SIZE_SHIFT) + start))

    def find_range(self, pool: list[int], size: int) -> int:
        """Lowest address from which ``size`` units are free or unmapped, not all of them free."""
        unmapped = self.unmapped[id(pool)]
        for hole in unmapped:
            start = self.free_starts.get(hole, hole)
            end = start
            while end - start < size:
                step = self.free_sizes.get(end) or unmapped.get(end)
                if not step:
                    break
                end += step
            else:
                return start
        page = self.pages[id(pool)]
        capacity = self.card.capacity
        units = max(_ENDLESS_UNITS, size) if capacity is None else capacity + capacity // 8
        start = self.next_range[id(pool)]
        unmapped[start] = -(-units // page) * page
        self.next_range[id(pool)] = start + unmapped[start] + page
        return start

    def map(self, pool: list[int], hole: int, size: int) -> bool:
        """Back ``size`` units from ``hole`` on with memory, in whole pages; join them to free neighbours."""
        page = self.pages[id(pool)]
        unmapped = self.unmapped[id(pool)]
        size = -(-size // page) * page
        # The driver's limit: the setting's was checked once for the whole request.
        capacity = self.card.capacity
        if capacity is not None and self.card.reserved + size > capacity:
            return False
        rest = unmapped.pop(hole) - size
        if rest:
            unmapped[hole + size] = rest
            self.unmapped[id(pool)] = dict(sorted(unmapped.items())) if len(unmapped) > 1 else unmapped
        start, end = hole, hole + size
        above = self.free_sizes.get(end)
        if above:
            self.pop(pool, bisect_left(pool, (above << _SIZE_SHIFT) + end))
            end += above
        below = self.free_starts.get(start)
        if below is not None:
            self.pop(pool, bisect_left(pool, ((start - below) << _SIZE_SHIFT) + below))
            start = below
        self.put(pool, start, end - start)
        self.card.add_reserved(size)
        self.mapped[id(pool)] += size
        return True

    def release_oversize(self, pool: list[int], size: int) -> bool:
        return False  # only whole segments of their own qualify

    def release_idle(self) -> None:
        """Unmap every page that lies within a free block."""
        for pool in (self.large, self.small):
            page = self.pages[id(pool)]
            unmapped = self.unmapped[id(pool)]
            for key in list(pool):
                address, size = key & _ADDRESS_MASK, key >> _SIZE_SHIFT
                first, last = -(-address // page) * page, (address + size) // page * page
                if first >= last:
                    continue
                self.pop(pool, bisect_left(pool, key))
                if first > address:
                    self.put(pool, address, first - address)
                if address + size > last:
                    self.put(pool, last, address + size - last)
                unmapped[first] = last - first
                self.card.reserved -= last - first
                self.mapped[id(pool)] -= last - first
            self.unmapped[id(pool)] = _joined(unmapped)

    def idle(self) -> list[int]:
        return []  # a growing segment is never idle as a whole

    def held(self) -> tuple[int, ...]:
        return tuple(size << _UNIT_SHIFT for size in self.mapped.values() if size)


def _joined(ranges: dict[int, int]) -> dict[int, int]:
    """The same ranges in order of address, touching ones made one."""
    joined: dict[int, int] = {}
    last = -1
    for address in sorted(ranges):
        if last >= 0 and last + joined[last] == address:
            joined[last] += ranges[address]
        else:
            joined[address] = ranges[address]
            last = address
    return joined
