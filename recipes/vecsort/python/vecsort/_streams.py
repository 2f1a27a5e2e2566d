"""Streams of any library, as the number that a ``cudaStream_t`` is."""

from __future__ import annotations

LEGACY_DEFAULT = 1  # cudaStreamLegacy; 0 means the same to CUDA, but is refused by DLPack


def stream_handle(stream: object) -> int:
    """The handle of a stream, never 0.

    Raises:
        TypeError: it is nothing that this function knows as a stream.
        ValueError: it is a negative number.
    """
    handle = LEGACY_DEFAULT if stream is None else _raw_handle(stream)
    if handle < 0:
        raise ValueError(f"stream is {handle}; a cudaStream_t is not negative")
    return handle or LEGACY_DEFAULT


def _raw_handle(stream: object) -> int:
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        # A method by the protocol, but some early adopters made it an attribute.
        _version, handle = protocol() if callable(protocol) else protocol
        return int(handle)
    for attribute in ("cuda_stream", "ptr"):  # PyTorch's name, CuPy's name
        handle = getattr(stream, attribute, None)
        if isinstance(handle, int):
            return handle
    raise TypeError(
        f"stream is a {type(stream).__name__}; expected None, a cudaStream_t as an int, or an "
        "object with __cuda_stream__, cuda_stream or ptr"
    )
