"""Check the vecsort that is on sys.path on this machine's GPU, against NumPy.

A plain script, because machines with GPUs don't always have pytest: it prints what it did and
exits with 1 if something is wrong.
"""
# ruff: noqa: ANN401 (arrays are whatever their library makes them)

from __future__ import annotations

import ctypes
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any

import numpy as np
import vecsort  # type: ignore[import-not-found] # from the wheels that are checked
from vecsort._library import library_for  # type: ignore[import-not-found] # the same
from vecsort_arrays import (
    DTYPES,
    InterfaceOnly,
    expected_order,
    frameworks,
    require_close,
    require_same,
    some_keys,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from vecsort_arrays import Framework, Host

SIZES = (0, 1, 2, 1023, 2**20 + 3)
TEN_MILLION = 10_000_000
HUGE_SIZES = (3 * 2**27, 2**31 - 1)
VALUE_TYPES = ("uint8", "int16", "float32", "int64", "complex128")


def check_sort(use: Framework, dtype: str, size: int) -> None:
    keys = some_keys(dtype, size, seed=size)
    for descending in (False, True):
        expected = keys[expected_order(keys, descending=descending)]
        source, out = use.put(keys), use.put(np.zeros_like(keys))
        vecsort.sort(source, out=out, descending=descending)
        require_same(use.get(out), expected, "out of place")
        require_same(use.get(source), keys, "the input of a sort out of place")
        vecsort.sort(source, descending=descending)
        require_same(use.get(source), expected, "in place")


def check_sort_pairs(use: Framework, dtype: str, size: int) -> None:
    keys = some_keys(dtype, size, seed=size + 1)
    orders = [expected_order(keys, descending=descending) for descending in (False, True)]
    for number, type_ in enumerate(VALUE_TYPES):
        values = (np.arange(size) * 7).astype(type_)
        order, descending = orders[number % 2], bool(number % 2)
        source, payload = use.put(keys), use.put(values)
        outputs = {"keys_out": use.put(np.zeros_like(keys)), "values_out": use.put(values * 0)}
        vecsort.sort_pairs(source, payload, **outputs, descending=descending)
        require_same(use.get(outputs["keys_out"]), keys[order], f"keys with {type_}")
        require_same(use.get(outputs["values_out"]), values[order], f"values of {type_}")
        require_same(use.get(payload), values, f"the input values of {type_}")
        vecsort.sort_pairs(source, payload, descending=descending)
        require_same(use.get(source), keys[order], f"keys with {type_} in place")
        require_same(use.get(payload), values[order], f"values of {type_} in place")


def check_argsort(use: Framework, dtype: str, size: int) -> None:
    keys = some_keys(dtype, size, seed=size + 2)
    source = use.put(keys)
    for descending in (False, True):
        out = use.put(np.full(size, -1, "int32"))
        vecsort.argsort(source, out=out, descending=descending)
        expected = expected_order(keys, descending=descending).astype("int32")
        require_same(use.get(out), expected, f"descending={descending}")
    require_same(use.get(source), keys, "the keys of an argsort")


def check_scan(use: Framework, dtype: str, size: int) -> None:
    items = some_keys(dtype, size, seed=size + 3, special=False)
    for exclusive in (False, True):
        # Integers wrap, so they are compared in their own type; sums of floats in a wider one.
        wide = np.dtype(dtype) if items.dtype.kind in "iu" else np.dtype("longdouble")
        expected = np.cumsum(items, dtype=wide)
        if exclusive:
            expected = np.concatenate([np.zeros(1, wide), expected])[:-1] if size else expected
        source, out = use.put(items), use.put(np.ones_like(items))
        vecsort.scan(source, out=out, exclusive=exclusive)
        _require_sums(use.get(out), expected, items, f"exclusive={exclusive}")
        vecsort.scan(source, exclusive=exclusive)
        _require_sums(use.get(source), expected, items, f"exclusive={exclusive} in place")


def _require_sums(found: Host, expected: Host, items: Host, what: str) -> None:
    if items.dtype.kind in "iu":
        require_same(found, expected, what)
    else:
        require_close(found, expected.astype("f8"), float(np.abs(items).sum()), what)


def check_reduce(use: Framework, dtype: str, size: int) -> None:
    items = some_keys(dtype, size, seed=size + 4, special=False)
    source, out = use.put(items), use.put(np.ones(1, dtype))
    vecsort.reduce(source, "sum", out=out)
    wide = items.dtype if items.dtype.kind in "iu" else np.dtype("longdouble")
    _require_sums(use.get(out), np.atleast_1d(np.sum(items, dtype=wide)), items, "sum")
    for operation, by_numpy in (("min", np.min), ("max", np.max)):
        if size:
            vecsort.reduce(source, operation, out=out)
            require_same(use.get(out), np.atleast_1d(by_numpy(items)), operation)
            if items.dtype.kind == "f":
                _check_nan(use, items, operation)
        else:
            _require_raises(ValueError, vecsort.reduce, source, operation, out=out)


def _check_nan(use: Framework, items: Host, operation: str) -> None:
    spoiled, out = items.copy(), use.put(np.zeros(1, items.dtype))
    spoiled[items.size // 2] = np.nan
    vecsort.reduce(use.put(spoiled), operation, out=out)
    if not np.isnan(use.get(out)[0]):
        raise AssertionError(f"{operation} of items with a NaN is {use.get(out)[0]}")


def check_topk(use: Framework, dtype: str, size: int) -> None:
    items = some_keys(dtype, size, seed=size + 5)
    source = use.put(items)
    orders = [expected_order(items, descending=descending) for descending in (False, True)]
    for k in sorted({0, min(1, size), size // 3, size}):
        for largest in (False, True):
            order = orders[largest][:k]
            values, indices = use.put(np.zeros(k, dtype)), use.put(np.full(k, -1, "int32"))
            vecsort.topk(source, k, values_out=values, indices_out=indices, largest=largest)
            require_same(use.get(values), items[order], f"values, k={k}, largest={largest}")
            require_same(use.get(indices), order.astype("int32"), f"indices, k={k}")
            places = use.put(np.full(k, -1, "int32"))
            vecsort.topk(source, k, indices_out=places, largest=largest)
            require_same(use.get(places), order.astype("int32"), f"only indices, k={k}")
    same = use.put(np.full(size, 3, dtype))
    indices = use.put(np.full(size // 2, -1, "int32"))
    vecsort.topk(same, size // 2, indices_out=indices)
    require_same(use.get(indices), np.arange(size // 2, dtype="int32"), "ties")


def check_streams(use: Framework) -> None:
    keys = some_keys("float32", 2**20 + 3, seed=11)
    expected = keys[expected_order(keys)]
    source, ours, theirs = use.put(keys), use.stream(), use.stream()
    use.get(source)
    vecsort.sort(source, stream=ours)
    ours.synchronize()
    require_same(use.get(source), expected, "on a stream of our own")
    # The producer's stream is still busy with what it will write when the sort is asked for.
    zeros = use.put(np.zeros_like(keys))
    late = use.put(keys)
    use.get(late)
    with use.on(theirs):
        use.busy()
        zeros[:] = late
        vecsort.sort(zeros, stream=ours)
    ours.synchronize()
    require_same(use.get(zeros), expected, "after the producer's stream")


def check_interface(use: Framework) -> None:
    keys = some_keys("int64", 1023, seed=12)
    source = use.put(keys)
    use.get(source)
    vecsort.sort(InterfaceOnly(source))
    require_same(use.get(source), np.sort(keys), "__cuda_array_interface__")
    stream = use.stream()
    again = use.put(keys)
    use.get(again)
    with use.on(stream):
        vecsort.sort(InterfaceOnly(again), descending=True, stream=stream)
    stream.synchronize()
    require_same(use.get(again), np.sort(keys)[::-1], "__cuda_array_interface__ on a stream")
    _require_raises(ValueError, vecsort.sort, use.put(np.ones((2, 3), "f4")))
    _require_raises(ValueError, vecsort.sort, use.put(np.ones(9, "f4"))[::2])
    _require_raises(TypeError, vecsort.sort, use.put(np.ones(9, "f2")))
    _require_raises(ValueError, vecsort.sort, keys)


def check_threads(use: Framework) -> None:
    failures: list[str] = []

    def work(seed: int) -> None:
        try:
            keys = some_keys("float64", 200_000, seed=seed)
            stream, source = use.stream(), use.put(keys)
            use.get(source)
            for descending in (False, True) * 3:
                vecsort.sort(source, descending=descending, stream=stream)
            stream.synchronize()
            expected = keys[expected_order(keys, descending=True)]
            require_same(use.get(source), expected, f"thread {seed}")
        except Exception:  # noqa: BLE001 (a thread's failure is the check's)
            failures.append(traceback.format_exc())

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise AssertionError("\n".join(failures))


def check_refusals(use: Framework) -> None:
    """Check the refusals of the C library, which its Python interface never reaches."""
    items = use.put(np.arange(8, dtype="f4"))
    where = int(items.__cuda_array_interface__["data"][0])
    host = (ctypes.c_float * 8)()
    wrong: dict[int, list[tuple[object, ...]]] = {
        1: [(99, 0, where, where, 8), (1, 2, where, where, 8), (1, 0, None, where, 8)],
        2: [(1, 0, where, where, 2**31)],
        3: [(1, 0, where + 2, where + 2, 4)],
        4: [(1, 0, where, where + 4, 4)],
        5: [(1, 0, ctypes.addressof(host), where, 8), (1, 0, where, ctypes.addressof(host), 8)],
    }
    wrong[1].append((1, 0, where, where, -1))
    for status, calls in wrong.items():
        for call in calls:
            _require_status(status, "vecsort_sort", *call, None)
    _require_status(1, "vecsort_scan", 1, 2, where, where, 8, None)
    _require_status(1, "vecsort_reduce", 1, 1, where, where, 0, None)
    _require_status(4, "vecsort_reduce", 1, 0, where, where, 8, None)
    _require_status(1, "vecsort_topk", 1, 0, where, 4, 5, where + 16, None, None)
    _require_status(1, "vecsort_sort_pairs", 1, 0, where, where, where, where, 3, 8, None)
    require_same(use.get(items), np.arange(8, dtype="f4"), "what was refused")
    vecsort.sort(items, descending=True)  # a refusal leaves nothing behind
    require_same(use.get(items), np.arange(8, dtype="f4")[::-1], "after refusals")


def _require_status(status: int, function: str, *arguments: object) -> None:
    try:
        library_for(0).call(function, *arguments)
    except vecsort.VecsortError as error:
        if error.status != status:
            raise AssertionError(
                f"expected status {status}, got {error.status}: {error}"
            ) from error
    else:
        raise AssertionError(f"{function}{arguments} was not refused")


def _require_raises(
    kind: type[Exception], function: Callable[..., object], *arguments: Any, **options: Any
) -> None:
    try:
        function(*arguments, **options)
    except kind:
        return
    raise AssertionError(f"{function.__name__} raised no {kind.__name__}")


def check_ten_million(use: Framework) -> None:
    """Ten million floats against ``numpy.sort``, and what they take."""
    keys = np.random.default_rng(2026).standard_normal(TEN_MILLION).astype("f4")
    source = use.put(keys)
    out = use.put(np.zeros_like(keys))
    vecsort.sort(source, out=out)
    require_same(use.get(out), np.sort(keys), "ten million floats")
    ours = min(use.timed(lambda: vecsort.sort(source, out=out)) for _ in range(10))
    theirs = min(use.timed(lambda: use.sort(source)) for _ in range(10))
    more = " (with indices)" if use.name == "torch" else ""
    say(
        f"   {TEN_MILLION:,} float32 equal numpy.sort; vecsort.sort takes {ours:.3f} ms, "
        f"{use.name}.sort{more} {theirs:.3f} ms (the fastest of 10, on the device's clock)"
    )


def check_huge(use: Framework, size: int) -> None:
    """Beyond what CUB does in one go, or as many items as there may be."""
    block = use.put(some_keys("int32", 2**27, seed=13))
    source = use.repeated(block, -(-size // 2**27))[:size]
    out = use.repeated(source, 1)
    vecsort.scan(source, out=out, exclusive=True)
    _require(((out[1:] - out[:-1]) == source[:-1]).all(), "a scan's differences are its items")
    vecsort.sort(source, out=out)
    _require((out[1:] >= out[:-1]).all(), "the sorted items are in order")
    same = all(
        int((source & mask).sum()) == int((out & mask).sum()) for mask in (0xFFFF, 0x7FFF0000)
    )
    _require(same, "the sorted items are the same")
    least = use.put(np.zeros(1000, "int32"))
    vecsort.topk(source, 1000, values_out=least, largest=False)
    _require((least == out[:1000]).all(), "the top-k are what a sort begins with")


def _require(condition: object, text: str) -> None:
    if not bool(condition):
        raise AssertionError(f"not so: {text}")


BY_TYPE = (check_sort, check_sort_pairs, check_argsort, check_scan, check_reduce, check_topk)
OTHERS = (
    check_streams,
    check_interface,
    check_threads,
    check_refusals,
    check_ten_million,
)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def tried(what: str, check: Callable[..., None], *arguments: object) -> bool:
    try:
        check(*arguments)
    except Exception:  # noqa: BLE001 (all checks are run, whatever one of them meets)
        say(f"FAILED {what}\n{traceback.format_exc()}")
        return False
    return True


def run_all(use: Framework) -> bool:
    good = True
    for check in BY_TYPE:
        start, results = time.perf_counter(), []
        for dtype in DTYPES:
            for size in SIZES:
                what = f"{check.__name__} {dtype} n={size}"
                results.append(tried(f"{use.name}: {what}", check, use, dtype, size))
        good = good and all(results)
        seconds = time.perf_counter() - start
        passed = f"{sum(results)} of {len(results)} (types x sizes) right"
        say(f"{use.name}: {check.__name__}: {passed}, {seconds:.1f} s")
    for other in OTHERS:
        passed_one = tried(f"{use.name}: {other.__name__}", other, use)
        good = good and passed_one
        say(f"{use.name}: {other.__name__}: {'right' if passed_one else 'WRONG'}")
    huge = [run_huge(use, size) for size in HUGE_SIZES]
    return good and all(huge)


def run_huge(use: Framework, size: int) -> bool:
    """Return whether it went well, or could not be tried and so says nothing."""
    what, needed, free = f"{use.name}: check_huge n={size:,}", 7 * 4 * size, use.free_memory()
    if free < needed:
        say(f"{what}: LEFT OUT, it needs {needed:,} bytes and {free:,} are free")
        return True
    passed = tried(what, check_huge, use, size)
    say(f"{what}: {'right' if passed else 'WRONG'}")
    return passed


def main() -> int:
    """Run every check with every array library; 1 if one fails, or without a library."""
    result = vecsort.self_test()
    say(
        f"self-test: {result.items:,} float32 on {result.device_name} ({result.capability}) in "
        f"{result.milliseconds:.3f} ms"
    )
    outcomes = [run_all(use) for use in frameworks()]
    if not outcomes:
        say("FAILED: there is neither torch nor cupy to make device arrays with")
        return 1
    return 0 if all(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
