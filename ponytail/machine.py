"""What this machine gives us: CPU threads and memory, after affinity, cgroups and SMT.

Owns reading /proc, /sys and the cgroup hierarchies (v1 and v2, nested limits).
Must not know what the numbers are used for.  Every function takes the root of
the file system it reads, so that tests bring their own.  Any thread.

Sources: cgroups(7), proc(5), Documentation/admin-guide/cgroup-v2.rst and
cgroup-v1/memory.rst of the Linux kernel.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path("/")

# cgroup v1 says "no limit" with the largest page-aligned long.
_NO_LIMIT_BYTES = 2**60


@dataclass(frozen=True, slots=True)
class Threads:
    """How many threads may compute, and why."""

    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class Memory:
    """What may still be allocated; `limit_bytes` is the tightest cgroup limit, if there is one."""

    available_bytes: int
    limit_bytes: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class _Level:
    """One directory of a cgroup hierarchy."""

    path: Path
    is_v2: bool


def usable_threads(root: Path = ROOT, affinity: frozenset[int] | None = None) -> Threads:
    """min(affinity, floor(CPU quota), physical cores), at least 1."""
    cpus = _affinity() if affinity is None else affinity
    n_cores = physical_cores(root, cpus)
    quota = cpu_quota(root)
    count = max(1, min(len(cpus), n_cores))
    reason = f"{len(cpus)} CPUs allowed, {n_cores} physical cores"
    if quota is None:
        return Threads(count, f"{reason}, no CPU quota")
    return Threads(max(1, min(count, int(quota))), f"{reason}, quota of {quota:.4g} CPUs")


def _affinity() -> frozenset[int]:
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def physical_cores(root: Path, cpus: frozenset[int]) -> int:
    """Cores behind `cpus`; SMT siblings count once.  Without a topology each CPU is a core."""
    cores = set()
    for cpu in cpus:
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        siblings = _read(topology / "core_cpus_list") or _read(topology / "thread_siblings_list")
        cores.add(siblings or str(cpu))
    return len(cores)


def cpu_quota(root: Path = ROOT) -> float | None:
    """The tightest CPU quota on the way up the hierarchy, in CPUs."""
    quotas = [q for level in _levels(root, "cpu") if (q := _level_quota(level)) is not None]
    return min(quotas, default=None)


def _level_quota(level: _Level) -> float | None:
    if level.is_v2:
        words = (_read(level.path / "cpu.max") or "").split()
        quota, period = (_number(words[0]), _number(words[1])) if len(words) == 2 else (None, None)
    else:
        quota = _number(_read(level.path / "cpu.cfs_quota_us"))
        period = _number(_read(level.path / "cpu.cfs_period_us"))
    if quota is None or not period or quota <= 0:
        return None
    return quota / period


def available_memory(root: Path = ROOT) -> Memory:
    """min of MemAvailable and, at each cgroup level, limit - (usage - reclaimable file cache).

    The pages of a mapped model count as usage in a cgroup, but the kernel drops
    them when asked; counting them would refuse the second load.
    """
    available = _mem_available(root)
    reason = f"{_gib(available)} available on the machine"
    tightest = None
    for level in _levels(root, "memory"):
        limit = _level_limit(level)
        if limit is None:
            continue
        tightest = limit if tightest is None else min(tightest, limit)
        free = max(0, limit - _level_in_use(level))
        if free < available:
            available = free
            reason = f"{_gib(free)} left of the cgroup limit of {_gib(limit)}"
    return Memory(available, tightest, reason)


def _mem_available(root: Path) -> int:
    info = _table(root / "proc/meminfo")
    for key in ("MemAvailable:", "MemFree:"):
        if key in info:
            return info[key] * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _level_limit(level: _Level) -> int | None:
    # memory.high does not kill, but beyond it the kernel throttles until nothing moves.
    names = ("memory.max", "memory.high") if level.is_v2 else ("memory.limit_in_bytes",)
    limits = [_number(_read(level.path / name)) for name in names]
    return min((n for n in limits if n is not None and n < _NO_LIMIT_BYTES), default=None)


def _level_in_use(level: _Level) -> int:
    usage = _number(
        _read(level.path / ("memory.current" if level.is_v2 else "memory.usage_in_bytes"))
    )
    stat = _table(level.path / "memory.stat")
    # In v1 the plain counters leave out the groups below; total_* has them.
    prefix = "" if level.is_v2 or "total_inactive_file" not in stat else "total_"
    cache = stat.get(f"{prefix}inactive_file", 0) + stat.get(f"{prefix}active_file", 0)
    return max(0, (usage or 0) - cache)


def _levels(root: Path, controller: str) -> Iterator[_Level]:
    """This process's directories for `controller`, from its own up to the mount point."""
    for is_v2, mount, mounted in _mounts(root, controller):
        own = _own_path(root, controller, is_v2)
        if own is None:
            continue
        top = root / mount.relative_to("/")
        # In a container the path may be the host's; what is mounted shows where to start.
        inside = own.relative_to(mounted) if own.is_relative_to(mounted) else PurePosixPath()
        parts = () if ".." in inside.parts else inside.parts
        for depth in range(len(parts), -1, -1):
            path = top.joinpath(*parts[:depth])
            if path.is_dir():
                yield _Level(path, is_v2)


def _mounts(root: Path, controller: str) -> list[tuple[bool, PurePosixPath, PurePosixPath]]:
    """(is v2, mount point, what of the hierarchy is mounted there), once per hierarchy."""
    found: dict[bool, tuple[bool, PurePosixPath, PurePosixPath]] = {}
    for line in (_read(root / "proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        is_v2 = kind[0] == "cgroup2"
        if is_v2 or (kind[0] == "cgroup" and controller in kind[2].split(",")):
            found.setdefault(is_v2, (is_v2, PurePosixPath(fields[4]), PurePosixPath(fields[3])))
    return list(found.values())


def _own_path(root: Path, controller: str, is_v2: bool) -> PurePosixPath | None:
    """This process's path in the hierarchy; lines read `id:controllers:path`."""
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        words = line.split(":", 2)
        if len(words) != 3:
            continue
        is_ours = words[:2] == ["0", ""] if is_v2 else controller in words[1].split(",")
        if is_ours:
            return PurePosixPath(words[2])
    return None


# What decides how fast llama.cpp is on a CPU, by the names of /proc/cpuinfo.
_FEATURES = {
    "sse4_2": "SSE4.2",
    "avx": "AVX",
    "avx2": "AVX2",
    "fma": "FMA",
    "f16c": "F16C",
    "avx_vnni": "AVX_VNNI",
    "avx512f": "AVX512F",
    "avx512_vnni": "AVX512_VNNI",
    "avx512_bf16": "AVX512_BF16",
    "amx_int8": "AMX_INT8",
    "asimd": "NEON",
    "asimddp": "DOTPROD",
    "i8mm": "I8MM",
    "sve": "SVE",
}


def cpu_features(root: Path = ROOT) -> tuple[str, ...]:
    """The instruction sets that matter for inference and that this CPU has."""
    for line in (_read(root / "proc/cpuinfo") or "").splitlines():
        key, _, words = line.partition(":")
        if key.strip() in ("flags", "Features"):
            has = frozenset(words.split())
            return tuple(name for word, name in _FEATURES.items() if word in has)
    return ()


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def _number(text: str | None) -> int | None:
    """None for "max", for a missing file, and for what is no number."""
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None


def _table(path: Path) -> dict[str, int]:
    """`key value ...` lines; those without a number are left out."""
    table = {}
    for line in (_read(path) or "").splitlines():
        words = line.split()
        if len(words) >= 2 and (number := _number(words[1])) is not None:
            table[words[0]] = number
    return table


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.1f} GiB"
