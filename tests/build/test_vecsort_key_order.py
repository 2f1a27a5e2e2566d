"""The order of keys that vecsort's sorts promise: its C++, compiled for the host, against NumPy."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

RECIPE = Path(__file__).parents[2] / "recipes" / "vecsort"

# Reads keys, writes their codes, and what the codes decode to.
PROGRAM = """
#include <cstddef>
#include <cstdio>
#include "key_order.cuh"

template <class Bits> static int map_all(vecsort::KeyOrder<Bits> order) {
    Bits key;
    while (std::fread(&key, sizeof key, 1, stdin) == 1) {
        const Bits code = order.encode(key);
        const Bits decoded = order.decode(code);
        std::fwrite(&code, sizeof code, 1, stdout);
        std::fwrite(&decoded, sizeof decoded, 1, stdout);
    }
    return 0;
}

int main(int, char **argv) {
    return vecsort::with_order(argv[1][0] - '0', argv[2][0] - '0',
                               [](auto order) { return map_all(order); });
}
"""

DTYPES = {"float32": 1, "float64": 2, "int32": 3, "int64": 4, "uint32": 5, "uint64": 6}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("key_order")
    (folder / "program.cpp").write_text(PROGRAM)
    options = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-D__host__=", "-D__device__="]
    includes = ["-I", str(RECIPE / "include"), "-I", str(RECIPE / "src")]
    files = [str(folder / "program.cpp"), "-o", str(folder / "program")]
    subprocess.run(["g++", *options, *includes, *files], check=True)
    return folder / "program"


def keys_of(dtype: str) -> np.ndarray[Any, Any]:
    """Random bits, which are many NaNs of both signs, and what lies at the edges."""
    bits = f"u{np.dtype(dtype).itemsize}"
    random = np.random.default_rng(7).integers(0, 2 ** (8 * int(bits[1:])), 20_000, dtype=bits)
    edges: list[Any] = [0, 1]
    if dtype.startswith("float"):
        info = np.finfo(dtype)
        positive = [0.0, 1.0, info.max, info.tiny, info.smallest_subnormal, np.inf, np.nan]
        edges = [*positive, *(-np.array(positive, dtype))]
    else:
        edges += [np.iinfo(dtype).min, np.iinfo(dtype).max]
    return np.concatenate([random.view(dtype), np.array(edges, dtype)])


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_codes_sort_as_keys_do(program: Path, dtype: str, *, descending: bool) -> None:
    keys = keys_of(dtype)
    bits = f"u{keys.itemsize}"
    done = subprocess.run(
        [str(program), str(DTYPES[dtype]), str(int(descending))],
        input=keys.tobytes(),
        capture_output=True,
        check=True,
    )
    codes, decoded = np.frombuffer(done.stdout, bits).reshape(-1, 2).T
    np.testing.assert_array_equal(decoded, keys.view(bits))
    by_code = keys[np.argsort(codes, kind="stable")]
    if descending:
        by_code = by_code[::-1]
    np.testing.assert_array_equal(by_code, np.sort(keys))  # NaNs last, whatever their sign
    if dtype.startswith("float"):
        zeros = by_code[by_code == 0]
        assert np.signbit(zeros).tolist() == sorted(np.signbit(zeros), reverse=True)
    assert len(np.unique(codes)) == len(np.unique(keys.view(bits)))
