"""Run the scan of the installed fpscan, and compare it with a loop of PyTorch."""
# ruff: noqa: INP001 (a script, no part of a package)

from __future__ import annotations

import fpscan
import torch

generator = torch.Generator(device="cuda").manual_seed(1)
shape = (2, 4, 2048)
gates = 0.99 + 0.01 * torch.rand(shape, generator=generator, device="cuda")
tokens = torch.randn(shape, generator=generator, device="cuda") / shape[-1]
found = fpscan.scan_forward(gates, tokens)
state, expected = torch.zeros(shape[:-1], dtype=torch.float64, device="cuda"), []
for gate, token in zip(gates.double().unbind(-1), tokens.double().unbind(-1), strict=True):
    state = gate * state + token
    expected.append(state)
difference = (found.double() - torch.stack(expected, dim=-1)).abs().max().item()
# The tolerance of the project's own tests.
TOLERANCE = 2e-3
assert difference < TOLERANCE, f"the scan differs by {difference}"
print(f"fpscan: a scan of {shape[-1]} steps differs by {difference:.1e} from a loop in float64")  # noqa: T201 (a script)
