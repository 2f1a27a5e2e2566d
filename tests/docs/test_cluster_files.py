"""The files of the how-to for clusters: manifests by their schema, options by the parser."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from archsplit.cli.main import main

FILES = Path(__file__).parents[2] / "docs/how-to/remote-builds"
VERSION = "1.31"


def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FILES / "kubernetes.yaml").read_text()))


def test_the_manifests_have_the_form_of_kubernetes() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate")
    for manifest in manifests():
        validate.validate(manifest, VERSION, strict=True)


def test_the_parts_of_the_manifests_fit_together() -> None:
    service, *deployments = manifests()
    address = f"tls://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    pods = [each["spec"]["template"] for each in deployments]
    for deployment, pod in zip(deployments, pods, strict=True):
        labels = pod["metadata"]["labels"]
        assert deployment["spec"]["selector"]["matchLabels"] == labels
        volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
        (container,) = pod["spec"]["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    assert service["spec"]["selector"] == pods[0]["metadata"]["labels"]
    (worker,) = pods[1]["spec"]["containers"]
    assert address in worker["command"]


def test_worker_options_in_cluster_files_exist(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (worker,) = manifests()[2]["spec"]["template"]["spec"]["containers"]
    program = tmp_path / "archsplit"
    program.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SCHEDULER": "tls://head:8786",
        "CERTIFICATES": "/home/me/my certificates",
    }
    done = subprocess.run(
        ["bash", FILES / "workers.sbatch"],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    batch = done.stdout.splitlines()
    assert "/home/me/my certificates/key.pem" in batch
    with contextlib.suppress(SystemExit):
        main(["remote", "worker", "--help"])
    known = capsys.readouterr().out
    for words in (worker["command"][3:] + worker["args"], batch[1:]):
        names = [word for word in words if word.startswith("--")]
        assert {"--remote-ca", "--remote-cert", "--remote-key"} <= set(names)
        assert all(name in known for name in names)
