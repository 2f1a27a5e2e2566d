"""Members that are inflated in parts, on several cores.

In: packed bytes. Out: the content, part by part. A deflate stream is read from its beginning, but
for one case: a part that ends with an empty stored block, behind which nothing refers to what is
before it. `zip_writer` packs large members like that. The end of such a part is four fixed bytes,
which any other block may have in its content: so for each part zlib tells that its last byte ends a
block. Then the parts are what every inflater makes of the whole stream.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING
from zipfile import ZIP_DEFLATED

from archsplit.system.parallel import ThreadPool
from archsplit.wheels.final_block import inflate_part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future
    from zipfile import ZipInfo

    _Job = tuple[bytes, bool, Future[memoryview | None]]
    """A part, True for the end of the stream, and its content."""

__pure__ = True

_MARK = b"\0\0\xff\xff"
_LEAST, _MOST = 1 << 20, 16 << 20
"""Packed bytes of a part but the last, and most of its bytes: `zip_writer` has 4 MiB of content."""

_LARGE = 32 << 20
"""Packed bytes of a member that is worth several threads."""
_LEAST_CORES, _MOST_THREADS = 4, 6
"""With two cores nothing is won: ISA-L, which can't read parts, is twice as fast as zlib. With more
than six, threads would wait for the hash of the content."""


def part_threads(info: ZipInfo, cores: int) -> int:
    """Return the number of threads for the parts of a member; 0 if one thread reads it better."""
    is_worth = info.compress_type == ZIP_DEFLATED and info.compress_size >= _LARGE
    return min(cores // 2, _MOST_THREADS) if is_worth and cores >= _LEAST_CORES else 0


def inflate_parts(
    blocks: Iterable[bytes],
    update: Callable[[memoryview], object],
    threads: int,
) -> bool:
    """Inflate a stream part by part; return False for one that isn't made of parts.

    Args:
        blocks: the packed stream.
        update: called with the content of each part, in their order, also before a False.
        threads: parts at a time.
    """
    with ThreadPool(threads) as workers:

        def begin(packed: bytes, *, is_last: bool) -> _Job:
            job = workers.submit(inflate_part, packed, _MOST, is_last=is_last)
            return packed, is_last, job

        jobs: deque[_Job] = deque()
        try:
            for part, is_end in _parts(blocks):
                jobs.append(begin(part, is_last=is_end))
                # Twice as many parts as threads: while one is hashed, no thread waits.
                while jobs and (is_end or len(jobs) == 2 * threads):
                    packed, is_last, job = jobs.popleft()
                    content = job.result()
                    if content is not None:
                        update(content)
                    elif is_last or len(packed) >= _MOST:
                        return False
                    else:
                        # Some content looked like a mark, so both are one part.
                        more, is_last, _ = jobs.popleft()
                        jobs.appendleft(begin(packed + more, is_last=is_last))
        finally:
            for _, _, job in jobs:
                job.cancel()
    return True


def _parts(blocks: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Yield what may be parts, each with True for the end of the stream."""
    part = bytearray()
    for block in blocks:
        # A mark may begin in the block before.
        start = max(_LEAST, len(part) - len(_MARK) + 1)
        part += block
        # A stream without marks is given up with its first part.
        while (found := part.find(_MARK, start)) >= 0 or len(part) >= _MOST:
            end = len(part) if found < 0 else found + len(_MARK)
            # A slice of the part itself would be one copy more.
            with memoryview(part) as view:
                packed = bytes(view[:end])
            yield packed, False
            del part[:end]
            start = _LEAST
    yield bytes(part), True
