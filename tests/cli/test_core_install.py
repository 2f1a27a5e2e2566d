from __future__ import annotations

from archsplit.cli.core_install import _gpu_extras

REQUIRES = (
    "numpy",
    'nvidia-nccl-cu12; platform_system == "Linux"',
    'foo-cc90==1.0; extra == "cc90"',
    'foo-cc90==1.0; extra == "all"',
    'foo-cc80==1.0; extra == "cc80" and platform_system == "Linux"',
    'dask; extra == "dask"',
)


def test_extra_of_a_gpu_has_its_packs_and_no_requirement_of_the_core() -> None:
    extras = ["all", "cc80", "cc90", "dask"]
    found = _gpu_extras({"provides_extra": extras, "requires_dist": list(REQUIRES)})
    assert found == {"cc80": ("foo-cc80",), "cc90": ("foo-cc90",)}
