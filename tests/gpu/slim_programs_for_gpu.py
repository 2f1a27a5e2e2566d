"""Programs for slimmed wheels of the index on a GPU; each prints if its result is right."""

from __future__ import annotations

XGBOOST = """
import json
import numpy as np
import xgboost
random = np.random.default_rng(7)
x = random.standard_normal((200_000, 40), dtype=np.float32)
y = (x[:, 0] * x[:, 1] + np.sin(x[:, 2]) + 0.1 * random.standard_normal(len(x)) > 0).astype(int)
train, test = slice(0, 160_000), slice(160_000, None)

def accuracy(device):
    model = {"objective": "binary:logistic", "device": device, "tree_method": "hist", "seed": 1}
    data = xgboost.QuantileDMatrix(x[train], y[train])
    booster = xgboost.train({**model, "max_depth": 6}, data, num_boost_round=100)
    found = booster.predict(xgboost.DMatrix(x[test])) > 0.5
    return float((found == y[test]).mean())

found = {"cuda": accuracy("cuda"), "cpu": accuracy("cpu")}
right = abs(found["cuda"] - found["cpu"]) < 0.01 and found["cuda"] > 0.85
print(json.dumps({"right": right, "accuracy": found}))
"""

# Flat and inverted lists, against distances by NumPy in double precision.
FAISS = """
import json
import numpy as np
import faiss
random = np.random.default_rng(7)
base = random.standard_normal((50_000, 64), dtype=np.float32)
asked = random.standard_normal((500, 64), dtype=np.float32)
wide = asked.astype(float)
far = (wide**2).sum(1)[:, None] + (base.astype(float) ** 2).sum(1) - 2 * wide @ base.T.astype(float)
nearest = np.sort(far, axis=1)[:, :10]
resources = faiss.StandardGpuResources()

def worst(index):
    index.add(base)
    distances, found = index.search(asked, 10)
    named = np.take_along_axis(far, found, axis=1)
    return float(max(abs(distances - nearest).max(), abs(named - nearest).max()))

flat = worst(faiss.GpuIndexFlatL2(resources, 64))
lists = faiss.GpuIndexIVFFlat(resources, 64, 64, faiss.METRIC_L2)
lists.train(base)
lists.nprobe = 64
found = {"flat": flat, "lists": worst(lists)}
print(json.dumps({"right": max(found.values()) < 1e-2, "worst": found}))
"""

# Two of four values, and cutlass's sparse product, against PyTorch.
XFORMERS = """
import ctypes, importlib.util, json, sys
from pathlib import Path
import torch
ctypes.CDLL("libcudart.so.12", mode=ctypes.RTLD_GLOBAL)
torch.ops.load_library(str(Path(importlib.util.find_spec("xformers").origin).parent / "_C.so"))
ops = torch.ops.xformers
torch.manual_seed(7)
wrong = {}
x = torch.randn(2048, 1024, device="cuda", dtype=torch.bfloat16)
for algorithm, key in (("largest", lambda v: v), ("largest_abs", torch.abs)):
    for m in (4, 8):
        groups = x.reshape(-1, m)
        kept = torch.zeros_like(groups, dtype=torch.bool)
        kept.scatter_(1, key(groups).float().argsort(dim=1, stable=True)[:, -2:], True)
        found = ops.sparseNM_dense(x, sort_preproc=algorithm, N=2, M=m).reshape(-1, m)
        sums = (key(found).float().sum(1) - key(groups * kept).float().sum(1)).abs().max()
        wrong[f"{algorithm} 2:{m}"] = float(sums)
half = x.half()
masks = ops.sparse24_sparsify_both_ways(half)[-1]
dense = ops.sparse24_apply_dense_output(half, masks)
two = ((dense.reshape(-1, 4) != 0).sum(1) <= 2).all() and ((dense == 0) | (dense == half)).all()
eight = ops.sparseNM_dense(x, sort_preproc="largest", N=2, M=4).to(torch.float8_e4m3fn)
y = torch.randn(512, 1024, device="cuda").to(torch.float8_e4m3fn)
product = ops._sparse24_fp8_sm90_cutlass_gemm(*ops._sparse24_sm90_cutlass_compress(eight), y.T)
expected = eight.float() @ y.float().T
wrong["product"] = float((product.float() - expected).abs().max() / expected.abs().max())
torch.cuda.synchronize()
right = bool(two) and float((dense != 0).float().mean()) > 0.4 and max(wrong.values()) < 5e-3
print(json.dumps({"right": right, "worst": wrong}))
"""

PROGRAMS = {"xgboost": XGBOOST, "faiss_gpu": FAISS, "xformers": XFORMERS}
