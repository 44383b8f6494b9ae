"""Every shared draw of the swarm: a pure function of the run seed, a word and named coordinates.

Owns the generator, because no library promises its random stream for ever: keyed BLAKE2b in counter mode gives
64-bit integers, rejection sampling makes them uniform below any bound, Fisher-Yates makes permutations of those.
So sender and receiver, today's version and the next, agree without a message. `tests/vectors/` holds the contract
between versions: a change of one draw is a new protocol version.

A word separates the domains: `pairing` (stage, outer step), `routing` (stage, micro-batch number), `repair`,
`claim`, `shard`, `init`, `heldout`, `codec`. Coordinates are integers or strings, each encoded with its type and
length, so that no two lists of coordinates share an encoding. Must not know: what the draws are for. Source: DESIGN
section 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from hashlib import blake2b
from itertools import count

from noloco_node.core import limits

_PERSON = b"noloco/1"
_BLOCK_BYTES = 64
_WORD_BYTES = 8
_RANGE = 1 << 64

Coordinate = int | str


def _field(value: Coordinate) -> bytes:
    """Type, length, content: an unambiguous encoding of one coordinate."""
    if isinstance(value, str):
        tag, content = b"s", value.encode()
    else:
        tag, content = b"i", value.to_bytes((value.bit_length() + 8) // 8, "little", signed=True)
    return tag + len(content).to_bytes(4, "little") + content


def _message(word: str, coordinates: tuple[Coordinate, ...]) -> bytes:
    return b"".join(map(_field, (word, *coordinates)))


def _key(seed: int) -> bytes:
    if not 0 <= seed < _RANGE:
        raise ValueError(f"a run seed lies between 0 and 2**64 - 1, not {seed}")
    return seed.to_bytes(_WORD_BYTES, "little")


def integers(seed: int, word: str, *coordinates: Coordinate) -> Iterator[int]:
    """Endless stream of uniform integers in [0, 2**64): block b is BLAKE2b(key = seed, fields || b), eight at a time.

    `seed` is an unsigned 64-bit integer. Raises ValueError for another seed.
    """
    prefix = blake2b(_message(word, coordinates), key=_key(seed), person=_PERSON, digest_size=_BLOCK_BYTES)
    for number in count():
        block = prefix.copy()
        block.update(number.to_bytes(_WORD_BYTES, "little"))
        digest = block.digest()
        for start in range(0, _BLOCK_BYTES, _WORD_BYTES):
            yield int.from_bytes(digest[start : start + _WORD_BYTES], "little")


def below(stream: Iterator[int], n: int) -> int:
    """Uniform integer in [0, n), 1 <= n <= 2**64. Draws past the last whole multiple of n are thrown away: no bias."""
    if not 1 <= n <= _RANGE:
        raise ValueError(f"cannot draw below {n}")
    limit = _RANGE - _RANGE % n
    return next(draw for draw in stream if draw < limit) % n


@lru_cache(maxsize=limits.PERMUTATIONS_KEPT)
def permutation(seed: int, word: str, *coordinates: Coordinate, n: int) -> tuple[int, ...]:
    """Uniform permutation of range(n): Fisher-Yates from the last place down to the second."""
    stream = integers(seed, word, *coordinates)
    order = list(range(n))
    for last in range(n - 1, 0, -1):
        drawn = below(stream, last + 1)
        order[last], order[drawn] = order[drawn], order[last]
    return tuple(order)


def key64(seed: int, word: str, *coordinates: Coordinate) -> int:
    """One keyed 64-bit number: the first of `integers`. Serves as a sort key that nobody chooses."""
    return next(integers(seed, word, *coordinates))


def fraction(seed: int, word: str, *coordinates: Coordinate) -> Fraction:
    """One uniform number in [0, 1), exactly: `key64` over 2**64."""
    return Fraction(key64(seed, word, *coordinates), _RANGE)


def digest(word: str, *coordinates: Coordinate) -> bytes:
    """Unkeyed 32-byte digest of named coordinates, for orders that hold across seeds (ties between claims)."""
    return blake2b(_message(word, coordinates), person=_PERSON, digest_size=32).digest()
