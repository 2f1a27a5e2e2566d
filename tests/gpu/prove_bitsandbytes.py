"""Prove on a GPU that a slimmed bitsandbytes computes the same bytes: its own calls, both ways.

``python tests/gpu/prove_bitsandbytes.py FAT SLIM OTHER`` gets three folders with the package
unpacked: the wheel of the index, the same slimmed for this GPU, and, as a check of the check,
slimmed for another GPU, which has to fail. It needs Python with PyTorch; no network.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

CALLS = r"""
import hashlib, json
import torch
import bitsandbytes as bnb
import bitsandbytes.functional as F

def digest(*tensors):
    torch.cuda.synchronize()
    found = hashlib.sha256()
    for one in tensors:
        found.update(one.detach().contiguous().view(torch.uint8).cpu().numpy().tobytes())
    return found.hexdigest()[:16]

torch.manual_seed(7)
results = {}
for kind in (torch.float32, torch.float16, torch.bfloat16):
    x = torch.randn(1024, 1024, device="cuda").to(kind)
    for block in (64, 256, 1024, 4096):
        codes, state = F.quantize_blockwise(x, blocksize=block)
        back = F.dequantize_blockwise(codes, state, blocksize=block)
        results[f"blockwise {kind} {block}"] = digest(codes, state.absmax, back)
    for quant in ("nf4", "fp4"):
        for block in (64, 256):
            codes, state = F.quantize_4bit(x, blocksize=block, quant_type=quant)
            back = F.dequantize_4bit(codes, state)
            results[f"{quant} {kind} {block}"] = digest(codes, state.absmax, back)
        codes, state = F.quantize_4bit(x, blocksize=64, quant_type=quant, compress_statistics=True)
        results[f"{quant} {kind} nested"] = digest(codes, F.dequantize_4bit(codes, state))
        row = torch.randn(1, 1024, device="cuda").to(kind)
        product = bnb.matmul_4bit(row, codes.t(), quant_state=state)
        results[f"{quant} {kind} product with a row"] = digest(product)
        product = bnb.matmul_4bit(x[:128], codes.t(), quant_state=state)
        results[f"{quant} {kind} product"] = digest(product)
x = torch.randn(512, 1024, device="cuda", dtype=torch.float16)
y = torch.randn(768, 1024, device="cuda", dtype=torch.float16)
first, first_scale, _ = F.int8_vectorwise_quant(x)
second, second_scale, _ = F.int8_vectorwise_quant(y)
results["int8 rows"] = digest(first, first_scale)
product = F.int8_linear_matmul(first, second)
results["int8 product"] = digest(product)
results["int8 result"] = digest(F.int8_mm_dequant(product, first_scale, second_scale))
linear = bnb.nn.Linear8bitLt(1024, 256, has_fp16_weights=False, threshold=6.0).cuda()
results["Linear8bitLt"] = digest(linear(x))
linear = bnb.nn.Linear4bit(1024, 256, quant_type="nf4", compute_dtype=torch.bfloat16).cuda()
results["Linear4bit"] = digest(linear(x.bfloat16()))
eight = ("Adam8bit", "AdamW8bit", "SGD8bit", "Lion8bit", "RMSprop8bit", "Adagrad8bit")
for name in (*eight, "AdEMAMix8bit", "Adam32bit", "Lion32bit"):
    weight = torch.nn.Parameter(torch.randn(64, 4096, device="cuda"))
    options = {"momentum": 0.9} if name == "SGD8bit" else {}
    optimizer = getattr(bnb.optim, name)([weight], lr=1e-3, **options)
    for step in range(5):
        weight.grad = torch.sin(weight.detach() * (step + 1))
        optimizer.step()
    results[name] = digest(weight)
packs = [line.split()[-1] for line in open("/proc/self/maps") if "libbitsandbytes" in line]
print(json.dumps({"library": packs[0], "results": results}))
"""


def run(folder: str) -> tuple[dict[str, str], str]:
    """Return the digests of all calls, and the library or the last words of an error."""
    environment = {**os.environ, "PYTHONPATH": folder}
    command = [sys.executable, "-c", CALLS]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=140
    )
    if done.returncode:
        return {}, (done.stderr or done.stdout).strip()[-400:]
    found = json.loads(done.stdout.splitlines()[-1])
    return found["results"], found["library"]


def main() -> int:
    """Compare; return 1 if a result differs, and if the check of the check passes."""
    fat_folder, slim_folder, other_folder = sys.argv[1:4]
    fat, fat_text = run(fat_folder)
    again, _ = run(fat_folder)
    slim, slim_text = run(slim_folder)
    other, other_text = run(other_folder)
    varying = sorted(name for name in fat if again.get(name) != fat[name])
    different = sorted(name for name in fat if name not in varying and slim.get(name) != fat[name])
    for text in (fat_text, slim_text, f"for another GPU: {other_text}"):
        print(text)  # noqa: T201 - the report
    print(f"{len(fat)} results, {len(varying)} vary by themselves: {varying}")  # noqa: T201
    print(f"{len(different)} differ after slim: {different}")  # noqa: T201
    return 1 if different or not fat or len(slim) != len(fat) or other else 0


if __name__ == "__main__":
    sys.exit(main())
