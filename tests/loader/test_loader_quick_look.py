"""Loading without NVML where the kernel driver leaves no doubt, and with it where it does."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
from loader_packs import SplitSite, images, split_site
from loader_proc import VERSION, Machine
from loader_sanitized import END, sanitized
from loader_stubs import (
    HERE,
    NO_NVML,
    STRICT,
    Stub,
    Workbench,
    compile_c,
    run,
    visible_folder,
)

from loader_objects import loader_objects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Change = Callable[[Machine], object]

NOBODY_UID = 65534
ONCE = ["load", "init", "shutdown"]
NOTE = "note loading does not ask NVML here: by /proc/driver/nvidia, all GPUs are of capability"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A machine with GPUs, and a stand-in for NVML that writes down when it is used."""

    workbench: Workbench
    machine: Machine
    site: Path

    @property
    def log(self) -> Path:
        return self.site / "log"

    @property
    def asked(self) -> list[str]:
        """Return the calls of NVML since the last time."""
        found = self.log.read_text().split() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return found

    @property
    def plugins(self) -> Path:
        return self.site / "vecsort_plugins"

    def environment(self, gpus: str | None = "9.0", **more: str) -> dict[str, str]:
        return self.workbench.environment(gpus, STAND_IN_LOG=str(self.log), **more)

    def look(self, *words: object, gpus: str | None = "9.0", **more: str) -> str:
        return self.machine.look(self.plugins, *words, **self.environment(gpus, **more))

    def host(self, core: SplitSite, **more: str) -> tuple[str, str]:
        """Return the containers that a split library has registered, and the messages."""
        command = [str(self.machine.root / "host"), str(core.library)]
        done = run(command, self.environment(**more))
        return done.stdout.strip(), done.stderr

    def without_files(self, ask: Callable[[], object]) -> object:
        """Return the result by NVML only, on a machine without the driver's files."""
        proc, away = self.machine.proc, self.machine.root / "away"
        proc.rename(away)
        found = ask()
        away.rename(proc)
        assert self.asked == ONCE
        return found


@pytest.fixture(scope="module")
def built(workbench: Workbench) -> Iterator[Machine]:
    with visible_folder() as folder:
        machine = Machine(root=folder)
        machine.probe("-fsanitize=address,undefined")
        objects = loader_objects(*STRICT, *machine.places, "-fvisibility=hidden")
        compile_c(folder / workbench.library.name, "-shared", *objects, *END)
        compile_c(folder / "host", *STRICT, str(HERE / "pack_host.c"), *END)
        yield machine


@pytest.fixture
def bench(workbench: Workbench, built: Machine, tmp_path: Path) -> Bench:
    """A machine with one H200, and no plugin."""
    built.clear()
    built.add(0, "NVIDIA H200")
    built.complete()
    mine = replace(workbench, library=built.root / workbench.library.name)
    return Bench(workbench=mine, machine=built, site=tmp_path)


@pytest.fixture(scope="module")
def installed(
    workbench: Workbench, built: Machine, tmp_path_factory: pytest.TempPathFactory
) -> SplitSite:
    loader = built.root / workbench.library.name
    return split_site(workbench, tmp_path_factory.mktemp("split"), loader=loader)


@pytest.fixture
def core(installed: SplitSite) -> SplitSite:
    """A split core without a pack."""
    shutil.rmtree(installed.site / "toy_plugins", ignore_errors=True)
    return installed


def test_plugin_is_opened_without_nvml(bench: Bench) -> None:
    bench.workbench.plugin(bench.site, "sm_90")
    assert bench.look("--silent", "--open", 0) == "opened, the answer is 42\n"
    assert bench.look("--silent", "--open", 0, gpus=None) == "opened, the answer is 42\n"
    assert bench.asked == []


def test_packs_are_put_under_their_library_without_nvml(bench: Bench, core: SplitSite) -> None:
    core.add("cc80", "sm_80")
    core.add("cc90", "sm_90")
    assert bench.host(core) == ("hH", "")
    assert bench.asked == []


def test_two_cores_of_one_process_need_no_nvml(bench: Bench, core: SplitSite) -> None:
    loader = bench.workbench.library
    other = split_site(bench.workbench, bench.site / "second", "other", loader=loader)
    for each in (core, other):
        each.add("cc90", "sm_90")
    libraries = [str(each.library) for each in (core, other)]
    done = run([str(bench.machine.root / "host"), *libraries], bench.environment())
    assert (done.stdout, done.stderr, bench.asked) == ("hH\nhH\n", "", [])


def test_question_for_devices_asks_nvml_once(bench: Bench) -> None:
    bench.workbench.plugin(bench.site, "sm_90")
    found = bench.look("--late", "--open", 0)
    assert bench.asked == ONCE
    assert found.startswith("opened, the answer is 42\ndriver 0 cuda 13000 version [580.95.05]")
    assert f"{NOTE} 9.0\n" in found
    assert "device 0: 9.0 nvml 0 GPU-a0000000" in found
    assert "00000000:01:00.0 [Stand-in GPU 0]" in found


def test_report_is_nvmls_but_for_a_note(bench: Bench) -> None:
    bench.workbench.plugin(bench.site, "sm_90")
    bench.workbench.plugin(bench.site, "sm_80")
    found = bench.look().splitlines()
    assert bench.asked == ONCE
    by_nvml = bench.without_files(bench.look)
    assert [line for line in found if not line.startswith(NOTE)] == str(by_nvml).splitlines()
    assert len(found) == len(str(by_nvml).splitlines()) + 1


OTHERWISE = {
    "another capability": {"gpus": "8.0"},
    "one more": {"gpus": "9.0;8.0"},
    "none": {"gpus": ""},
    "a failure": {"STAND_IN_FAIL": "nvmlInit_v2=18"},
}


@pytest.mark.parametrize("what", OTHERWISE)
def test_contradiction_is_noted(bench: Bench, what: str) -> None:
    bench.workbench.plugin(bench.site, "sm_90")
    found = bench.look("--late", "--open", 0, **OTHERWISE[what])
    assert "opened" in found
    assert f"{NOTE} 9.0, and NVML says otherwise\n" in found


DOUBTS: dict[str, Change] = {
    "no driver": lambda at: (at.proc / "version").unlink(),
    "no number": lambda at: (at.proc / "version").write_text("NVRM version: one\n"),
    "old branch": lambda at: at.set_version("440.33.01"),
    "no GPU": lambda at: at.information(0).rename(at.proc / "gpus" / "elsewhere"),
    "no information": lambda at: at.information(0).unlink(),
    "unknown name": lambda at: at.add(0, "NVIDIA Imaginary 9000"),
    "another one's name": lambda at: at.add(0, "NVIDIA H200 Imaginary"),
    "lent by a hypervisor": lambda at: at.add(0, "NVIDIA H200-71C"),
    "another capability": lambda at: at.add(1, "NVIDIA A100-SXM4-40GB"),
    "another capability, hidden": lambda at: at.add(1, "NVIDIA A100-SXM4-40GB", device=False),
    "unknown name, excluded": lambda at: at.add(1, "NVIDIA Imaginary 9000", excluded="Yes"),
    "MIG instance": lambda at: (at.partitions(0) / "gi1").mkdir(),
    "MIG not told": lambda at: at.partitions(0).rmdir(),
    "MIG of the second": lambda at: (at.add(1, "NVIDIA H200")),
    "excluded": lambda at: at.add(0, "NVIDIA H200", excluded="Yes"),
    "excluded or not": lambda at: at.add(0, "NVIDIA H200", excluded="Maybe"),
    "no device file": lambda at: at.device(0).unlink(),
    "no control file": lambda at: at.device("ctl").unlink(),
    "no minor": lambda at: at.add(1, "NVIDIA H200\nDevice Minor: "),
    "minor of no number": lambda at: at.add(1, "NVIDIA H200\nDevice Minor: 1a"),
}


@pytest.mark.parametrize("doubt", DOUBTS)
def test_unclear_gpu_of_a_plugin_needs_nvml(bench: Bench, doubt: str) -> None:
    bench.workbench.plugin(bench.site, "sm_90")
    bench.workbench.plugin(bench.site, "sm_80")
    DOUBTS[doubt](bench.machine)
    found = bench.look("--late", "--open", 0)
    assert bench.asked == ONCE
    assert found == bench.without_files(lambda: bench.look("--late", "--open", 0))
    assert "device 0: 9.0 " in found


@pytest.mark.parametrize("doubt", DOUBTS)
def test_unclear_gpu_of_a_pack_needs_nvml(bench: Bench, core: SplitSite, doubt: str) -> None:
    core.add("cc80", "sm_80")
    core.add("cc90", "sm_90")
    DOUBTS[doubt](bench.machine)
    assert bench.host(core, gpus="8.0") == ("aA", "")
    assert bench.asked == ONCE


VISIBLE = (
    "0,1", "0,7,0", "", " ", "-1", "x", "1", "2,0", "0,x", "0,-1", "0,0",
    "0 ", " 0", "+0", "0x0", "0,", ",0",
)  # fmt: skip
UUIDS = ("GPU-a0000000", "GPU-", "MIG-a0000000", "MIG-b0000001", "MIG-GPU-a0000000/0/0")


@pytest.mark.parametrize("visible", [*VISIBLE, *UUIDS])
def test_unusual_visible_devices_need_nvml(bench: Bench, visible: str) -> None:
    bench.workbench.plugin(bench.site, "sm_90")
    words = ("--late", "--open", 0)
    found = bench.look(*words, CUDA_VISIBLE_DEVICES=visible)
    assert bench.asked == ONCE
    assert found == bench.without_files(lambda: bench.look(*words, CUDA_VISIBLE_DEVICES=visible))


def test_unknown_device_order_needs_nvml(bench: Bench) -> None:
    bench.workbench.plugin(bench.site, "sm_90")
    found = bench.look("--late", "--open", 0, CUDA_DEVICE_ORDER="x")
    assert "driver 4 " in found
    assert bench.asked == ONCE


@pytest.mark.parametrize("order", ["PCI_BUS_ID", "FASTEST_FIRST", None])
@pytest.mark.parametrize("visible", ["0", "1", "3,0,2", None])
def test_plain_variables_need_no_nvml(bench: Bench, visible: str | None, order: str | None) -> None:
    for minor in (1, 2, 3):
        bench.machine.add(minor, "NVIDIA H200")
    bench.machine.complete()
    bench.workbench.plugin(bench.site, "sm_90")
    named = {"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": order}
    child = {name: value for name, value in named.items() if value is not None}
    count = 4 if visible is None else visible.count(",") + 1
    assert "opened" in bench.look("--silent", "--open", count - 1, **child)
    assert bench.asked == []
    beyond = bench.look("--silent", "--open", count, gpus=";".join(["9.0"] * 4), **child)
    assert f"no device {count}: CUDA shows {count} to this process" in beyond
    assert bench.asked == ONCE


def test_equal_gpus_of_other_containers_cause_no_doubt(bench: Bench) -> None:
    bench.workbench.plugin(bench.site, "sm_90")
    for minor, model in ((1, "NVIDIA H100 80GB HBM3"), (2, "NVIDIA H200 NVL")):
        bench.machine.add(minor, model, device=False)
    bench.machine.add(3, "NVIDIA H200", excluded="Yes")
    assert "opened" in bench.look("--silent", "--open", 0)
    assert bench.asked == []
    assert "opened" in bench.look("--silent", "--open", 0, CUDA_VISIBLE_DEVICES="0")
    assert bench.asked == ONCE


@pytest.mark.parametrize("closed", ["nvidia0", "nvidiactl", None])
def test_inaccessible_device_needs_nvml(bench: Bench, closed: str | None) -> None:
    root = bench.machine.root
    for name in ("nvidia0", "nvidiactl"):
        (root / name).chmod(0o444 if name == closed else 0o666)
    plugin = bench.workbench.stub(root / "plugin.so")
    command = [str(root / "probe"), "--file", str(plugin), "--open", "0", "--late"]
    user = NOBODY_UID if os.geteuid() == 0 else None
    done = subprocess.run(
        command, user=user, env={"LD_LIBRARY_PATH": NO_NVML}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert "opened, the answer is 42" in done.stdout
    assert "note libnvidia-ml.so.1 is not here" in done.stdout
    assert (NOTE in done.stdout) is (closed is None)


PLUGINS: dict[str, tuple[tuple[str, Stub], ...]] = {
    "none": (),
    "of another GPU": (("sm_80", Stub(targets=("sm_80",))),),
    "PTX": (("compute_90", Stub(targets=("compute_90",))),),
    "newer than the driver": (("sm_90", Stub(cuda_version=14000)),),
    "newer than the driver, beside": (
        ("sm_90", Stub()),
        ("sm_80", Stub(targets=("sm_80",), cuda_version=14000)),
    ),
}


@pytest.mark.parametrize("plugins", PLUGINS)
@pytest.mark.parametrize("cuda", ["13000", "14000"])
def test_plugins_without_native_code_need_nvml(bench: Bench, plugins: str, cuda: str) -> None:
    for name, stub in PLUGINS[plugins]:
        bench.workbench.plugin(bench.site, name, stub)
    words = ("--late", "--open", 0)
    found = bench.look(*words, STAND_IN_CUDA=cuda)
    assert bench.asked == ONCE
    assert found == bench.without_files(lambda: bench.look(*words, STAND_IN_CUDA=cuda))


PACKS: dict[str, tuple[tuple[str, str, Stub], ...]] = {
    "none": (),
    "of another GPU": (("cc80", "sm_80", Stub(shape=2)),),
    "PTX": (("ptx", "compute_90", Stub(shape=2)),),
    "newer than the driver": (("cc90", "sm_90", Stub(shape=2, cuda_version=14000)),),
    "newer than the driver, beside": (
        ("cc90", "sm_90", Stub(shape=2)),
        ("cc80", "sm_80", Stub(shape=2, cuda_version=14000)),
    ),
}


@pytest.mark.parametrize("packs", PACKS)
@pytest.mark.parametrize("cuda", ["13000", "14000"])
def test_packs_without_native_code_need_nvml(
    bench: Bench, core: SplitSite, packs: str, cuda: str
) -> None:
    for name, target, stub in PACKS[packs]:
        core.add(name, target, descriptor=stub)
    found = bench.host(core, STAND_IN_CUDA=cuda)
    assert bench.asked == ONCE
    assert found == bench.without_files(lambda: bench.host(core, STAND_IN_CUDA=cuda))


@pytest.mark.parametrize("others", [(), ("compute_90",)])
def test_one_unserved_container_needs_nvml(
    bench: Bench, core: SplitSite, others: tuple[str, ...]
) -> None:
    core.add("cc90", "sm_90", containers=(images(contained="sm_90")[0], ()))
    for target in others:
        core.add("ptx", target)
    found = bench.host(core)
    assert bench.asked == ONCE
    assert found == bench.without_files(lambda: bench.host(core))
    assert found[0] == ("hP" if others else "h-")


def test_gpu_without_code_in_the_core_needs_nvml(bench: Bench, core: SplitSite) -> None:
    bench.machine.add(0, "Tesla V100-SXM2-16GB")
    core.add("cc80", "sm_80")
    assert bench.host(core, gpus="8.0") == ("aA", "")
    assert bench.asked == ONCE


def test_lone_pack_of_another_gpu_is_reported_before_the_first_launch(
    bench: Bench, core: SplitSite
) -> None:
    core.add("cc80", "sm_80")
    letters, said = bench.host(core)
    assert letters == "--"
    assert "device 0, Stand-in GPU 0 (capability 9.0), finds no code in 2 of 2 containers" in said


def test_refusal_unrelated_to_the_driver_is_reported_without_nvml(
    bench: Bench, core: SplitSite
) -> None:
    core.add("cc90", "sm_90")
    core.add("cc80", "sm_80", descriptor=Stub(shape=2, version=b"9"))
    letters, said = bench.host(core)
    assert bench.asked == []
    assert letters == "hH"
    assert "is a plugin for vecsort 9, expected one" in said
    assert (letters, said) == bench.without_files(lambda: bench.host(core))


BRANCHES = (
    ("449.2", 11000, False),
    ("x.1", 11000, False),
    ("450.80.02", 11080, True),
    ("524.99", 11080, True),
    ("524.99", 12000, False),
    ("525.60.13", 12090, True),
    ("579.1", 13000, False),
    ("580.65.06", 13020, True),
    ("580.159.04", 14000, False),
    ("580." + 76 * "0", 13020, False),  # one more than fits
    pytest.param((2044 - VERSION.index("{")) * "x" + "450.80.02", 11080, False, id="cut off"),
    ("1000.10", 13020, True),
)


@pytest.mark.parametrize(("version", "toolkit", "known"), BRANCHES)
def test_driver_branch_gives_the_minimum_cuda_version(
    bench: Bench, version: str, toolkit: int, known: bool
) -> None:
    bench.machine.set_version(version)
    bench.workbench.plugin(bench.site, "sm_90", Stub(cuda_version=toolkit))
    # NVML knows of a library that is newer than the kernel's part, as compatibility packages bring.
    assert "opened" in bench.look("--silent", "--open", 0, STAND_IN_CUDA="14000")
    assert bench.asked == ([] if known else ONCE)


ALL = tuple(f"sm_{each}" for each in (50, 60, 61, 70, 75, 80, 86, 89, 90, 100, 103, 107, 120, 121))
MODELS = {
    "Tesla P100-SXM2-16GB": "6.0",
    "Tesla P40": "6.1",
    "NVIDIA GeForce GTX 1080 Ti": "6.1",
    "Tesla V100-SXM2-32GB": "7.0",
    "Tesla T4": "7.5",
    "NVIDIA GeForce RTX 2080 Super with Max-Q Design": "7.5",
    "NVIDIA A100-SXM4-80GB": "8.0",
    "NVIDIA A100 80GB PCIe": "8.0",
    "NVIDIA A30": "8.0",
    "NVIDIA A10": "8.6",
    "NVIDIA GeForce RTX 3090 Ti": "8.6",
    "NVIDIA L4": "8.9",
    "NVIDIA L40S": "8.9",
    "NVIDIA GeForce RTX 4090 D": "8.9",
    "NVIDIA H100 NVL": "9.0",
    "NVIDIA H100 80GB HBM3": "9.0",
    "NVIDIA H200": "9.0",
    "NVIDIA B200": "10.0",
    "NVIDIA B300 SXM6 AC": "10.3",
    "NVIDIA GeForce RTX 5090 Laptop GPU": "12.0",
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition": "12.0",
    "NVIDIA GB10": "12.1",
    "Tesla M60": None,
    "NVIDIA GeForce GTX 750 Ti": None,  # there are several
    "Tesla V100S-PCIE-32GB": "7.0",
    "NVIDIA T4G": None,
    "NVIDIA T400": "7.5",
    "Quadro T2000": None,
    "NVIDIA A10G": "8.6",
    "NVIDIA A10M": None,
    "NVIDIA A10-24Q": None,
    "NVIDIA RTX 6000": None,  # Ada has another
    "NVIDIA GeForce RTX 3050 A Laptop GPU": None,  # an AD106, which is 8.9
    "NVIDIA A100X": None,
    "NVIDIA A100-1-5C": None,
    "GRID A100-10C": None,
    "GRID T4-16Q": None,
    "GRID A100": None,
    "NVIDIA RTX A4000": "8.6",
    "NVIDIA L40": "8.9",
    "NVIDIA H20": "9.0",
    "NVIDIA GH200 480GB": "9.0",
    "NVIDIA GB200": "10.0",
    "NVIDIA GB300": "10.3",
    "NVIDIA RTX 6000 Ada Generation": "8.9",
    "NVIDIA RTX PRO 6000 Rubin": None,
    "NVIDIA Rubin": None,
    "NVIDIA Rubin CPX": None,
    "NVIDIA B200 B300": None,
    "Orin": None,
    "H": None,
}


@pytest.mark.parametrize("model", MODELS)
def test_fully_understood_names_are_trusted(bench: Bench, model: str) -> None:
    bench.machine.add(0, model)
    bench.workbench.plugin(bench.site, "sm_90", Stub(targets=ALL))
    found = bench.look("--late", "--open", 0)
    expected = MODELS[model]
    assert (NOTE in found) is (expected is not None)
    assert expected is None or f"{NOTE} {expected}" in found


MIG = {"Tesla T4": False, "NVIDIA A10": False, "NVIDIA A30": True, "NVIDIA H200": True}


@pytest.mark.parametrize("model", MIG)
def test_gpu_without_mig_needs_no_mig_folder(bench: Bench, model: str) -> None:
    bench.machine.add(0, model)
    bench.machine.partitions(0).rmdir()
    bench.workbench.plugin(bench.site, "sm_90", Stub(targets=ALL))
    assert "opened" in bench.look("--silent", "--open", 0)
    assert bench.asked == (ONCE if MIG[model] else [])


def test_machine_code_of_an_older_minor_is_plain(bench: Bench) -> None:
    bench.machine.add(0, "NVIDIA A10")
    bench.workbench.plugin(bench.site, "sm_80")
    assert "opened" in bench.look("--silent", "--open", 0)
    assert bench.asked == []


def test_choice_for_another_capability_uses_nvml(bench: Bench) -> None:
    both = Stub(targets=("sm_90", "compute_90"), cuda_version=13010)
    bench.workbench.plugin(bench.site, "sm_90", both)
    words = ("--silent", "--capability")
    assert "opened" in bench.look(*words, 9, 0)
    assert bench.asked == []
    assert "opened" in bench.look(*words, 12, 0, STAND_IN_CUDA="13010")
    assert bench.asked == ONCE
    assert "(newer than the driver)" in bench.look(*words, 12, 0, STAND_IN_CUDA="13000")


FACE = """
import os, vecsort
log = os.environ["STAND_IN_LOG"]
assert vecsort.load()._name == {path!r}
assert vecsort.load(0).stub_answer() == 42
assert not os.path.exists(log)
def tell():
    found = vecsort.explain()
    print(found.devices[0].name, found.driver.cuda, found.healthy, found.notes)
    vecsort._archsplit.require()
child = os.fork()
tell()
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


def test_python_asks_nvml_only_for_explanations_also_after_a_fork(bench: Bench) -> None:
    bench.workbench.core(bench.site)
    path = bench.workbench.plugin(bench.site, "sm_90")
    code = FACE.format(path=str(path))
    done = bench.workbench.python(bench.site, code, gpus="9.0", STAND_IN_LOG=str(bench.log))
    assert (done.returncode, done.stderr) == (0, "")
    note = f"{NOTE.removeprefix('note ')} 9.0"
    assert done.stdout == f"Stand-in GPU 0 13.0 True ('{note}',)\n" * 2
    assert bench.asked.count("init") == 4


LATER = """
import os
from vecsort._archsplit import _opening, _reading
from vecsort._archsplit._errors import PluginNotFoundError
asked = lambda: os.path.exists(os.environ["STAND_IN_LOG"])
loader = _opening.start_loader(_reading.read_core(), None)
first, path = loader.open(0), loader.candidate(0).path
assert loader.capability(0) == "9.0" and loader.choose("9.0") == (0, "sm_90")
assert loader.verdict(loader.candidate(0)) == "accepted" and not asked()
assert loader.device(0).name == b"Stand-in GPU 0" and asked()
texts = [loader.note(0), loader.summary().driver_version, loader.capability(0)]
try:
    again = loader.open(0)
except PluginNotFoundError as error:
    again = str(error).partition("\\n")[0]
print(texts[2], again == first, again)
assert loader.candidate(0).path == path
"""


@pytest.mark.parametrize("gpus", ["9.0", "8.0"])
def test_nvmls_state_replaces_the_quick_one(bench: Bench, gpus: str) -> None:
    bench.workbench.core(bench.site)
    bench.workbench.plugin(bench.site, "sm_90")
    done = bench.workbench.python(bench.site, LATER, gpus=gpus, STAND_IN_LOG=str(bench.log))
    assert done.stderr == ""
    assert bench.asked == ONCE
    assert done.stdout.startswith("9.0 True " if gpus == "9.0" else "8.0 False no plugin of")


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("kind", ["address", "thread"])
def test_races_are_clean(bench: Bench, tmp_path: Path, kind: str, compiler: str) -> None:
    tool = sanitized(kind, compiler, tmp_path, bench.machine.places)
    bench.workbench.plugin(bench.site, "sm_90")
    words = [str(tool.program("loader_probe")), str(bench.plugins), "--open", "0", "--threads", "8"]
    for more in ("--silent", "--late"):
        done = run([*words, more], bench.environment())
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        assert "all threads have the same plugin" in done.stdout
        assert (bench.asked == []) is (more == "--silent")
    cores = [split_site(bench.workbench, tmp_path / f"{n}", loader=tool.loader) for n in range(2)]
    for core in cores:
        core.add("cc90", "sm_90")
    host = [str(tool.program("pack_host")), "--race", *(str(core.library) for core in cores)]
    done = run(host, bench.environment(ASAN_OPTIONS="detect_leaks=0"))
    assert (done.stdout, done.stderr, bench.asked) == ("hH\nhH\n", "", [])
