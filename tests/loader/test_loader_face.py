"""The Python face as a core wheel has it: real plugins, real dlopen, each in a child process."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from loader_stubs import LIBRARY, Stub, Workbench, write_table

from archsplit_loader import _commands, _core, _reading
from archsplit_loader._errors import PluginError

LOAD = "import vecsort; lib = vecsort.load(); print(lib._name, lib.stub_answer())"
CATCH = """
import vecsort
from vecsort import _archsplit as face
try:
    face.load({arguments})
except face.PluginError as error:
    print(type(error).__name__)
    print(error)
"""


@pytest.fixture
def site(workbench: Workbench, tmp_path: Path) -> Path:
    site = tmp_path / "site"
    workbench.core(site)
    return site


def message(workbench: Workbench, site: Path, arguments: str = "", **more: str) -> str:
    done = workbench.python(site, CATCH.format(arguments=arguments), **more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_right_plugin_is_loaded(workbench: Workbench, site: Path) -> None:
    workbench.plugin(site, "sm_80")
    path = workbench.plugin(site, "sm_90")
    done = workbench.python(site, LOAD, gpus="9.0")
    assert done.stdout == f"{path} 42\n", done.stderr


def test_wrong_gpu_is_told_everything(workbench: Workbench, site: Path) -> None:
    path = workbench.plugin(site, "sm_80")
    assert message(workbench, site, gpus="9.0") == (
        "PluginNotFoundError\n"
        "no plugin of vecsort 1.2.3 serves device 0, Stand-in GPU 0 (capability 9.0)\n"
        f"  {path} serves other GPUs: sm_80\n"
        "it needs the plugin for sm_90\n"
        'hint: pip install "vecsort[sm90]==1.2.3"\n'
    )


def test_nothing_installed_is_told(workbench: Workbench, site: Path) -> None:
    text = message(workbench, site, gpus="8.9")
    assert "serves device 0, Stand-in GPU 0 (capability 8.9); no plugin was found\n" in text
    assert 'hint: pip install "vecsort[sm80]==1.2.3"' in text


def test_unserved_gpu_gets_the_list_of_targets(workbench: Workbench, site: Path) -> None:
    text = message(workbench, site, gpus="7.5")
    assert (
        "it needs a plugin for capability 7.5, but vecsort 1.2.3 is built for "
        "compute_120, sm_80, sm_90 only" in text
    )
    assert "pip install" not in text


@pytest.mark.parametrize(
    ("stub", "cut", "hint"),
    [
        (Stub(version=b"1.2.2"), None, 'pip install "vecsort[sm90]==1.2.3"'),
        (Stub(), 3000, 'pip install --force-reinstall --no-deps "vecsort-sm90==1.2.3"'),
        (
            Stub(build_id=bytes(32)),
            None,
            'pip install --force-reinstall --no-deps "vecsort==1.2.3" "vecsort-sm90==1.2.3"',
        ),
        (
            Stub(package=b"other"),
            None,
            'pip install --force-reinstall --no-deps "vecsort-sm90==1.2.3"',
        ),
        (Stub(cuda_version=14000), None, "update the NVIDIA driver"),
    ],
)
def test_hint_fits_the_verdict(
    workbench: Workbench, site: Path, stub: Stub, cut: int | None, hint: str
) -> None:
    path = workbench.plugin(site, "sm_90", stub)
    path.write_bytes(path.read_bytes()[:cut])
    assert message(workbench, site, gpus="9.0").endswith(f"hint: {hint}\n")


def test_plugin_for_another_processor_is_replaced(workbench: Workbench, site: Path) -> None:
    path = workbench.plugin(site, "sm_90")
    content = bytearray(path.read_bytes())
    content[18:20] = (243).to_bytes(2, "little")  # RISC-V
    path.write_bytes(content)
    text = message(workbench, site, gpus="9.0")
    assert "is built for another processor" in text
    assert text.endswith('hint: pip install --force-reinstall --no-deps "vecsort-sm90==1.2.3"\n')


def test_unlistable_folder_gets_a_chmod_hint(workbench: Workbench, tmp_path: Path) -> None:
    site = tmp_path / "my site"
    workbench.core(site)
    plugins = site / "vecsort_plugins"
    plugins.mkdir()
    (plugins / "cuda").symlink_to("cuda")  # whatever the mode, root may list all real folders
    text = message(workbench, site, gpus="9.0")
    assert f"{plugins}/cuda can't be listed: " in text
    assert text.endswith(f"hint: chmod -R a+rX '{plugins}'\n")


@pytest.mark.parametrize(
    ("arguments", "more", "words"),
    [
        ("", {}, "DeviceError\nno device 0: no NVIDIA driver: libnvidia-ml.so.1"),
        ("", {"gpus": ""}, "DeviceError\nno device 0: the driver (580.95.05) is there"),
        ("5", {"gpus": "9.0"}, "DeviceError\nno device 5: CUDA shows 1"),
        ("-1", {"gpus": "9.0"}, "DeviceError\nno device -1: devices are numbered from 0"),
        (
            "2**33",
            {"gpus": "9.0"},
            "DeviceError\nno device 8589934592: devices are numbered",
        ),
        ("2**31 - 1", {"gpus": "9.0"}, "DeviceError\nno device 2147483647: CUDA shows 1"),
        ("'0'", {}, "PluginError\n'0' is not a device's number; write it like 0"),
        ("1.5", {}, "PluginError\n1.5 is not a device's number"),
        ("None", {}, "PluginError\nNone is not a device's number"),
        (
            "capability='9'",
            {},
            "PluginError\n'9' is not a compute capability; write it like '9.0'",
        ),
        ("capability='9.0a'", {}, "PluginError\n'9.0a' is not a compute capability"),
        ("capability='99999999999.0'", {}, "PluginError\n'99999999999.0' is not a compute"),
        ("capability='9.10'", {}, "PluginError\n'9.10' is not a compute capability"),
        ("capability=9.0", {}, "PluginError\n9.0 is not a compute capability"),
        ("capability=(9, 0)", {}, "PluginError\n(9, 0) is not a compute capability"),
        ("capability='999.9'", {}, "PluginNotFoundError\nno plugin of vecsort 1.2.3 serves"),
        (
            "capability='9.0'",
            {},
            "PluginNotFoundError\nno plugin of vecsort 1.2.3 serves capability",
        ),
        ("plugins=['x.so']", {"gpus": "9.0"}, "x.so can't be opened by this path"),
    ],
)
def test_unloadable_loader_is_an_error(
    workbench: Workbench, site: Path, arguments: str, more: dict[str, str], words: str
) -> None:
    assert words in message(workbench, site, arguments, **more)


def test_unopenable_plugin_is_an_error(workbench: Workbench, site: Path) -> None:
    path = workbench.plugin(site, "sm_90")
    path.write_bytes(path.read_bytes().replace(b"libc.so.6", b"libc.so.7"))
    assert message(workbench, site, gpus="9.0").startswith(
        "PluginOpenError\nlibc.so.7: cannot open"
    )


def test_library_is_remembered(workbench: Workbench, site: Path, tmp_path: Path) -> None:
    workbench.plugin(site, "sm_90")
    log = tmp_path / "log"
    code = """
import threading, vecsort
barrier, found = threading.Barrier(8), []
def race():
    barrier.wait()
    found.append(vecsort.load())
threads = [threading.Thread(target=race) for _ in range(8)]
[each.start() for each in threads]; [each.join() for each in threads]
assert len(set(map(id, found))) == 1 and len(found) == 8
assert vecsort.load() is found[0] is vecsort.load(0)
assert vecsort.load(1 - 1, capability="9.0") is found[0]
"""
    done = workbench.python(site, code, gpus="9.0", STAND_IN_LOG=str(log))
    assert done.returncode == 0, done.stderr


def test_device_number_is_resolved_again_after_a_change(workbench: Workbench, site: Path) -> None:
    for target in ("sm_80", "sm_90"):
        workbench.plugin(site, target)
    code = """
import os, vecsort
os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
first = vecsort.load(0)
os.environ["CUDA_VISIBLE_DEVICES"] = "1"
second = vecsort.load(0)
print(first._name.split("/")[-2], second._name.split("/")[-2], vecsort.load(0) is second)
os.environ["CUDA_VISIBLE_DEVICES"] = ""
try:
    vecsort.load()
except vecsort.DeviceError as error:
    print(error)
"""
    done = workbench.python(site, code, gpus="8.0;9.0")
    assert done.stdout.startswith("sm_80 sm_90 True\nno device 0: CUDA hides all")


def test_remembered_choice_is_still_checked(workbench: Workbench, site: Path) -> None:
    workbench.plugin(site, "sm_90")
    code = """
import vecsort
assert vecsort.load(False) is vecsort.load(0)
for arguments in ({"device": 0.0}, {"capability": 0}):
    try:
        vecsort.load(**arguments)
    except RuntimeError as error:
        print(error)
"""
    lines = workbench.python(site, code, gpus="9.0").stdout.splitlines()
    assert [line.partition(";")[0] for line in lines] == [
        "0.0 is not a device's number",
        "0 is not a compute capability",
    ]


def test_failure_is_not_remembered(workbench: Workbench, site: Path, tmp_path: Path) -> None:
    later = workbench.plugin(tmp_path / "later", "sm_90").parents[2]
    code = f"""
import os, vecsort
try:
    vecsort.load()
except Exception as error:
    print(type(error).__name__)
os.rename({str(later)!r}, {str(site / "vecsort_plugins")!r})
print(vecsort.load().stub_answer())
"""
    assert workbench.python(site, code, gpus="9.0").stdout == "PluginNotFoundError\n42\n"


def test_different_devices_get_different_plugins(workbench: Workbench, site: Path) -> None:
    for target in ("sm_80", "sm_90"):
        workbench.plugin(site, target)
    code = """
import vecsort
libs = [vecsort.load(device) for device in range(3)]
print([lib._name.split("/")[-2] for lib in libs], libs[0] is libs[2])
"""
    done = workbench.python(site, code, gpus="9.0;8.0;9.0", CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert done.stdout == "['sm_90', 'sm_80', 'sm_90'] True\n", done.stderr


def test_load_works_in_forks_before_and_after_it(workbench: Workbench, site: Path) -> None:
    workbench.plugin(site, "sm_90")
    code = """
import os, vecsort
def child():
    pid = os.fork()
    if pid == 0:
        os._exit(vecsort.load().stub_answer())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(child(), vecsort.load().stub_answer(), child())
"""
    assert workbench.python(site, code, gpus="9.0").stdout == "42 42 42\n"


def test_plugins_are_found_on_the_whole_path(
    workbench: Workbench, site: Path, tmp_path: Path
) -> None:
    path = workbench.plugin(tmp_path / "user site", "sm_90")
    code = f"import sys; sys.path.append({str(tmp_path / 'user site')!r})\n{LOAD}"
    assert workbench.python(site, code, gpus="9.0").stdout == f"{path} 42\n"


def test_explicit_plugins_are_the_only_ones(
    workbench: Workbench, site: Path, tmp_path: Path
) -> None:
    workbench.plugin(site, "sm_90")
    path = workbench.stub(tmp_path / "mine.so")
    code = f"""
import vecsort
print(vecsort.load(plugins=[{str(path)!r}])._name)
print([each.path for each in vecsort.explain(plugins=[{str(path)!r}]).candidates])
"""
    done = workbench.python(site, code, gpus="9.0")
    assert done.stdout == f"{path}\n['{path}']\n", done.stderr


def test_two_cores_in_one_process_open_their_own_plugins(workbench: Workbench, site: Path) -> None:
    workbench.plugin(site, "sm_90")
    (site / "othersort").mkdir()
    (site / "vecsort" / "_archsplit").rename(site / "othersort" / "_archsplit")
    workbench.core(site / "x")
    (site / "x" / "vecsort" / "_archsplit").rename(site / "vecsort" / "_archsplit")
    (site / "othersort" / "__init__.py").write_text("from ._archsplit import load, explain\n")
    identity = json.loads((site / "othersort" / "_archsplit" / "core.json").read_text())
    identity |= {"package": "othersort", "plugins_package": "othersort_plugins"}
    (site / "othersort" / "_archsplit" / "core.json").write_text(json.dumps(identity))
    write_table(site / "othersort" / "_archsplit")
    workbench.plugin(site, "sm_90")
    other = site / "othersort_plugins" / "cuda" / "sm_90" / LIBRARY
    workbench.stub(other, Stub(package=b"othersort"))
    code = "import vecsort, othersort; print(vecsort.load()._name); print(othersort.load()._name)"
    lines = workbench.python(site, code, gpus="9.0").stdout.splitlines()
    assert lines == [str(site / "vecsort_plugins" / "cuda" / "sm_90" / LIBRARY), str(other)]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("rm core.json", "core.json: No such file or directory; install the core again"),
        ("echo { > core.json", "core.json is damaged"),
        ("echo '{\"schema\": 2}' > core.json", "has schema 2, expected 1"),
        ("echo '{\"schema\": 1}' > core.json", "core.json is damaged"),
        ("echo 7 > core.json", "core.json is damaged"),
        ("rm core.pack", "core.pack); install the core again"),
        ("echo > core.pack", "core.pack); install the core again"),
        ("rm libarchsplit_loader.so", "can't open the loader: "),
        ("echo > libarchsplit_loader.so", "can't open the loader: "),
    ],
)
def test_damaged_core_is_told(workbench: Workbench, site: Path, damage: str, words: str) -> None:
    subprocess.run(["sh", "-c", damage], cwd=site / "vecsort" / "_archsplit", check=True)
    assert words in message(workbench, site, gpus="9.0")


def test_core_in_a_zip_gets_a_hint(workbench: Workbench, site: Path, tmp_path: Path) -> None:
    archive = Path(shutil.make_archive(str(tmp_path / "core"), "zip", site))
    assert message(workbench, archive) == (
        f"PluginError\ncan't read {archive}/vecsort/_archsplit/core.json: "
        "a core can't run from a zip file; install it with pip\n"
    )


def test_import_is_cheap_and_looks_for_nothing(workbench: Workbench, site: Path) -> None:
    code = (
        "import sys, vecsort; print(sorted(set(sys.modules) & {'ctypes', 'json', 'dataclasses'}))"
    )
    assert workbench.python(site, code).stdout == "[]\n"


def test_pip_is_asked_for_the_distribution_without_an_extra() -> None:
    core = _core.Core(
        package="foo", version="1", build_id="", interface_hash="", library="", plugins_package="",
        distribution="foo", targets={"sm_90": "bar-sm90"},
    )  # fmt: skip
    assert _commands.plugin_command(core, "sm_90", None) == 'pip install "bar-sm90==1"'


def test_reading_a_core_outside_a_wheel_is_an_error() -> None:
    with pytest.raises(PluginError, match=r"core\.json: No such file"):
        _reading.read_core()
