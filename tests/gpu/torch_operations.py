"""Operations of PyTorch and torchvision for `operations_on_gpu.py`.

Each library of the stack has some: cuBLAS, cuBLASLt, cuDNN, cuFFT, cuSPARSE, cuSPARSELt, cuSOLVER,
NCCL, and PyTorch's own kernels, with training loops.
"""

from __future__ import annotations

import importlib
import itertools
import os
import tempfile
from functools import partial
from typing import TYPE_CHECKING, Any

from gpu_operation import Operation, digest_arrays, flatten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Parts = Iterator[tuple[str, str, Callable[[], Any]]]

# Without it cuBLAS may choose another algorithm from run to run.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

SIZES = ((64, 64, 64), (128, 256, 512), (1024, 1024, 1024), (2048, 33, 777), (17, 4096, 100))
SEQUENCE, WIDTH = 64, 32
TRAINING_STEPS = 20


def _module(name: str = "torch") -> Any:  # noqa: ANN401 (a module)
    return importlib.import_module(name)


def digest(value: Any) -> str:  # noqa: ANN401 (a tensor, or several)
    """Return the SHA-256 of the bytes of a tensor, or of several."""
    torch = _module()
    arrays = []
    for part in flatten(value):
        plain = part.detach().to("cpu")
        plain = plain.to_dense() if plain.layout != torch.strided else plain
        plain = torch.view_as_real(plain.resolve_conj()) if plain.is_complex() else plain
        # As bytes: NumPy has no bfloat16 and no float8.
        arrays.append(plain.contiguous().reshape(-1).view(dtype=torch.uint8).numpy())
    return digest_arrays(arrays)


def random(device: str, *shape: int, dtype: Any = None) -> Any:  # noqa: ANN401 (a tensor)
    """Return normal numbers that are the same for the same shape and type."""
    torch = _module()
    generator = torch.Generator().manual_seed(sum(shape))
    wide = torch.float64 if dtype in {torch.float64, torch.complex128} else torch.float32
    values = torch.randn(*shape, generator=generator, dtype=wide)
    # Made by the processor: a wrong kernel of another library must not change the operands.
    return values.to(dtype or torch.float32).to(device)


def operations(device: str) -> Iterator[Operation]:
    """Yield all operations."""
    parts = (
        _products,
        _quantized_products,
        _convolutions,
        _networks,
        _attention,
        _transforms,
        _decompositions,
        _sparse,
        _own_kernels,
        _vision,
        _communication,
        _training,
    )
    for part in parts:
        for name, libraries, run in part(partial(random, device), device):
            yield Operation(name=name, libraries=tuple(libraries.split()), run=run)


def _products(random: Any, device: str) -> Parts:  # noqa: ANN401 (a function of tensors)
    torch = _module()
    functional = torch.nn.functional
    kinds = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16}
    kinds |= {"bf16": torch.bfloat16, "c64": torch.complex64, "c128": torch.complex128}
    libraries = "cublas cublasLt"
    for name, dtype in kinds.items():
        for m, k, n in SIZES:
            yield (
                f"matmul {name} {m}x{k}x{n}",
                libraries,
                partial(_product, torch.matmul, random, (m, k), (k, n), dtype),
            )
        yield (
            f"bmm {name}",
            libraries,
            partial(_product, torch.bmm, random, (8, 65, 130), (8, 130, 70), dtype),
        )
        yield f"mv {name}", "cublas", partial(_product, torch.mv, random, (99, 50), (50,), dtype)
        yield f"dot {name}", "cublas", partial(_product, torch.dot, random, (999,), (999,), dtype)
    for name in ("f32", "f16", "bf16"):
        dtype = kinds[name]
        # All layouts, sizes with and without alignment: each takes other kernels of cuBLASLt.
        for (m, k, n), first, second in itertools.product(
            ((256, 256, 256), (1, 512, 512), (513, 129, 257), (4096, 64, 4096), (8, 8192, 8)),
            (False, True),
            (False, True),
        ):
            yield (
                f"linear {name} {m}x{k}x{n} {int(first)}{int(second)}",
                libraries,
                partial(_layouts, random, (m, k, n), dtype, first=first, second=second),
            )
        yield (
            f"addmm gelu {name}",
            libraries,
            partial(
                lambda d: torch._addmm_activation(
                    random(128, dtype=d),
                    random(64, 256, dtype=d),
                    random(256, 128, dtype=d),
                    use_gelu=True,
                ),
                dtype,
            ),
        )
        yield (
            f"linear with bias {name}",
            libraries,
            partial(
                lambda d: functional.linear(
                    random(96, 320, dtype=d), random(200, 320, dtype=d), random(200, dtype=d)
                ),
                dtype,
            ),
        )
        yield (
            f"baddbmm {name}",
            libraries,
            partial(
                lambda d: torch.baddbmm(
                    random(16, 30, 50, dtype=d),
                    random(16, 30, 40, dtype=d),
                    random(16, 40, 50, dtype=d),
                ),
                dtype,
            ),
        )
    yield "matmul tf32", libraries, partial(_tensor_float, random)
    del device


def _product(function: Any, random: Any, first: Any, second: Any, dtype: Any) -> Any:  # noqa: ANN401
    return function(random(*first, dtype=dtype), random(*second, dtype=dtype))


def _layouts(random: Any, sizes: Any, dtype: Any, *, first: bool, second: bool) -> Any:  # noqa: ANN401
    m, k, n = sizes
    left = random(k, m, dtype=dtype).T if first else random(m, k, dtype=dtype)
    right = random(n, k, dtype=dtype).T if second else random(k, n, dtype=dtype)
    return left @ right


def _tensor_float(random: Any) -> Any:  # noqa: ANN401 (tensors)
    torch = _module()
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        return [random(m, k) @ random(k, n) for m, k, n in SIZES]
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


def _quantized_products(random: Any, device: str) -> Parts:  # noqa: ANN401 (tensors)
    torch = _module()

    def eight_bits(m: int, k: int, n: int) -> Any:  # noqa: ANN401
        left = (random(m, k) * 20).to(torch.int8)
        right = (random(k, n) * 20).to(torch.int8)
        return torch._int_mm(left, right)

    def float8(m: int, k: int, n: int, kind: Any) -> Any:  # noqa: ANN401
        one = torch.ones((), device=device)
        left = random(m, k).to(torch.float8_e4m3fn)
        right = random(n, k).to(kind).T
        return torch._scaled_mm(left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

    for m, k, n in ((64, 64, 64), (256, 512, 128), (1024, 1024, 2048), (32, 4096, 64)):
        yield f"int8 {m}x{k}x{n}", "cublasLt", partial(eight_bits, m, k, n)
        for kind in (torch.float8_e4m3fn, torch.float8_e5m2):
            yield f"{kind} {m}x{k}x{n}", "cublasLt", partial(float8, m, k, n, kind)


def _convolutions(random: Any, device: str) -> Parts:  # noqa: ANN401 (tensors)
    torch = _module()
    functional = torch.nn.functional
    torch.backends.cudnn.deterministic = True
    kinds = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
    kinds["f64"] = torch.float64
    for name, d in kinds.items():
        for label, shape, weight, options in (
            ("plain", (4, 16, 40, 40), (32, 16, 3, 3), {"padding": 1}),
            ("stride", (4, 16, 40, 40), (32, 16, 5, 5), {"stride": 2}),
            ("dilation", (2, 8, 40, 40), (24, 8, 3, 3), {"dilation": 2}),
            ("groups", (2, 16, 30, 30), (32, 4, 3, 3), {"groups": 4}),
            ("depthwise", (2, 16, 30, 30), (16, 1, 3, 3), {"groups": 16}),
            ("1x1", (2, 64, 14, 14), (128, 64, 1, 1), {}),
            ("wide", (8, 64, 56, 56), (64, 64, 3, 3), {"padding": 1}),
        ):
            yield (
                f"conv2d {label} {name}",
                "cudnn",
                partial(
                    lambda s, w, o, d: functional.conv2d(
                        random(*s, dtype=d), random(*w, dtype=d), **o
                    ),
                    shape,
                    weight,
                    options,
                    d,
                ),
            )
        yield f"conv2d backward {name}", "cudnn", partial(_backward, random, d, last=False)
        yield f"conv2d channels last {name}", "cudnn", partial(_backward, random, d, last=True)
        yield (
            f"conv1d {name}",
            "cudnn",
            partial(
                lambda d: functional.conv1d(random(3, 8, 200, dtype=d), random(6, 8, 7, dtype=d)), d
            ),
        )
        yield (
            f"conv3d {name}",
            "cudnn",
            partial(
                lambda d: functional.conv3d(
                    random(2, 4, 9, 9, 9, dtype=d), random(6, 4, 3, 3, 3, dtype=d)
                ),
                d,
            ),
        )
        yield (
            f"conv_transpose2d {name}",
            "cudnn",
            partial(
                lambda d: functional.conv_transpose2d(
                    random(4, 16, 20, 20, dtype=d), random(16, 8, 3, 3, dtype=d)
                ),
                d,
            ),
        )
    del device


def _backward(random: Any, dtype: Any, *, last: bool) -> Any:  # noqa: ANN401 (tensors)
    torch = _module()
    form = torch.channels_last if last else torch.contiguous_format
    values = random(4, 16, 28, 28, dtype=dtype).to(memory_format=form).requires_grad_()
    weight = random(32, 16, 3, 3, dtype=dtype).to(memory_format=form).requires_grad_()
    result = torch.nn.functional.conv2d(values, weight, padding=1)
    result.sum().backward()
    return [result, values.grad, weight.grad]


def _networks(random: Any, device: str) -> Parts:  # noqa: ANN401 (tensors)
    torch = _module()
    functional = torch.nn.functional

    def recurrent(kind: str, dtype: Any, *, both_ways: bool) -> Any:  # noqa: ANN401
        torch.manual_seed(3)
        network = getattr(torch.nn, kind)(12, 20, num_layers=2, bidirectional=both_ways)
        network = network.to(device, dtype)
        values = random(7, 3, 12, dtype=dtype).requires_grad_()
        result = network(values)[0]
        result.sum().backward()
        return [result, values.grad, *(one.grad for one in network.parameters())]

    for kind in ("RNN", "GRU", "LSTM"):
        for dtype in (torch.float32, torch.float16):
            run = partial(recurrent, kind, dtype, both_ways=kind == "GRU")
            yield f"{kind} {dtype}", "cudnn", run
    yield "batch_norm", "cudnn", lambda: _normalized(random)
    yield "layer_norm", "torch", lambda: functional.layer_norm(random(4, 16, 40), (16, 40))
    yield "group_norm", "torch", lambda: functional.group_norm(random(4, 16, 40), 4)
    yield "max_pool2d", "torch", lambda: functional.max_pool2d(random(4, 16, 40, 40), 2)
    yield "avg_pool3d", "torch", lambda: functional.avg_pool3d(random(2, 4, 12, 12, 12), 2)
    yield (
        "ctc_loss",
        "cudnn",
        lambda: functional.ctc_loss(
            random(50, 4, 20).log_softmax(2),
            torch.arange(1, 41, dtype=torch.int32).remainder(19).add(1).to(device),
            torch.full((4,), 50, dtype=torch.int32),
            torch.full((4,), 10, dtype=torch.int32),
        ),
    )
    yield "grid_sample", "cudnn torch", lambda: _sampled(random)


def _normalized(random: Any) -> Any:  # noqa: ANN401 (tensors)
    values = random(4, 16, 40, 40).requires_grad_()
    result = _module().nn.functional.batch_norm(values, None, None, training=True)
    result.square().sum().backward()
    return [result, values.grad]


def _sampled(random: Any) -> Any:  # noqa: ANN401 (tensors)
    functional = _module().nn.functional
    grid = functional.affine_grid(random(2, 2, 3), (2, 3, 16, 16), align_corners=False)
    return functional.grid_sample(random(2, 3, 16, 16), grid, align_corners=False)


def _attention(random: Any, device: str) -> Parts:  # noqa: ANN401 (tensors)
    torch = _module()
    libraries = {
        "MATH": "cublas torch",
        "FLASH_ATTENTION": "torch",
        "EFFICIENT_ATTENTION": "torch",
        "CUDNN_ATTENTION": "cudnn",
    }
    for (backend, library), causal in itertools.product(libraries.items(), (False, True)):
        yield (
            f"attention {backend} {int(causal)}",
            library,
            partial(_attend, torch, random, backend, causal=causal),
        )
    del device


def _attend(torch: Any, random: Any, backend: str, *, causal: bool) -> Any:  # noqa: ANN401
    attention = _module("torch.nn.attention")
    parts = [
        random(2, 4, SEQUENCE, WIDTH + i, dtype=torch.bfloat16)[..., :WIDTH].contiguous()
        for i in range(3)
    ]
    query = parts[0].requires_grad_()
    with attention.sdpa_kernel([getattr(attention.SDPBackend, backend)]):
        return torch.nn.functional.scaled_dot_product_attention(query, *parts[1:], is_causal=causal)


def _transforms(random: Any, device: str) -> Parts:  # noqa: ANN401 (tensors)
    torch = _module()
    for name, d in {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16}.items():
        # Powers of two, other small primes, a large prime; half precision has only the first.
        for size in (64, 1024, 65536) if name == "f16" else (64, 1000, 1009, 2187, 65536):
            yield (
                f"rfft {name} {size}",
                "cufft",
                partial(lambda s, d: torch.fft.rfft(random(7, s, dtype=d)), size, d),
            )
            yield (
                f"ifft {name} {size}",
                "cufft",
                partial(lambda s, d: torch.fft.ifft(torch.fft.fft(random(3, s, dtype=d))), size, d),
            )
    yield "rfft2", "cufft", lambda: torch.fft.rfft2(random(60, 64))
    yield "fftn", "cufft", lambda: torch.fft.fftn(random(16, 20, 24))
    yield "stft", "cufft", lambda: torch.stft(random(4000), 256, return_complex=True)
    del device


def _decompositions(random: Any, device: str) -> Parts:  # noqa: ANN401 (tensors)
    torch = _module()
    linear = torch.linalg

    def square(d: Any, size: int = 60) -> Any:  # noqa: ANN401
        return random(size, size, dtype=d)

    def positive(d: Any) -> Any:  # noqa: ANN401
        values = square(d)
        return values @ values.mH + 60 * torch.eye(60, device=device, dtype=d)

    for name, d in {"f32": torch.float32, "f64": torch.float64, "c64": torch.complex64}.items():
        for label, libraries, run in (
            ("svd", "cusolver", lambda d: linear.svd(square(d))),
            ("svdvals", "cusolver", lambda d: linear.svdvals(square(d))),
            ("eigh", "cusolver", lambda d: linear.eigh(positive(d))),
            ("eigvalsh", "cusolver", lambda d: linear.eigvalsh(positive(d))),
            ("qr", "cusolver", lambda d: linear.qr(square(d))),
            ("cholesky", "cusolver", lambda d: linear.cholesky(positive(d))),
            ("lu", "cusolver", lambda d: linear.lu(square(d))),
            ("solve", "cusolver cublas", lambda d: linear.solve(positive(d), square(d))),
            ("inv", "cusolver cublas", lambda d: linear.inv(positive(d))),
            ("det", "cusolver", lambda d: linear.det(square(d, 9))),
            ("lstsq", "cusolver cublas", lambda d: linear.lstsq(square(d), square(d)).solution),
            ("ldl", "cusolver", lambda d: linear.ldl_factor(positive(d)).LD),
            (
                "triangular",
                "cublas",
                lambda d: linear.solve_triangular(positive(d).triu(), square(d), upper=True),
            ),
            ("inv batched", "cublas", lambda d: linear.inv(random(200, 8, 8, dtype=d))),
            ("qr batched", "cublas cusolver", lambda d: linear.qr(random(200, 8, 8, dtype=d))),
        ):
            yield f"{label} {name}", libraries, partial(run, d)


def _sparse(random: Any, device: str) -> Parts:  # noqa: ANN401 (tensors)
    torch = _module()

    def rows(d: Any) -> Any:  # noqa: ANN401
        values = random(60, 60, dtype=d)
        return (values * (values.abs() > 1)).to_sparse_csr()

    for name, d in {"f32": torch.float32, "f64": torch.float64, "c64": torch.complex64}.items():
        for label, run in (
            ("csr mm", lambda d: rows(d) @ random(60, 20, dtype=d)),
            ("csr mv", lambda d: rows(d) @ random(60, dtype=d)),
            ("csr csr", lambda d: rows(d) @ rows(d)),
            ("coo mm", lambda d: torch.sparse.mm(rows(d).to_sparse_coo(), random(60, 20, dtype=d))),
            (
                "sampled",
                lambda d: torch.sparse.sampled_addmm(
                    rows(d), random(60, 30, dtype=d), random(30, 60, dtype=d)
                ),
            ),
            ("add", lambda d: rows(d) + rows(d)),
            (
                "triangular",
                lambda d: torch.triangular_solve(
                    random(60, 2, dtype=d),
                    (torch.eye(60, device=device, dtype=d) * 3).to_sparse_csr(),
                ).solution,
            ),
            (
                "blocks",
                lambda d: random(64, 64, dtype=d).to_sparse_bsr((8, 8)) @ random(64, 8, dtype=d),
            ),
        ):
            yield f"sparse {label} {name}", "cusparse", partial(run, d)
    for d in (torch.float16, torch.bfloat16, torch.int8):
        yield f"semi-structured {d}", "cusparseLt", partial(_semi_structured, random, d)


def _semi_structured(random: Any, dtype: Any) -> Any:  # noqa: ANN401 (tensors)
    torch, sparse = _module(), _module("torch.sparse")
    # Two of four values are zero, as the format needs it.
    mask = torch.tensor([0, 0, 1, 1]).tile((128, 64)).to(torch.bool)
    values = (random(128, 256) * 4).to(dtype)
    kept = values.masked_fill(~mask.to(values.device), 0)
    factor = (random(128, 256) * 4).to(dtype)
    sparse.SparseSemiStructuredTensor._FORCE_CUTLASS = False
    return torch.mm(sparse.to_sparse_semi_structured(kept), factor.T)


def _own_kernels(random: Any, device: str) -> Parts:  # noqa: ANN401 (tensors)
    torch = _module()
    functional = torch.nn.functional
    image = partial(random, 4, 16, 40, 40)
    for name, run in {
        "add": lambda: image() + 1,
        "exp": lambda: image().exp(),
        "softmax": lambda: torch.softmax(image(), dim=1),
        "gelu": lambda: functional.gelu(image()),
        "sort": lambda: torch.sort(image().flatten()),
        "topk": lambda: torch.topk(image().flatten(), 50),
        "sum": lambda: image().sum(),
        "cumsum": lambda: image().flatten().cumsum(0),
        "unique": lambda: torch.unique((image() * 3).long()),
        "histc": lambda: torch.histc(image(), 50),
        "median": lambda: image().median(),
        "nonzero": lambda: (image() > 1).nonzero(),
        "gather": lambda: image().gather(1, torch.zeros(4, 3, 40, 40, device=device).long()),
        "index_add": lambda: torch.zeros(9, 5, device=device, dtype=torch.long).index_add(
            0, torch.arange(90, device=device) % 9, torch.ones(90, 5, device=device).long()
        ),
        "embedding": lambda: functional.embedding(torch.arange(50, device=device), random(60, 8)),
        "interpolate": lambda: functional.interpolate(image(), scale_factor=1.7, mode="bicubic"),
        "cross_entropy": lambda: functional.cross_entropy(
            random(40, 9), torch.arange(40, device=device) % 9
        ),
        "cdist": lambda: torch.cdist(random(30, 7), random(40, 7)),
        "normal": lambda: torch.randn(1000, device=device, generator=_generator(device)),
        "uniform": lambda: torch.rand(1000, device=device, generator=_generator(device)),
        "randperm": lambda: torch.randperm(5000, device=device, generator=_generator(device)),
        "multinomial": lambda: torch.multinomial(
            torch.ones(50, device=device), 20, generator=_generator(device)
        ),
        "dropout": lambda: (torch.manual_seed(1), functional.dropout(image()))[1],
        "einsum": lambda: torch.einsum("bchw,cd->bdhw", image(), random(16, 5)),
        "compiled": lambda: torch.compile(lambda x: (x.sin() * x.cos()).sum(1))(image()),
    }.items():
        yield name, "torch", run


def _generator(device: str) -> Any:  # noqa: ANN401 (a generator)
    return _module().Generator(device=device).manual_seed(1)


def _vision(random: Any, device: str) -> Parts:  # noqa: ANN401 (tensors)
    def boxes() -> Any:  # noqa: ANN401
        corners = random(100, 2).abs() * 20
        return _module().cat([corners, corners + random(100, 2).abs() * 10 + 1], dim=1)

    def call(name: str, *values: Any, **options: Any) -> Any:  # noqa: ANN401
        return getattr(_module("torchvision.ops"), name)(*values, **options)

    yield "nms", "torchvision", lambda: call("nms", boxes(), random(100), 0.3)
    yield (
        "roi_align",
        "torchvision",
        lambda: call("roi_align", random(1, 5, 32, 32), [boxes()[:9]], output_size=4),
    )
    yield (
        "deform_conv2d",
        "torchvision cublas",
        lambda: call(
            "deform_conv2d", random(1, 3, 12, 12), random(1, 18, 10, 10), random(4, 3, 3, 3)
        ),
    )
    del device


def _communication(random: Any, device: str) -> Parts:  # noqa: ANN401 (tensors)
    yield "all-reduce of one rank", "nccl", lambda: _reduce(random, device, scaled=False)
    # Only a product of the sum runs a kernel of NCCL where there is one rank.
    yield "scaled all-reduce of one rank", "nccl", lambda: _reduce(random, device, scaled=True)


def _reduce(random: Any, device: str, *, scaled: bool) -> Any:  # noqa: ANN401 (a tensor)
    distributed = _module("torch.distributed")
    if not distributed.is_initialized():
        name = tempfile.mktemp()
        backend = "gloo" if device == "cpu" else "nccl"
        distributed.init_process_group(backend, init_method=f"file://{name}", rank=0, world_size=1)
    values = random(1000)
    how = distributed._make_nccl_premul_sum(2.0) if scaled else distributed.ReduceOp.SUM
    distributed.all_reduce(values, op=how)
    return values


def _training(random: Any, device: str) -> Parts:  # noqa: ANN401 (tensors)
    torch = _module()
    network = torch.nn
    yield (
        "train a perceptron",
        "torch cublas",
        lambda: _train(
            lambda: [
                network.Flatten(),
                network.Linear(192, 64),
                network.ReLU(),
                network.Linear(64, 5),
            ],
            device,
        ),
    )
    yield (
        "train a convolution",
        "torch cublas cudnn",
        lambda: _train(
            lambda: [
                network.Conv2d(3, 8, 3),
                network.BatchNorm2d(8),
                network.ReLU(),
                network.Flatten(),
                network.Linear(288, 5),
            ],
            device,
        ),
    )
    yield (
        "train a transformer",
        "torch cublas cublasLt",
        lambda: _train(
            lambda: [
                network.Flatten(1, 2),
                network.Linear(8, 32),
                network.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True),
                network.Flatten(),
                network.Linear(768, 5),
            ],
            device,
        ),
    )
    del random


def _train(layers: Callable[[], list[Any]], device: str) -> Any:  # noqa: ANN401 (tensors)
    torch = _module()
    torch.manual_seed(4)
    network = torch.nn.Sequential(*layers()).to(device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
    values = torch.randn(32, 3, 8, 8).to(device)
    labels = torch.arange(32, device=device) % 5
    for _ in range(TRAINING_STEPS):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(values), labels).backward()
        optimizer.step()
    return list(network.parameters())
