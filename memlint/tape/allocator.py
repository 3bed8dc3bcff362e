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

A :class:`_Pool` has the best fit and the merging; how memory is asked of the driver and given back is the policy of
its kind (:class:`_ExpandablePool`), and what all pools share is the :class:`_Card`'s.
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
# A free block is one int, (size << shift) + address: ints sort as the allocator's (size, address) pairs. Addresses up
# to 2 TiB make ints that are a third shorter, and so are their comparisons.
_NARROW_SHIFT, _WIDE_SHIFT = 32, 52
_ENDLESS_UNITS = 1 << 44  # address space of an expandable segment when the card is unknown


class Clearing(NamedTuple):
    """``torch.cuda.empty_cache()`` before this one of the events, where more than ``over_bytes`` are reserved."""

    before: int
    over_bytes: int


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
    tape: Tape,
    conf: AllocatorConf = DEFAULT,
    capacity_bytes: int | None = None,
    events: list[int] | None = None,
    warmed_bytes: int = 0,
    clearing: Clearing | None = None,
    most_bytes: int | None = None,
) -> AllocatorResult:
    """Replay the tape's events, or these of its storages (one that was freed may come again).

    ``capacity_bytes``: what the driver can give in all; None: without end. ``warmed_bytes``: taken in one piece before
    the first event, and given back to the allocator. ``most_bytes``: a run that reserves more is of no interest. Raises
    ReservesMore for one, as soon as it does.
    """
    events = tape.events if events is None else events
    shift = _WIDE_SHIFT if conf.expandable_segments else _NARROW_SHIFT
    while True:
        try:
            return _simulate(tape, events, _Card(conf, capacity_bytes, shift, most_bytes), warmed_bytes, clearing)
        except _OutOfAddresses:
            shift = max(_WIDE_SHIFT, 2 * shift)


class ReservesMore(Exception):
    """More is reserved than is of interest."""


class _OutOfAddresses(Exception):
    """More is asked for than an address tells apart."""


def _simulate(
    tape: Tape, events: list[int], card: _Card, warmed_bytes: int, clearing: Clearing | None
) -> AllocatorResult:
    """Raises _OutOfAddresses, ReservesMore."""
    work.spend(len(events) * work.SERVED, "simulating the allocator")
    divisions = card.conf.roundup_power2_divisions
    if warmed_bytes:
        warmed = round_size(warmed_bytes, divisions) >> _UNIT_SHIFT
        pool = card.pool(0, warmed)
        block = pool.serve(warmed)
        if block:
            pool.take_back(block)
    # Tens of thousands of storages have some dozens of sizes.
    units = {size: round_size(size, divisions) >> _UNIT_SHIFT for size in set(tape.sizes)}
    pools = {size: card.pool(0, rounded) for size, rounded in units.items()}
    sizes = list(map(units.__getitem__, tape.sizes))
    serve = list(map({size: pool.serve for size, pool in pools.items()}.__getitem__, tape.sizes))
    take_back = list(map({size: pool.take_back for size, pool in pools.items()}.__getitem__, tape.sizes))
    for storage, stream in tape.streams.items():
        pool = card.pool(stream, sizes[storage])
        serve[storage], take_back[storage] = pool.serve, pool.take_back
    blocks = [0] * len(sizes)  # the key of the block that a storage has
    shift = card.shift
    allocated = allocated_peak = reserved_at_peak = 0
    oom_index = None
    clears = -1 if clearing is None else clearing.before
    for position, event in enumerate(events):
        if position == clears and clearing is not None and card.reserved << _UNIT_SHIFT > clearing.over_bytes:
            card.release_idle()
        if event >= 0:
            size = sizes[event]
            if not size:
                continue
            blocks[event] = block = serve[event](size)
            if not block:
                oom_index = position
                break
            allocated += block >> shift
            if allocated > allocated_peak:
                allocated_peak, reserved_at_peak = allocated, card.reserved
        else:
            event = ~event
            block = blocks[event]
            if block:
                blocks[event] = 0
                allocated -= block >> shift
                take_back[event](block)
    return AllocatorResult(
        allocated_peak << _UNIT_SHIFT,
        card.reserved_peak << _UNIT_SHIFT,
        reserved_at_peak << _UNIT_SHIFT,
        card.held(),
        oom_index,
        allocated << _UNIT_SHIFT,
    )


class _Card:
    """What all pools share: what the driver has given, and what it can give. Sizes in units of 512 bytes."""

    def __init__(self, conf: AllocatorConf, capacity_bytes: int | None, shift: int, most_bytes: int | None) -> None:
        self.conf = conf
        self.most = sys.maxsize if most_bytes is None else most_bytes >> _UNIT_SHIFT
        self.shift = shift
        self.pools: dict[tuple[int, bool], _Pool] = {}  # by stream, and whether it is the large one
        self.reserved = self.reserved_peak = 0
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

    def pool(self, stream: int, size: int) -> _Pool:
        """The one that serves requests of ``size`` units."""
        key = (stream, size > _SMALL_UNITS)
        if key not in self.pools:
            kind = _ExpandablePool if self.conf.expandable_segments else _Pool
            for large in (True, False):
                self.pools[stream, large] = kind(self, stream, large)
        return self.pools[key]

    def room(self, units: int) -> bool:
        return self.limit is None or self.reserved + units <= self.limit

    def add_reserved(self, units: int) -> None:
        self.reserved += units
        if self.reserved > self.reserved_peak:
            self.reserved_peak = self.reserved
            if self.reserved > self.most:
                raise ReservesMore

    def release_idle(self) -> None:
        """``release_cached_blocks``: every segment that is entirely free."""
        for pool in self.pools.values():
            pool.release_idle()

    def collect_garbage(self) -> None:
        """``garbage_collect_cached_blocks``: idle large segments, those of at least average age first."""
        wanted = self.reserved - self.garbage_limit
        if wanted <= 0:
            return
        idle = [(pool, key) for (_, large), pool in self.pools.items() if large for key in pool.idle()]
        age = {(pool, key): self.searches - pool.ages[key & pool.mask] for pool, key in idle}
        total, released = sum(age.values()), 0
        while idle and released < wanted:
            threshold = total / len(idle)
            # The average falls as blocks go, but the pass keeps the one that it began with.
            for found in idle:
                if age[found] >= threshold:
                    pool, key = found
                    released += pool.release(key)
                    total -= age[found]
            idle = [found for found in idle if age[found] < threshold]

    def held(self) -> tuple[int, ...]:
        """Bytes of each segment, stream by stream."""
        ordered = sorted(self.pools)  # the small ones of a stream first
        return tuple([units << _UNIT_SHIFT for key in ordered for units in self.pools[key].held()])


class _Pool:
    """The small or the large blocks of one stream, in segments of fixed sizes. Sizes and addresses in units of 512
    bytes.

    keys        free blocks, sorted by size and address: ``(size << shift) + address``
    starting    address of a free block -> its key; ``ending``: its end -> its key
    segments    address -> size
    ages        address of a block that was freed -> the card's searches until then
    least_rest  of a block that is larger than the request: from how many units on the rest is split off, as a key
    """

    least_rest_units = 1

    def __init__(self, card: _Card, stream: int, large: bool) -> None:
        self.card = card
        conf = self.conf = card.conf
        self.large = large
        self.shift = card.shift
        self.mask = (1 << card.shift) - 1
        self.keys: list[int] = []
        self.starting: dict[int, int] = {}
        self.ending: dict[int, int] = {}
        self.segments: dict[int, int] = {}
        self.next_address = 0
        self.ages: dict[int, int] = {}
        self.max_split = None if conf.max_split_bytes is None else conf.max_split_bytes >> _UNIT_SHIFT
        self.split_below = self.max_split if large and self.max_split is not None else sys.maxsize
        self.least_rest = (_SMALL_UNITS + 1 if large else 1) << card.shift
        self.rounding = conf.max_non_split_rounding_bytes >> _UNIT_SHIFT
        # A limit below the whole card is looked at first, and failing it is not yet the end.
        self.throws = conf.throw_before_driver and conf.per_process_memory_fraction >= 1.0
        self.ageing = large and card.collects_garbage
        # Whether there is more to a request than the first block that is large enough.
        self.unusual = self.ageing or self.max_split is not None

    def serve(self, size: int) -> int:
        """The key of the block that a request of ``size`` units gets; 0: out of memory."""
        keys = self.keys
        request = size << self.shift
        slot = bisect_left(keys, request)
        if self.unusual:
            slot = self.choose(size, slot)
        if slot < len(keys):
            key = keys.pop(slot)
            del self.starting[key & self.mask]
        else:
            key = self.ask(size)
            if not key:
                return 0
        rest = key - request  # the rest's size, and the block's address
        address = key & self.mask
        end = address + (key >> self.shift)
        if rest >= self.least_rest and size < self.split_below:
            rest += size
            insort(keys, rest)
            self.starting[address + size] = self.ending[end] = rest
            return request + address
        self.ending.pop(end, 0)
        return key

    def take_back(self, key: int) -> None:
        """A block is free, and one with its free neighbours."""
        keys = self.keys
        address = key & self.mask
        above = self.starting.pop(address + (key >> self.shift), 0)  # a free neighbour
        if above:
            del keys[bisect_left(keys, above)]
            key += above - (above & self.mask)
        below = self.ending.pop(address, 0)
        if below:
            del keys[bisect_left(keys, below)]
            key += below - address
            address = below & self.mask
        insort(keys, key)
        self.starting[address] = self.ending[address + (key >> self.shift)] = key
        if self.ageing:
            self.ages[address] = self.card.searches

    def choose(self, size: int, slot: int) -> int:
        """Slot of the block to use, given the first that is large enough; ``len(keys)``: none."""
        if self.ageing:
            self.card.searches += 1
        if slot < len(self.keys) and self.max_split is not None:
            block = self.keys[slot] >> self.shift
            if size < self.max_split <= block or (size >= self.max_split and block >= size + self.rounding):
                return len(self.keys)
        return slot

    def ask(self, size: int) -> int:
        """The key of a block that the driver gave for ``size`` units, no longer free; 0: out of memory."""
        card = self.card
        if card.collects_garbage:
            card.collect_garbage()
        units = segment_size(size << _UNIT_SHIFT, self.conf) >> _UNIT_SHIFT
        if self.throws and not card.room(units):
            return 0
        found = self.grow(size, units)
        if not found and self.release_oversize(size):
            found = self.grow(size, units)
        if not found:
            card.release_idle()
            found = self.grow(size, units)
        return found

    def grow(self, size: int, units: int) -> int:
        """Take a segment of ``units`` from the driver. Raises _OutOfAddresses."""
        if not self.card.room(units):
            return 0
        address = self.next_address
        self.next_address += units + 1  # one unit apart, so that neighbours in different segments never touch
        if self.next_address > self.mask:
            raise _OutOfAddresses
        self.segments[address] = units
        self.card.add_reserved(units)
        return (units << self.shift) + address

    def pop(self, key: int) -> None:
        """A free block is free no more."""
        del self.keys[bisect_left(self.keys, key)]
        address = key & self.mask
        del self.starting[address]
        del self.ending[address + (key >> self.shift)]

    def release(self, key: int) -> int:
        """Return a free segment to the driver."""
        self.pop(key)
        del self.segments[key & self.mask]
        self.card.reserved -= key >> self.shift
        return key >> self.shift

    def release_oversize(self, size: int) -> bool:
        """``release_available_cached_blocks``: one oversize block, or the largest until enough is free."""
        if self.max_split is None:
            return False
        keys = self.keys
        wanted = max(size, self.max_split)
        slot = bisect_left(keys, wanted << self.shift)
        if slot < len(keys):
            self.release(keys[slot])
            return True
        released = 0
        while keys and released < wanted and keys[-1] >> self.shift >= self.max_split:
            released += self.release(keys[-1])
        return released >= wanted

    def idle(self) -> list[int]:
        """Free blocks that are whole segments."""
        return [key for key in self.keys if self.segments.get(key & self.mask) == key >> self.shift]

    def release_idle(self) -> None:
        for key in self.idle():
            self.release(key)

    def held(self) -> list[int]:
        return list(self.segments.values())


class _ExpandablePool(_Pool):
    """``expandable_segments:True``: the pool grows one range of addresses page by page.

    unmapped  address -> size of the ranges without memory, addresses in order
    """

    def __init__(self, card: _Card, stream: int, large: bool) -> None:
        super().__init__(card, stream, large)
        self.page = (card.conf.large_segment_bytes if large else SMALL_SEGMENT_BYTES) >> _UNIT_SHIFT
        self.unmapped: dict[int, int] = {}
        self.mapped = 0
        self.least_rest = 1 << self.shift
        self.split_below = sys.maxsize
        self.unusual = True

    def choose(self, size: int, slot: int) -> int:
        keys, unmapped = self.keys, self.unmapped
        # A block that can grow counts with what it could grow by, so that others are preferred to it. One that cannot
        # is smaller than all that follow.
        while slot + 1 < len(keys) and self.end(keys[slot]) in unmapped and self.reach(slot + 1) < self.reach(slot):
            slot += 1
        return super().choose(size, slot) if self.ageing or self.max_split is not None else slot

    def end(self, key: int) -> int:
        return (key & self.mask) + (key >> self.shift)

    def reach(self, slot: int) -> int:
        key = self.keys[slot]
        return (key >> self.shift) + self.unmapped.get(self.end(key), 0)

    def grow(self, size: int, units: int) -> int:
        """``try_allocate_expandable_block``: map pages at the lowest address where ``size`` units fit."""
        if self.conf.per_process_memory_fraction < 1.0 and not self.card.room(units):
            return 0
        start = self.find_range(size)
        while True:
            key = self.starting.get(start, 0)
            free = key >> self.shift
            if free >= size:
                self.pop(key)
                return key
            hole = start + free
            if not self.map(hole, min(size - free, self.unmapped[hole])):
                return 0

    def find_range(self, size: int) -> int:
        """Lowest address from which ``size`` units are free or unmapped, not all of them free."""
        unmapped = self.unmapped
        for hole in unmapped:
            below = self.ending.get(hole)
            start = hole if below is None else below & self.mask
            end = start
            while end - start < size:
                step = self.starting.get(end, 0) >> self.shift or unmapped.get(end)
                if not step:
                    break
                end += step
            else:
                return start
        capacity = self.card.capacity
        units = max(_ENDLESS_UNITS, size) if capacity is None else capacity + capacity // 8
        start = self.next_address
        unmapped[start] = -(-units // self.page) * self.page
        self.next_address = start + unmapped[start] + self.page
        if self.next_address > self.mask:
            raise _OutOfAddresses
        return start

    def map(self, hole: int, size: int) -> bool:
        """Back ``size`` units from ``hole`` on with memory, in whole pages; join them to free neighbours."""
        unmapped = self.unmapped
        size = -(-size // self.page) * self.page
        # The driver's limit: the setting's was checked once for the whole request.
        capacity = self.card.capacity
        if capacity is not None and self.card.reserved + size > capacity:
            return False
        rest = unmapped.pop(hole) - size
        if rest:
            unmapped[hole + size] = rest
            self.unmapped = dict(sorted(unmapped.items())) if len(unmapped) > 1 else unmapped
        self.take_back((size << self.shift) + hole)
        self.card.add_reserved(size)
        self.mapped += size
        return True

    def release_oversize(self, size: int) -> bool:
        return False  # only whole segments of their own qualify

    def release_idle(self) -> None:
        """Unmap every page that lies within a free block."""
        page, unmapped = self.page, self.unmapped
        for key in list(self.keys):
            address, size = key & self.mask, key >> self.shift
            first, last = -(-address // page) * page, (address + size) // page * page
            if first >= last:
                continue
            self.pop(key)
            if first > address:
                self.take_back(((first - address) << self.shift) + address)
            if address + size > last:
                self.take_back(((address + size - last) << self.shift) + last)
            unmapped[first] = last - first
            self.card.reserved -= last - first
            self.mapped -= last - first
        self.unmapped = _joined(unmapped)

    def idle(self) -> list[int]:
        return []  # a growing segment is never idle as a whole

    def held(self) -> list[int]:
        return [self.mapped] if self.mapped else []


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
