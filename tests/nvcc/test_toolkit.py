from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from archsplit.arch.target import Target
from archsplit.errors import TargetError, ToolNotFoundError
from archsplit.nvcc.toolkit import (
    Toolkit,
    ToolkitProbe,
    choose_toolkit,
    nvcc_candidates,
    probe_toolkits,
    unsupported_target_text,
)
from archsplit.system.process import SubprocessRunner


def probe(
    *, explicit: Path | None = None, environment: dict[str, str], sites: tuple[Path, ...] = ()
) -> tuple[ToolkitProbe, ...]:
    places = nvcc_candidates(explicit=explicit, environment=environment, site_folders=sites)
    return probe_toolkits(places, SubprocessRunner())


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_the_real_toolkit_is_described(toolkit: Toolkit) -> None:
    assert toolkit.cuda_version >= 12000
    assert {Target.parse("sm_90a"), Target.parse("compute_120")} <= toolkit.targets
    assert (toolkit.library_folder / "libcudart_static.a").is_file()
    assert all(tool.is_file() for tool in toolkit.tools)
    toolkit.check_targets([Target.parse("sm_80"), Target.parse("compute_90a")])


def test_an_unknown_target_names_the_version_and_the_nearest(toolkit: Toolkit) -> None:
    with pytest.raises(TargetError) as caught:
        toolkit.check_targets([Target.parse("sm_151"), Target.parse("sm_90")])
    text = str(caught.value)
    assert toolkit.release in text
    assert "sm_151: the nearest that it knows are" in text
    assert "sm_121" in text
    assert "sm_90:" not in text


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("sm_101", "CUDA 13 renamed it to sm_110"),
        ("compute_101a", "CUDA 13 renamed it to compute_110a"),
        ("sm_50", "it is for 5.0 (Maxwell: Tesla M10, GeForce GTX 750)"),
        ("sm_80a", "it is not a published target that archsplit knows"),
        ("sm_151", "it is not a published target that archsplit knows"),
    ],
)
def test_an_unsupported_target_is_explained(name: str, what: str) -> None:
    supported = {Target.parse("sm_90"), Target.parse("compute_90")}
    text = unsupported_target_text(Target.parse(name), supported)
    kind = name.partition("_")[0]
    assert text == f"{name}: the nearest that it knows are {kind}_90; {what}"


def test_the_order_is_flag_then_variables_then_path_then_wheels(tmp_path: Path) -> None:
    wheel = program(tmp_path / "site/nvidia/cu13/bin/nvcc", "exit 1")
    on_path = program(tmp_path / "bin/nvcc", "exit 1")
    environment = {"CUDA_HOME": "/home-of-cuda", "CUDA_PATH": "/path", "PATH": str(on_path.parent)}
    places = nvcc_candidates(
        explicit=None, environment=environment, site_folders=[tmp_path / "site"]
    )
    assert [(place.origin, place.nvcc) for place in places] == [
        ("CUDA_HOME", Path("/home-of-cuda/bin/nvcc")),
        ("CUDA_PATH", Path("/path/bin/nvcc")),
        ("PATH", on_path),
        ("index wheels", wheel),
    ]
    only = nvcc_candidates(explicit=tmp_path, environment=environment, site_folders=[])
    assert [(place.origin, place.nvcc) for place in only] == [("--nvcc", tmp_path / "bin/nvcc")]


def test_a_later_candidate_is_used_if_earlier_ones_fail(tmp_path: Path, toolkit: Toolkit) -> None:
    broken = program(tmp_path / "bin/nvcc", "echo I am broken; exit 1")
    attempts = probe(
        environment={
            "CUDA_HOME": "/nowhere",
            "PATH": f"{broken.parent}",
            "CUDA_PATH": str(toolkit.root),
        }
    )
    assert choose_toolkit(attempts).root == toolkit.root
    assert [attempt.reason for attempt in attempts] == ["no such file", f"CUDA {toolkit.release}"]


def test_without_any_every_place_and_its_reason_are_listed(tmp_path: Path) -> None:
    old = program(tmp_path / "old/bin/nvcc", "echo 'release 10.2, V10.2.89'")
    odd = program(tmp_path / "odd/bin/nvcc", "echo hello")
    environment = {"CUDA_HOME": str(old.parent.parent), "CUDA_PATH": str(odd.parent.parent)}
    attempts = probe(environment=environment)
    with pytest.raises(ToolNotFoundError) as caught:
        choose_toolkit(attempts)
    text = str(caught.value)
    for expected in (
        f"CUDA_HOME: {old}: CUDA 10.2.89 is too old: 11.8 or newer is needed",
        f"CUDA_PATH: {odd}: its --version is not like nvcc's",
        "PATH: nowhere: not found",
        "index wheels: nowhere: not found",
        "hint: pip install 'archsplit[nvcc]'",
    ):
        assert expected in text


def test_hint_for_another_machine_has_the_toolkits_version(
    tmp_path: Path, toolkit: Toolkit
) -> None:
    hints = []
    for release in ("12.9.86", "14.1.2"):
        with pytest.raises(ToolNotFoundError) as caught:
            replace(toolkit, root=tmp_path, release=release).for_machine("aarch64")
        hints.append(caught.value.hint)
    assert hints == [
        # nvidia-cuda-runtime-cu12 has no libcudart_static.a.
        "install NVIDIA's cross package (cuda-cross-sbsa-12-9)",
        "install NVIDIA's cross package (cuda-cross-sbsa-14-1), or link the folder nvidia/cu14 of"
        " the aarch64 wheel of nvidia-cuda-runtime==14.1.* there",
    ]


def test_a_toolkit_without_the_static_runtime_is_skipped(tmp_path: Path) -> None:
    version, top = "release 13.0, V13.0.88", f"#\\$ TOP={tmp_path}"
    script = f'case $1 in --version) echo "{version}";; --dryrun) echo "{top}";; esac'
    nvcc = program(tmp_path / "bin/nvcc", script)
    (attempt,) = probe(explicit=nvcc, environment={})
    assert attempt.toolkit is None
    assert "no libcudart_static.a in lib64, lib" in attempt.reason


def test_wheels_of_different_versions_are_skipped(tmp_path: Path, toolkit: Toolkit) -> None:
    # The index's nvidia-cuda-nvcc asks for any nvidia-nvvm: this is what a careless upgrade leaves.
    site = tmp_path / "site"
    root = site / "nvidia" / "cu13"
    root.parent.mkdir(parents=True)
    program(
        root / "bin/nvcc",
        f'case $1 in --dryrun) echo "#\\$ TOP={root}";; *) exec "{toolkit.nvcc}" "$@";; esac',
    )
    (site / "nvidia_nvvm-99.1.2.dist-info").mkdir()
    attempts = probe(environment={}, sites=(site,))
    assert attempts[-1].toolkit is None
    assert "nvidia-nvvm beside it is 99.1.2" in attempts[-1].reason
    assert "pip install 'nvidia-nvvm==" in attempts[-1].reason


def test_nvcc_without_a_toolkit_folder_is_rejected(tmp_path: Path) -> None:
    script = 'case $1 in --version) echo "release 13.0, V13.0.88";; esac'
    (attempt,) = probe(explicit=program(tmp_path / "nvcc", script), environment={})
    assert attempt.reason == "its --dryrun prints no toolkit folder"


def test_failing_nvcc_is_reported_with_exit_status_and_output(tmp_path: Path) -> None:
    (attempt,) = probe(explicit=program(tmp_path / "nvcc", "echo oh no; exit 9"), environment={})
    assert "nvcc --version exits with 9: oh no" in attempt.reason
