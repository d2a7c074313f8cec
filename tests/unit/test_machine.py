"""Threads and memory from made-up /proc and /sys trees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ponytail.machine import (
    Memory,
    available_memory,
    cpu_features,
    cpu_quota,
    physical_cores,
    usable_threads,
)

GIB = 2**30
NO_LIMIT_V1 = 9223372036854771712
V2 = "30 23 0:26 {mounted} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
V1 = (
    "31 23 0:27 {mounted} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "32 23 0:28 {mounted} /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n"
)


class Tree:
    """A root directory to fill."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: object) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f"{text}\n")

    def v2(self, own: str = "/", mounted: str = "/") -> None:
        self.write("proc/self/mountinfo", V2.format(mounted=mounted))
        self.write("proc/self/cgroup", f"0::{own}")

    def v1(self, own: str = "/", mounted: str = "/") -> None:
        self.write("proc/self/mountinfo", V1.format(mounted=mounted))
        self.write("proc/self/cgroup", f"9:memory:{own}\n3:cpu,cpuacct:{own}\n1:name=systemd:/x")

    def cpus(self, siblings: list[str]) -> None:
        for cpu, text in enumerate(siblings):
            self.write(f"sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list", text)

    def meminfo(self, available_bytes: int) -> None:
        self.write("proc/meminfo", f"MemTotal: 99 kB\nMemAvailable: {available_bytes // 1024} kB")

    def level(self, path: str, limit: object, current: int, inactive: int, active: int) -> None:
        self.write(f"{path}/memory.max", limit)
        self.write(f"{path}/memory.current", current)
        self.write(
            f"{path}/memory.stat",
            f"anon 1\ninactive_file {inactive}\nactive_file {active}\nfile {inactive + active}",
        )


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def cpus(n: int) -> frozenset[int]:
    return frozenset(range(n))


def test_without_any_limit_physical_cores_decide(tree: Tree) -> None:
    tree.cpus(["0,4", "1,5", "2,6", "3,7"] * 2)
    threads = usable_threads(tree.root, cpus(8))
    assert threads.count == 4
    assert threads.reason == "8 CPUs allowed, 4 physical cores, no CPU quota"


def test_affinity_to_two_siblings_is_one_core(tree: Tree) -> None:
    tree.cpus(["0-1", "0-1", "2-3", "2-3"])
    assert physical_cores(tree.root, frozenset({0, 1})) == 1
    assert physical_cores(tree.root, frozenset({1, 2})) == 2


def test_older_kernels_name_the_siblings_differently(tree: Tree) -> None:
    for cpu in range(4):
        path = f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        tree.write(path, f"{cpu % 2},{cpu % 2 + 2}")
    assert physical_cores(tree.root, cpus(4)) == 2


def test_without_a_topology_every_cpu_is_a_core(tree: Tree) -> None:
    assert usable_threads(tree.root, cpus(6)).count == 6


@pytest.mark.parametrize(
    ("cpu_max", "count"),
    [
        ("765000 100000", 7),
        ("200000 100000", 2),
        ("50000 100000", 1),
        ("5000 1000", 5),
        ("max 100000", 16),
        ("nonsense", 16),
    ],
)
def test_v2_quota(tree: Tree, cpu_max: str, count: int) -> None:
    tree.v2("/")
    tree.write("sys/fs/cgroup/cpu.max", cpu_max)
    assert usable_threads(tree.root, cpus(16)).count == count


def test_fractional_quota_is_said_as_it_is(tree: Tree) -> None:
    tree.v2()
    tree.write("sys/fs/cgroup/cpu.max", "765000 100000")
    assert "quota of 7.65 CPUs" in usable_threads(tree.root, cpus(16)).reason


def test_tightest_of_nested_v2_quotas_wins(tree: Tree) -> None:
    tree.v2("/system.slice/app.service/inner")
    tree.write("sys/fs/cgroup/cpu.max", "max 100000")
    tree.write("sys/fs/cgroup/system.slice/cpu.max", "300000 100000")
    tree.write("sys/fs/cgroup/system.slice/app.service/cpu.max", "800000 100000")
    tree.write("sys/fs/cgroup/system.slice/app.service/inner/cpu.max", "max 100000")
    tree.write("sys/fs/cgroup/other.slice/cpu.max", "100000 100000")
    assert cpu_quota(tree.root) == 3.0


def test_tightest_of_nested_v1_quotas_wins(tree: Tree) -> None:
    tree.v1("/docker/abc")
    base = "sys/fs/cgroup/cpu,cpuacct"
    for path, quota in ((base, -1), (f"{base}/docker", 250_000), (f"{base}/docker/abc", 765_000)):
        tree.write(f"{path}/cpu.cfs_quota_us", quota)
        tree.write(f"{path}/cpu.cfs_period_us", 100_000)
    assert cpu_quota(tree.root) == 2.5
    assert usable_threads(tree.root, cpus(8)).count == 2


def test_v1_without_quota(tree: Tree) -> None:
    tree.v1()
    tree.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", -1)
    tree.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", 100_000)
    assert cpu_quota(tree.root) is None


@pytest.mark.parametrize("own", ["/docker/abc", "/../other", "/not/there"])
def test_container_sees_only_its_own_part(tree: Tree, own: str) -> None:
    tree.v2(own, mounted="/docker/abc")
    tree.write("sys/fs/cgroup/cpu.max", "200000 100000")
    assert cpu_quota(tree.root) == 2.0


def test_memory_without_cgroups_is_what_the_kernel_says(tree: Tree) -> None:
    tree.meminfo(3 * GIB)
    memory = available_memory(tree.root)
    assert memory == Memory(3 * GIB, None, "3.0 GiB available on the machine")


def test_file_cache_of_the_last_model_does_not_count_as_use(tree: Tree) -> None:
    tree.v2()
    tree.meminfo(30 * GIB)
    tree.level("sys/fs/cgroup", 2 * GIB, 2_040_109_465, 1_200_000_000, 517_986_918)
    memory = available_memory(tree.root)
    assert memory.available_bytes == 2 * GIB - (2_040_109_465 - 1_717_986_918)
    assert memory.limit_bytes == 2 * GIB
    assert memory.reason == "1.7 GiB left of the cgroup limit of 2.0 GiB"


def test_real_use_does_count(tree: Tree) -> None:
    tree.v2()
    tree.meminfo(30 * GIB)
    tree.level("sys/fs/cgroup", 2 * GIB, 2 * GIB, 0, 0)
    assert available_memory(tree.root).available_bytes == 0


def test_machine_can_be_tighter_than_the_limit(tree: Tree) -> None:
    tree.v2()
    tree.meminfo(GIB)
    tree.level("sys/fs/cgroup", 8 * GIB, 0, 0, 0)
    memory = available_memory(tree.root)
    assert (memory.available_bytes, memory.limit_bytes) == (GIB, 8 * GIB)
    assert "on the machine" in memory.reason


def test_unlimited_v2_falls_back_to_the_machine(tree: Tree) -> None:
    tree.v2()
    tree.meminfo(4 * GIB)
    tree.level("sys/fs/cgroup", "max", 9 * GIB, 0, 0)
    assert available_memory(tree.root).limit_bytes is None
    assert available_memory(tree.root).available_bytes == 4 * GIB


def test_every_level_is_looked_at(tree: Tree) -> None:
    tree.v2("/a/b")
    tree.meminfo(64 * GIB)
    tree.level("sys/fs/cgroup/a", 8 * GIB, 7 * GIB, 0, 0)
    tree.level("sys/fs/cgroup/a/b", 4 * GIB, GIB, 0, 0)
    memory = available_memory(tree.root)
    # The parent has 1 GiB left although the group itself could have 3.
    assert (memory.available_bytes, memory.limit_bytes) == (GIB, 4 * GIB)


def test_throttling_limit_counts(tree: Tree) -> None:
    tree.v2()
    tree.meminfo(64 * GIB)
    tree.level("sys/fs/cgroup", "max", GIB, 0, 0)
    tree.write("sys/fs/cgroup/memory.high", 3 * GIB)
    assert available_memory(tree.root).available_bytes == 2 * GIB


def test_v1_counts_the_groups_below(tree: Tree) -> None:
    tree.v1("/docker/abc")
    tree.meminfo(64 * GIB)
    base = "sys/fs/cgroup/memory"
    tree.write(f"{base}/memory.limit_in_bytes", NO_LIMIT_V1)
    tree.write(f"{base}/docker/abc/memory.limit_in_bytes", 2 * GIB)
    tree.write(f"{base}/docker/abc/memory.usage_in_bytes", 2 * GIB)
    tree.write(
        f"{base}/docker/abc/memory.stat",
        f"inactive_file 0\nactive_file 0\ntotal_inactive_file {GIB}\ntotal_active_file 0",
    )
    assert available_memory(tree.root).available_bytes == GIB
    assert available_memory(tree.root).limit_bytes == 2 * GIB


def test_huge_v1_number_is_no_limit(tree: Tree) -> None:
    tree.v1()
    tree.meminfo(5 * GIB)
    tree.write("sys/fs/cgroup/memory/memory.limit_in_bytes", NO_LIMIT_V1)
    tree.write("sys/fs/cgroup/memory/memory.usage_in_bytes", 60 * GIB)
    assert available_memory(tree.root) == Memory(5 * GIB, None, "5.0 GiB available on the machine")


def test_features_by_their_usual_names(tree: Tree) -> None:
    tree.write("proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu avx2 avx512f avx512_vnni\n")
    assert cpu_features(tree.root) == ("AVX2", "AVX512F", "AVX512_VNNI")
    tree.write("proc/cpuinfo", "processor : 0\nFeatures : fp asimd asimddp i8mm\n")
    assert cpu_features(tree.root) == ("NEON", "DOTPROD", "I8MM")


def test_this_machine_has_something() -> None:
    n_allowed = len(os.sched_getaffinity(0))
    assert 1 <= usable_threads().count <= n_allowed
    assert available_memory().available_bytes > 0
