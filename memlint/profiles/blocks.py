"""Words that a profile's courses of events have in common, written once.

Layers repeat within a pass, a recomputation repeats the forward pass, one regime is much like the other. Pairs of
neighbouring words that occur often become blocks, then pairs of blocks, and so on (N. Larsson, A. Moffat, Off-line
dictionary-based compression, Proc. IEEE 88, 2000); blocks that save little are written out again.
"""

from __future__ import annotations

from collections.abc import Sequence

MIN_SAVED_CHARACTERS = 60  # a block is a line or more of JSON: what saves less hides more than it shows

Symbol = str | int  # a word, or the number of a pair


def factored(courses: Sequence[Sequence[str]]) -> tuple[list[list[str]], list[list[str]]]:
    """Blocks, and the courses in terms of them: ``@3`` is block 3. Blocks only refer to earlier ones."""
    pairs, shortened = _paired(courses)
    return _named(pairs, shortened)


def _bracket(symbol: Symbol | None) -> bool:
    return symbol is None or (isinstance(symbol, str) and (symbol == ")" or symbol.endswith("x(")))


def _paired(courses: Sequence[Sequence[str]]) -> tuple[list[tuple[Symbol, Symbol]], list[list[Symbol]]]:
    """Replace the most frequent pair by a new symbol, until no pair occurs twice. No pair reaches over a bracket."""
    text: list[Symbol | None] = []  # None between courses
    for course in courses:
        text += [*course, None]
    following = list(range(1, len(text) + 1))
    before = list(range(-1, len(text) - 1))
    places: dict[tuple[Symbol, Symbol], set[int]] = {}

    def pair_at(at: int) -> tuple[Symbol, Symbol] | None:
        if at < 0 or following[at] >= len(text):
            return None
        left, right = text[at], text[following[at]]
        if left is None or right is None or _bracket(left) or _bracket(right):
            return None
        return left, right

    buckets: dict[int, dict[tuple[Symbol, Symbol], None]] = {}

    def put(pair: tuple[Symbol, Symbol] | None, at: int) -> None:
        if pair is not None:
            held = places.setdefault(pair, set())
            buckets.get(len(held), {}).pop(pair, None)
            held.add(at)
            buckets.setdefault(len(held), {})[pair] = None

    def take(pair: tuple[Symbol, Symbol] | None, at: int) -> None:
        held = places.get(pair) if pair is not None else None
        if held is not None and pair is not None and at in held:
            buckets.get(len(held), {}).pop(pair, None)
            held.discard(at)
            buckets.setdefault(len(held), {})[pair] = None

    for at in range(len(text)):
        put(pair_at(at), at)
    pairs: list[tuple[Symbol, Symbol]] = []
    count = max(buckets, default=0)
    while count > 1:
        if not buckets.get(count):
            count -= 1
            continue
        pair = next(iter(buckets[count]))
        where = sorted(places[pair])
        if len([at for at in where if pair_at(at) == pair]) < 2:
            buckets[count].pop(pair)
            continue
        new: Symbol = len(pairs)
        replaced = 0
        for at in where:
            if pair_at(at) != pair or at not in places[pair]:
                continue  # the second half of the one before it: a a a
            right = following[at]
            take(pair_at(before[at]), before[at])
            take(pair_at(right), right)
            take(pair, at)
            text[at] = new
            after = following[right]
            following[at] = after
            following[right] = len(text)
            text[right] = None
            if after < len(text):
                before[after] = at
            put(pair_at(before[at]), before[at])
            put(pair_at(at), at)
            replaced += 1
        buckets.get(len(places[pair]), {}).pop(pair, None)
        del places[pair]
        pairs.append(pair)
        count = max(buckets, default=0)
    shortened: list[list[Symbol]] = []
    at = 0
    for _ in courses:
        left: list[Symbol] = []
        while True:
            symbol = text[at]
            at = following[at]
            if symbol is None:
                break
            left.append(symbol)
        shortened.append(left)
    return pairs, shortened


def _named(pairs: list[tuple[Symbol, Symbol]], courses: list[list[Symbol]]) -> tuple[list[list[str]], list[list[str]]]:
    """Keep the pairs that are worth a block, write the others out, and number what is kept."""
    bodies: list[list[Symbol]] = [list(pair) for pair in pairs]
    uses = [0] * len(pairs)
    for body in bodies + courses:
        for symbol in body:
            if isinstance(symbol, int):
                uses[symbol] += 1
    kept: dict[int, int] = {}
    # From the largest down, so that what is written out adds its uses to what it is made of.
    written_out = [False] * len(pairs)
    lengths: list[int] = []
    for body in bodies:
        lengths.append(sum(lengths[one] if isinstance(one, int) else len(one) + 1 for one in body))
    for number in range(len(pairs) - 1, -1, -1):
        written_out[number] = (uses[number] - 1) * (lengths[number] - 4) < MIN_SAVED_CHARACTERS
        if written_out[number]:
            for symbol in bodies[number]:
                if isinstance(symbol, int):
                    uses[symbol] += uses[number] - 1
    flat: list[list[Symbol]] = []

    def inlined(body: list[Symbol]) -> list[Symbol]:
        found: list[Symbol] = []
        for symbol in body:
            if isinstance(symbol, int) and written_out[symbol]:
                found += flat[symbol]
            else:
                found.append(symbol)
        return found

    for number, body in enumerate(bodies):
        flat.append(inlined(body))
        if not written_out[number]:
            kept[number] = len(kept)

    def named(body: list[Symbol]) -> list[str]:
        return [f"@{kept[symbol]}" if isinstance(symbol, int) else symbol for symbol in body]

    return [named(flat[number]) for number in kept], [named(inlined(course)) for course in courses]
