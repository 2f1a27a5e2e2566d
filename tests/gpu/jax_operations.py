"""Operations of JAX for `operations_on_gpu.py`."""

from __future__ import annotations

import importlib
import os
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from gpu_operation import Operation, digest_arrays, flatten

if TYPE_CHECKING:
    from collections.abc import Iterator

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
# Autotuning chooses algorithms by time: other bytes from run to run.
os.environ.setdefault("XLA_FLAGS", "--xla_gpu_autotune_level=0")


def _module(name: str = "jax") -> Any:  # noqa: ANN401 (a module)
    return importlib.import_module(name)


def digest(value: Any) -> str:  # noqa: ANN401 (an array, or several)
    """Return the SHA-256 of the bytes of an array, or of several."""
    return digest_arrays([np.asarray(part) for part in flatten(value)])


def random(*shape: int, dtype: str = "float32") -> Any:  # noqa: ANN401 (an array)
    """Return normal numbers that are the same for the same shape."""
    values = np.random.default_rng(sum(shape)).standard_normal(shape)
    return _module("jax.numpy").asarray(values, dtype=dtype)


def operations(device: str) -> Iterator[Operation]:
    """Yield all operations."""
    del device
    jax, jnp = _module(), _module("jax.numpy")
    jax.config.update("jax_enable_x64", True)  # noqa: FBT003 (JAX's own signature)
    for name, libraries, run in (*_dense(jax, jnp), *_others(jax, jnp)):
        yield Operation(name=f"jax {name}", libraries=tuple(libraries.split()), run=run)


def _dense(jax: Any, jnp: Any) -> Iterator[tuple[str, str, Any]]:  # noqa: ANN401 (modules)
    for d in ("float32", "float64", "float16", "bfloat16", "complex64"):
        yield (
            f"matmul {d}",
            "jax cublas cublasLt",
            partial(lambda d: random(128, 256, dtype=d) @ random(256, 64, dtype=d), d),
        )
        yield (
            f"batched {d}",
            "jax cublas cublasLt",
            partial(lambda d: random(5, 33, 40, dtype=d) @ random(5, 40, 17, dtype=d), d),
        )
    for d in ("float32", "float16", "bfloat16"):
        yield (
            f"conv {d}",
            "jax cudnn",
            partial(
                lambda d: jax.lax.conv(
                    random(2, 8, 30, 30, dtype=d), random(16, 8, 3, 3, dtype=d), (1, 1), "SAME"
                ),
                d,
            ),
        )
    for d in ("float32", "float64"):
        for name in ("svd", "eigh", "qr", "inv"):
            yield (
                f"{name} {d}",
                "jax cusolver",
                partial(
                    lambda n, d: list(getattr(jnp.linalg, n)(_positive(jnp, d)))
                    if n != "inv"
                    else jnp.linalg.inv(_positive(jnp, d)),
                    name,
                    d,
                ),
            )
        yield (
            f"cholesky {d}",
            "jax cusolver",
            partial(lambda d: jnp.linalg.cholesky(_positive(jnp, d)), d),
        )
        yield f"fft {d}", "jax cufft", partial(lambda d: jnp.fft.rfft(random(5, 1000, dtype=d)), d)


def _positive(jnp: Any, dtype: str) -> Any:  # noqa: ANN401 (an array)
    values = random(40, 40, dtype=dtype)
    return values @ values.T + 40 * jnp.eye(40, dtype=dtype)


def _others(jax: Any, jnp: Any) -> Iterator[tuple[str, str, Any]]:  # noqa: ANN401 (modules)
    yield "fft2", "jax cufft", lambda: jnp.fft.fft2(random(30, 32))
    yield "sort", "jax", lambda: jnp.sort(random(10000))
    yield "softmax", "jax", lambda: jax.nn.softmax(random(20, 30))
    yield "random", "jax", lambda: jax.random.normal(jax.random.key(1), (1000,))
    yield (
        "scan",
        "jax cublas",
        lambda: jax.lax.scan(lambda c, x: ((c + x) @ random(9, 9), c), random(9), random(20, 9))[1],
    )
    yield (
        "triangular",
        "jax cublas",
        lambda: jax.scipy.linalg.solve_triangular(_positive(jnp, "float32"), random(40, 3)),
    )
    yield "lu", "jax cusolver", lambda: list(jax.scipy.linalg.lu_factor(_positive(jnp, "float32")))
    yield (
        "sparse",
        "jax cusparse",
        lambda: _module("jax.experimental.sparse").BCOO.fromdense(jnp.eye(40))
        @ random(40, 3, dtype="float64"),
    )
    yield "attention", "jax cudnn", _attention
    yield "train", "jax cublas", lambda: _train(jax, jnp)


def _attention() -> Any:  # noqa: ANN401 (an array)
    parts = [random(2, 64, 4, 32 + i, dtype="bfloat16")[..., :32] for i in range(3)]
    return _module("jax.nn").dot_product_attention(*parts, implementation="cudnn")


def _train(jax: Any, jnp: Any) -> Any:  # noqa: ANN401 (an array)
    values, wanted = random(64, 20), random(64, 3)

    def step(weights: Any) -> Any:  # noqa: ANN401
        def loss(these: Any) -> Any:  # noqa: ANN401
            return jnp.mean((jnp.tanh(values @ these[0]) @ these[1] - wanted) ** 2)

        slopes = jax.grad(loss)(weights)
        return [one - 0.1 * slope for one, slope in zip(weights, slopes, strict=True)]

    weights = [random(20, 16), random(16, 3)]
    compiled = jax.jit(step)
    for _ in range(20):
        weights = compiled(weights)
    return weights
