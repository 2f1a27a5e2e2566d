"""Compiler flags that a recipe may have; `test_recipe_faults` has the messages of refusals."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from archsplit.recipe.values import HostFlag, NvccFlag

REFUSED_BY_NVCC = """
    -arch=sm_90 --gpu-code=sm_90 -std=c++20 -Xcompiler=-O2 -Ix -Dx -Lx -lx --library=x
    -time=y --time=y -fdevice-time-trace=y -M -MM -MD -MMD -MP -MF=x -MT=x --dependency-output=x
    --generate-dependencies --generate-dependencies-with-compile -save-temps --save-temps -keep
    -enable-tile --enable-tile
    -optf=x --options-file=x @x -x=cu --x=cu -dlto --dlink-time-opt -lto -ewp
    --extensible-whole-program -rdc=false -dlink -cudadevrt=none -isystem=x -include=x x
    -march=native -mtune=native -hls=gen-lcs
"""
REFUSED_BY_HOST = """
    -c -S -E -o -ox -M -MD -MF -MFx -MTx -save-temps -save-temps=obj --save-temps -time -time=x
    -x -xc @x -include -imacros -isystem -iquotex --sysroot=x -isysroot -specs=x --specs=x
    -aux-info -dumpdir -fdump-tree-all --coverage -march=native -mcpu=native -std=c++20 -Ix x -Wl,x
"""
TAKEN_BY_NVCC = """
    -O3 -G -lineinfo --generate-line-info -Xptxas=-v,-O3 --use_fast_math -maxrregcount=32
    --extended-lambda --expt-relaxed-constexpr --diag-suppress=177 -Xfatbin=-compress-all -m64
    -rdc=true --relocatable-device-code=true -dc --device-c
"""
TAKEN_BY_HOST = "-Wall -O3 -fopenmp -march=x86-64-v3 -mavx2 -fno-math-errno -g -pthread"

nvcc_flag: TypeAdapter[str] = TypeAdapter(NvccFlag)
host_flag: TypeAdapter[str] = TypeAdapter(HostFlag)


@pytest.mark.parametrize("flag", REFUSED_BY_NVCC.split())
def test_other_nvcc_flags_are_refused(flag: str) -> None:
    with pytest.raises(ValidationError):
        nvcc_flag.validate_python(flag)


@pytest.mark.parametrize("flag", REFUSED_BY_HOST.split())
def test_other_host_flags_are_refused(flag: str) -> None:
    with pytest.raises(ValidationError):
        host_flag.validate_python(flag)


def test_known_flags_are_taken() -> None:
    assert all(nvcc_flag.validate_python(flag) == flag for flag in TAKEN_BY_NVCC.split())
    assert all(host_flag.validate_python(flag) == flag for flag in TAKEN_BY_HOST.split())
