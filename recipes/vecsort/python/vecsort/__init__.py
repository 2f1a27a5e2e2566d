"""Sort, scan, reduce and top-k over device memory, on arrays of any library.

Arrays are whatever speaks DLPack or ``__cuda_array_interface__``: PyTorch tensors, CuPy and Numba
arrays and many more. They have one dimension and are contiguous; keys and items are ``float32``,
``float64``, ``int32``, ``int64``, ``uint32`` or ``uint64``. Nothing is copied, and nothing is
allocated but temporary device memory: results go into arrays that you bring.

Work is enqueued on ``stream`` and the call returns without waiting. A stream is None (the legacy
default stream), a ``cudaStream_t`` as a number, or an object of PyTorch, CuPy or anything with
``__cuda_stream__``. The work waits for what the arrays' producers still have under way, as far as
they say so: DLPack exporters do, by contract. After the call, all that you enqueue on ``stream``
sees the result; arrays must stay alive until the stream is past the work. So inside
``with torch.cuda.stream(s)`` pass ``stream=s``.

Keys are ordered as the C header says: ``-0.0`` before ``0.0``, NaNs of either sign last, and
descending is exactly the reverse.

Importing this package is cheap and touches no GPU. The first call on a device opens the plugin
that serves it; if none does, the error says what to install, and ``python -m vecsort.doctor`` says
more.
"""

from __future__ import annotations

from ._errors import VecsortError
from ._folds import reduce, scan
from ._self_test import SelfTest, self_test
from ._sorts import argsort, sort, sort_pairs, topk

__all__ = [
    "SelfTest",
    "VecsortError",
    "argsort",
    "reduce",
    "scan",
    "self_test",
    "sort",
    "sort_pairs",
    "topk",
]

__version__ = "1.0.0"
