"""Lists of targets in the forms that build systems read.

In: targets. Out: the value of PyTorch's ``TORCH_CUDA_ARCH_LIST``, of CMake's ``CUDAARCHS``, and
nvcc's own flags. Sources: ``torch.utils.cpp_extension`` and CMake's property CUDA_ARCHITECTURES.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from archsplit.arch.target import CodeKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from archsplit.arch.target import Target

__pure__ = True


def torch_arch_list(targets: Iterable[Target]) -> str:
    """Return the list for PyTorch's extensions: ``8.0;9.0a;12.0+PTX``.

    PTX always has machine code of its own capability beside it there.
    """
    portable: dict[str, bool] = {}
    for target in sorted(targets):
        name = f"{target.capability}{target.suffix}"
        portable[name] = portable.get(name, False) or target.kind is CodeKind.PTX
    return ";".join(f"{name}+PTX" if ptx else name for name, ptx in portable.items())


def cmake_architectures(targets: Iterable[Target]) -> str:
    """Return the list for CMake: ``80-real;90a-real;120-virtual``."""
    return ";".join(
        f"{target.capability.sm_number}{target.suffix}-"
        + ("real" if target.kind is CodeKind.SASS else "virtual")
        for target in sorted(targets)
    )


def gencode_flags(targets: Iterable[Target]) -> str:
    """Return nvcc's flags, one word for each target: ``-gencode=arch=compute_90,code=sm_90``."""
    return " ".join(
        f"-gencode=arch=compute_{target.capability.sm_number}{target.suffix},code={target}"
        for target in sorted(targets)
    )
