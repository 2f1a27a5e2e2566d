"""Print the SHA-256 of the results of many operations of PyTorch, as JSON.

``python tests/gpu/operations_on_gpu.py`` runs each operation with fixed seeds on the GPU. Each
library of the stack has some: cuBLAS and cuBLASLt, cuDNN, cuFFT, cuSPARSE, cuSOLVER, cuRAND, and
PyTorch's own kernels, with two training loops. ``--device cpu`` tries the program without a GPU.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Without it cuBLAS may choose another algorithm from run to run.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

SIZES = ((64, 64, 64), (128, 256, 512), (1024, 1024, 1024), (2048, 33, 777), (17, 4096, 100))


def digest(value: Any) -> str:  # noqa: ANN401 (a tensor, or several)
    """Return the SHA-256 of the bytes of a tensor, or of several."""
    parts = value if isinstance(value, (tuple, list)) else (value,)
    hashed = hashlib.sha256()
    for part in parts:
        plain = part.detach().to("cpu").contiguous()
        hashed.update(plain.reshape(-1).view(dtype=_torch().uint8).numpy().tobytes())
    return hashed.hexdigest()


def _torch() -> Any:  # noqa: ANN401 (a module)
    return importlib.import_module("torch")


def operations(device: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the names and functions of all operations."""
    torch = _torch()
    functional = torch.nn.functional

    def random(*shape: int, dtype: Any = None) -> Any:  # noqa: ANN401 (a tensor)
        torch.manual_seed(sum(shape))
        return torch.randn(*shape, device=device).to(dtype or torch.float32)

    kinds = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16}
    kinds["bf16"] = torch.bfloat16
    for name, dtype in kinds.items():
        for m, k, n in SIZES:
            factors = partial(_random_pair, random, (m, k), (k, n), dtype)
            yield f"matmul {name} {m}x{k}x{n}", partial(_product, torch.matmul, factors)
        several = partial(_random_pair, random, (8, 65, 130), (8, 130, 70), dtype)
        yield f"bmm {name}", partial(_product, torch.bmm, several)
    image, weight = random(4, 16, 40, 40), random(32, 16, 3, 3)
    yield "conv2d", lambda: functional.conv2d(image, weight, padding=1)
    yield "conv2d f16", lambda: functional.conv2d(image.half(), weight.half(), padding=1)
    yield "conv_transpose2d", lambda: functional.conv_transpose2d(image, random(16, 8, 3, 3))
    yield "conv3d", lambda: functional.conv3d(random(2, 4, 9, 9, 9), random(6, 4, 3, 3, 3))
    yield "batch_norm", lambda: functional.batch_norm(image, None, None, training=True)
    yield "layer_norm", lambda: functional.layer_norm(image, image.shape[1:])
    yield "max_pool2d", lambda: functional.max_pool2d(image, 2)
    yield "attention", lambda: functional.scaled_dot_product_attention(*[random(2, 4, 64, 32)] * 3)
    yield "softmax", lambda: torch.softmax(image, dim=1)
    yield "gelu", lambda: functional.gelu(image)
    yield "sort", lambda: torch.sort(image.flatten())
    yield "topk", lambda: torch.topk(image.flatten(), 50)
    yield "sum", lambda: image.sum()
    yield "fft", lambda: torch.view_as_real(torch.fft.fft(random(100, 1000)))
    yield "rfft2", lambda: torch.view_as_real(torch.fft.rfft2(random(60, 64)))
    square = random(60, 60)
    positive = square @ square.T + 60 * torch.eye(60, device=device)
    yield "svd", lambda: torch.linalg.svdvals(square)
    yield "eigh", lambda: torch.linalg.eigvalsh(positive)
    yield "qr", lambda: torch.linalg.qr(square)
    yield "cholesky", lambda: torch.linalg.cholesky(positive)
    yield "solve", lambda: torch.linalg.solve(positive, square)
    yield "inverse", lambda: torch.linalg.inv(positive)
    yield "sparse", lambda: torch.sparse.mm((square * (square > 1)).to_sparse_csr(), square)
    yield "normal", lambda: random(1000)
    yield "randperm", lambda: (torch.manual_seed(1), torch.randperm(5000, device=device))[1]
    yield "rnn", lambda: _recurrent(torch, device, random(7, 3, 12))
    yield "train a perceptron", lambda: _train(torch, device, convolution=False)
    yield "train a convolution", lambda: _train(torch, device, convolution=True)


def _random_pair(random: Any, first: Any, second: Any, dtype: Any) -> Any:  # noqa: ANN401 (tensors)
    return random(*first, dtype=dtype), random(*second, dtype=dtype)


def _product(function: Callable[..., Any], factors: Callable[[], Any]) -> Any:  # noqa: ANN401
    return function(*factors())


def _recurrent(torch: Any, device: str, values: Any) -> Any:  # noqa: ANN401 (tensors)
    torch.manual_seed(3)
    network = torch.nn.LSTM(12, 20, num_layers=2).to(device)
    return network(values)[0]


def _train(torch: Any, device: str, *, convolution: bool) -> Any:  # noqa: ANN401 (tensors)
    torch.manual_seed(4)
    layers = (
        [torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 5)]
        if convolution
        else [torch.nn.Flatten(), torch.nn.Linear(192, 64), torch.nn.ReLU(), torch.nn.Linear(64, 5)]
    )
    network = torch.nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
    values = torch.randn(32, 3, 8, 8, device=device)
    labels = torch.arange(32, device=device) % 5
    for _ in range(20):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(values), labels).backward()
        optimizer.step()
    return list(network.parameters())


def result_of(operation: Callable[[], Any]) -> str:
    """Return the digest of an operation's result, or its error."""
    try:
        return digest(operation())
    # What a library without its code raises is the result that is looked for.
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}"


def main() -> None:
    """Run all operations; print a digest, or the error, of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    results: dict[str, str] = {}
    for name, operation in operations(arguments.device):
        results[name] = result_of(operation)
    print(json.dumps(results))  # noqa: T201 - the output of this program


if __name__ == "__main__":
    main()
