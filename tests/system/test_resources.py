from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from archsplit.system.resources import SystemMemory, resident_memory

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MB = 1 << 20
MEMINFO = "MemTotal: 16777216 kB\nMemFree: 4096 kB\nMemAvailable: 8388608 kB\nHugePages_Total: 0\n"
V1 = "sys/fs/cgroup/memory"
V2 = "sys/fs/cgroup"


def tree(folder: Path, files: Mapping[str, object], *, cgroup: str = "") -> Path:
    """A made-up / with 16 GB of memory, 8 GB of them available."""
    for name, text in {"proc/meminfo": MEMINFO, "proc/self/cgroup": cgroup, **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{text}\n")
    return folder


def facts(folder: Path) -> tuple[int, int]:
    memory = SystemMemory(folder)
    return memory.total // MB, memory.available() // MB


def test_without_cgroups_the_machine_counts(tmp_path: Path) -> None:
    assert facts(tree(tmp_path, {})) == (16384, 8192)


def test_nothing_is_limited_without_proc(tmp_path: Path) -> None:
    memory = SystemMemory(tmp_path)
    assert memory.total == memory.available() > 1 << 50


def test_the_real_machine_has_some() -> None:
    memory = SystemMemory()
    assert 1 << 28 < memory.available() <= memory.total


def v2(place: str, limit: object, used: int, **more: object) -> dict[str, object]:
    stat = "anon 1\ninactive_file {0}\nactive_file {0}\nslab_reclaimable {0}\nfile 999999999999"
    files = {"memory.max": limit, "memory.current": used, "memory.stat": stat.format(10 * MB)}
    return {f"{V2}{place}/{name}": text for name, text in {**files, **more}.items()}


def test_the_narrowest_limit_up_the_tree_counts(tmp_path: Path) -> None:
    files = {
        **v2("/build.slice", 4096 * MB, 3000 * MB),
        **v2("/build.slice/job", 6000 * MB, 500 * MB),
    }
    root = tree(tmp_path, files, cgroup="0::/build.slice/job")
    # The parent has 4096 - 3000 left, and 30 of what is used is page cache.
    assert facts(root) == (4096, 4096 - 3000 + 30)


def test_without_a_limit_a_cgroup_does_not_count(tmp_path: Path) -> None:
    assert facts(tree(tmp_path, v2("/a", "max", 3000 * MB), cgroup="0::/a")) == (16384, 8192)


def test_a_soft_limit_is_a_limit(tmp_path: Path) -> None:
    files = v2("/a", "max", 1000 * MB, **{"memory.high": 2000 * MB})
    assert facts(tree(tmp_path, files, cgroup="0::/a")) == (2000, 1030)


def test_in_a_container_the_path_may_be_the_hosts(tmp_path: Path) -> None:
    files = v2("", 1000 * MB, 200 * MB)
    assert facts(tree(tmp_path, files, cgroup="0::/../../docker/abc")) == (1000, 830)


def test_available_memory_is_never_negative(tmp_path: Path) -> None:
    assert facts(tree(tmp_path, v2("", 100 * MB, 900 * MB), cgroup="0::/"))[1] == 0


def v1(place: str, limit: int, used: int) -> dict[str, object]:
    stat = f"cache 5\ninactive_file 999999999999\ntotal_inactive_file {10 * MB}\n"
    files = {
        "memory.limit_in_bytes": limit,
        "memory.usage_in_bytes": used,
        "memory.stat": f"{stat}total_active_file {10 * MB}",
    }
    return {f"{V1}{place}/{name}": text for name, text in files.items()}


def test_version_1_has_other_file_names(tmp_path: Path) -> None:
    files = {
        **v1("", 0x7FFFFFFFFFFFF000, 0),
        **v1("/ci", 3000 * MB, 1000 * MB),
        **v1("/ci/job", 0x7FFFFFFFFFFFF000, 1000 * MB),
    }
    cgroup = "9:name=systemd:/\n4:cpu,memory:/ci/job\n0::/elsewhere"
    assert facts(tree(tmp_path, files, cgroup=cgroup)) == (3000, 2020)


def test_unreadable_numbers_limit_nothing(tmp_path: Path) -> None:
    files = {f"{V2}/memory.max": "nonsense", f"{V2}/memory.current": ""}
    assert facts(tree(tmp_path, files, cgroup="0::/")) == (16384, 8192)


def process(pid: int, pages: int, **children: str) -> dict[str, object]:
    files: dict[str, object] = {f"proc/{pid}/statm": f"999 {pages} 3 1 0 5 0"}
    tasks = {f"proc/{pid}/task/{task[1:]}/children": pids for task, pids in children.items()}
    return {**files, **tasks, f"proc/{pid}/task/{pid}/comm": "x"}


def test_a_tree_of_processes_is_the_sum_of_its_members(tmp_path: Path) -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    files = {
        **process(10, 100, t10="11 12", t99="13"),
        **process(11, 20),
        **process(12, 3),
        **process(13, 4000),
        **process(14, 50000),
    }
    # 12 has a child that has just ended.
    files["proc/12/task/12/children"] = "77"
    root = tree(tmp_path, files)
    assert resident_memory(10, root) == 4123 * page
    assert resident_memory(77, root) == 0


def test_resident_memory_includes_child_processes() -> None:
    text = "block = b'x' * (200 << 20); print(flush=True); input()"
    argv = ["sh", "-c", f'"{sys.executable}" -c "{text}"; true']
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        assert resident_memory(parent.pid) > 200 * MB
        parent.communicate(b"\n")
    assert resident_memory(parent.pid) == 0


@pytest.mark.parametrize("system", [SystemMemory()])
def test_a_query_is_quick(system: SystemMemory) -> None:
    began = time.perf_counter()
    for _ in range(20):
        system.available()
    assert (time.perf_counter() - began) / 20 < 0.1


def test_freed_memory_goes_to_other_threads() -> None:
    program = """
import resource, sys, threading
from archsplit.system.resources import reuse_freed_memory
if sys.argv[1] == "reuse":
    reuse_freed_memory()
def work():
    # As for an image: its bytes, and what is made of them.
    held = [b"x" * (6 << 20) for _ in range(4)]
def faults():
    for _ in range(8):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
faults()
print(-resource.getrusage(resource.RUSAGE_SELF).ru_minflt + faults())
"""
    kept, freed = (
        int(subprocess.check_output([sys.executable, "-c", program, word]))
        for word in ("reuse", "free")
    )
    # 10 pages and 37,000 with glibc 2.36.
    assert kept * 100 < freed
