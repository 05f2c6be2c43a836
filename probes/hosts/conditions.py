"""Reads what a worker inherits and meets on its node, judges it by a table, and compares nodes.

A reading has a name of two parts: its kind, and what was read, as `limit Max file size`.  The file
`conditions.toml` says what is read and which conditions are known to break jobs.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import resource
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from fnmatch import fnmatchcase
from functools import cache, cached_property, partial
from pathlib import Path

from pydantic import model_validator

from probes.check.judging import ask_victim, explain_alike, plant, record_each
from probes.check.recorder import Recorder
from probes.cluster import system_facts
from probes.cluster.ask import make_unique_token
from probes.cluster.cluster import Cluster
from probes.cluster.node_facts import usable_cpus
from probes.cluster.node_watch import UNEXPECTED
from probes.cluster.ray_internals import read_session
from probes.cluster.variables import SET, withhold
from probes.contract.contract import ClusterTerms
from probes.findings import join_names
from probes.hosts import criterion as check
from probes.hosts.gpu_health import AllFacts, Facts
from probes.toml_tables import ClosedTable, read_tables, validate
from reports.groups import group_pairs
from reports.measurement import Limit, Verdict

TABLE = Path(__file__).with_name("conditions.toml")
LIMIT_ROW = re.compile(r"^(Max .+?) {2,}(\S+) +\S+", re.MULTILINE)  # of /proc/PID/limits: soft
NUMBER = re.compile(r"\d+(\.\d+)?")
WRITTEN_BYTES = 2**30  # of one file on a local disk
WRITTEN_ELSEWHERE = 2**24  # on tmpfs, whose files take memory of jobs, and on file servers
DISKS = ("ext4", "xfs", "btrfs")  # they allocate a file without writing its blocks
WRITTEN = ("temporary", "session", "shared memory")  # folders for large files
RAY_PORTS = (10002, 19999)  # of workers: Ray's defaults, min_worker_port and max_worker_port
CLOCK_SOURCE = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
ABSENT = "not there"  # in place of a reading that another node has
Readings = dict[str, str]


class Condition(ClosedTable):
    """Condition that is known to break or slow jobs; the file says what the keys mean."""

    of: str
    low: float | None = None
    high: float | None = None
    one_of: list[str] | None = None
    noted: bool = False
    code: str
    text: str
    because: str
    threads: list[str]

    @cached_property
    def limit(self) -> Limit:
        """Limit of the reading."""
        return Limit(low=self.low, high=self.high, one_of=self.one_of, because=self.because)

    @model_validator(mode="after")
    def _check_limit(self) -> Condition:
        """Reject a row that has no limit; Limit rejects one that has two."""
        if self.limit.one_of is None and self.limit.low is None and self.limit.high is None:
            raise ValueError("expected `low`, `high` or `one_of`, found none")
        return self

    def judge(self, value: str | None) -> Verdict:
        """Judge a reading; UNPROVEN where there is none."""
        if self.one_of is None and value is not None:
            text = value.replace("unlimited", str(2**63))
            return self.limit.judge(float(text) if NUMBER.fullmatch(text) else None)
        return self.limit.judge(value)


class Conditions(ClosedTable):
    """The file of conditions."""

    settings: str
    files: str
    variables: str
    left_out: dict[str, str]
    rows: dict[str, Condition]


@cache
def read_table() -> Conditions:
    """Read the file of conditions, once.  Raises TableError."""
    return validate(Conditions, read_tables(TABLE), str(TABLE))


def read_conditions(salt: str, file_bytes: int, ray_cpus: float) -> Facts:
    """Read the conditions of this worker: {"readings": {name: text}, "unreadable": {kind: why}}.

    `salt` makes hashes of values that are comparable in one run alone.  With `file_bytes`, for a
    control, no file may be longer meanwhile.  `ray_cpus` is how many CPUs Ray counts on this node.
    """
    kinds: dict[str, Callable[[], Readings]] = {
        "limit": read_limits,
        "cpus": lambda: read_cpus(ray_cpus),
        "process": read_process,
        "setting": read_kernel_settings,
        "variable": lambda: read_variables(os.environ, salt),
        "file": read_files,
        "folder": read_folders,
        "ports": read_ports,
    }
    with limited(file_bytes) if file_bytes else nullcontext():
        found = {kind: system_facts.try_reading(read) for kind, read in kinds.items()}
    failed = {kind: each["unreadable"] for kind, each in found.items() if "unreadable" in each}
    readings = {
        f"{kind} {name}": text
        for kind, each in found.items()
        if kind not in failed
        for name, text in each.items()
    }
    return {"readings": readings, "unreadable": failed}


@contextmanager
def limited(file_bytes: int) -> Iterator[None]:
    """Let this process write no longer file for the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def read_limits(proc: str = "/proc/self") -> Readings:
    """Read all limits of this process."""
    return dict(LIMIT_ROW.findall(Path(proc, "limits").read_text()))


def read_cpus(ray_cpus: float) -> Readings:
    """Read the CPUs that this process may use, and their share of those that Ray counts."""
    usable = usable_cpus()
    share = usable / max(min(ray_cpus, os.cpu_count() or 1), 1)
    return {"usable": f"{usable:g}", "share of Ray's": f"{min(share, 1):g}"}


def read_process(proc: str = "/proc/self") -> Readings:
    """Read scheduler, umask, capabilities and other rights of this process, and its clock."""
    status = system_facts.parse_status(Path(proc, "status").read_text())
    names, mask = ("CapEff", "CapBnd", "Seccomp", "NoNewPrivs"), os.umask(0o022)
    os.umask(mask)
    clock = system_facts.read_text(Path(CLOCK_SOURCE))
    policies = {getattr(os, name): name for name in dir(os) if name.startswith("SCHED_")}
    return {
        **{name: status[name] for name in names if name in status},
        "umask": f"{mask:04o}",
        "umask of owner": f"{mask:04o}"[1],
        "scheduler": policies.get(os.sched_getscheduler(0) & 0xF, "unknown"),
        "niceness": str(os.getpriority(os.PRIO_PROCESS, 0)),
        "oom_score_adj": system_facts.read_text(Path(proc, "oom_score_adj")),
        **({"clock source": clock} if clock else {}),
    }


def read_kernel_settings(root: str = "/proc/sys") -> Readings:
    """Read the kernel settings of the file."""
    paths = (path for one in read_table().settings.split() for path in Path(root).glob(one))
    texts = {str(path.relative_to(root)): system_facts.read_text(path) for path in paths}
    return {name: " ".join(text.split()) for name, text in sorted(texts.items())}


def read_variables(environment: Mapping[str, str], salt: str) -> Readings:
    """Read the variables of the file; one whose value is withheld has a salted hash of it."""
    patterns, readings = read_table().variables.split(), Readings()
    for name, value in sorted(environment.items()):
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            text = withhold(name, value)
            digest = hashlib.sha256(f"{salt}{name}={value}".encode()).hexdigest()[:8]
            readings[name] = f"{SET} ({digest})" if text == SET else text
    return readings


def read_files() -> Readings:
    """Read the hash of each file of the table; "none" for one that is not there."""
    found = {path: Path(path) for path in read_table().files.split()}
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()[:8] if path.exists() else "none"
        for name, path in found.items()
    }


def read_folders() -> Readings:
    """Read path, file system, rights and the answer to a write of each folder that jobs use."""
    folders = {
        "temporary": system_facts.find_temporary_folder(),
        "session": read_session()[1],
        "home": os.path.expanduser("~"),
        "shared memory": system_facts.SHARED_MEMORY,
    }
    # By the documents of torch and of Triton.
    folders |= {
        "torch cache": os.environ.get("TORCHINDUCTOR_CACHE_DIR", folders["temporary"]),
        "Triton cache": os.environ.get("TRITON_CACHE_DIR", folders["home"]),
    }
    readings = Readings()
    for name, path in folders.items():
        there = os.path.isdir(path)
        kind = system_facts.name_file_system(path, "/proc/self/mountinfo").partition(" ")[0]
        noexec = there and os.statvfs(path).f_flag & os.ST_NOEXEC
        execution = "refused (noexec)" if noexec else "allowed" if there else "absent"
        write = try_allocating(path, kind) if name in WRITTEN else system_facts.try_writing(path)
        folder = {"path": path, "file system": kind, "execution": execution}
        folder["write"] = write or "done"
        readings |= {f"{name} {what}": text for what, text in folder.items()}
    return readings


def try_allocating(path: str, file_system: str) -> str:
    """Allocate a file as large as jobs need, and remove it; return the error, or ""."""
    try:
        room = os.statvfs(path)
        size = WRITTEN_BYTES if file_system in DISKS else WRITTEN_ELSEWHERE
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(bytes(system_facts.TRIED_BYTES))
            free = room.f_bavail * room.f_frsize // 4 if room.f_blocks else size
            os.posix_fallocate(file.fileno(), 0, max(1, min(size, free)))
    except OSError as error:
        return error.strerror or str(error)
    return ""


def read_ports(root: str = "/proc/sys/net/ipv4") -> Readings:
    """Count the ports of Ray's workers that the kernel may give to outgoing connections."""
    low, high = map(int, Path(root, "ip_local_port_range").read_text().split())
    taken = range(max(low, RAY_PORTS[0]), min(high, RAY_PORTS[1]) + 1)
    reserved = system_facts.read_text(Path(root, "ip_local_reserved_ports"))
    spans = [[*map(int, span.split("-"))] for span in reserved.split(",") if span]
    free = sum(not any(span[0] <= port <= span[-1] for span in spans) for port in taken)
    return {"of Ray in the kernel's range": str(free)}


def measure_conditions(cluster: Cluster, terms: ClusterTerms, measure: Recorder) -> None:
    """Read the conditions on each node, judge and compare them, and run the control."""
    counts = {node["id"]: node["resources"].get("CPU", 0.0) for node in cluster.nodes}
    ordered = terms.cpus_per_node or math.inf
    ray_cpus = {id: min(count, ordered) for id, count in counts.items()}
    salt = make_unique_token()
    answers = cluster.on_each_node(read_conditions, salt, 0, each=ray_cpus)
    facts = [fact for fact in cluster.facts if fact["node"] in answers]
    lost = Counter(one.address for one in cluster.node_states() if one.reason == UNEXPECTED)
    found = {one["name"]: with_cluster(answers[one["node"]], one, facts, lost) for one in facts}
    silent = [node["name"] for node in cluster.nodes if node["name"] not in found]
    caption = "what a worker inherits and meets on most nodes, and what others have instead"
    measure.keep("conditions.json", shorten(found), caption=caption)
    judge_conditions(found, silent, measure)
    kinds = group_pairs((terms.kind_of(fact), fact["name"]) for fact in facts)
    for names in kinds.values():
        note_unlike({name: found[name]["readings"] for name in names}, measure)
    if facts:
        control_short_files(cluster, facts[-1], ray_cpus, measure)


def with_cluster(answer: Facts, fact: Facts, facts: AllFacts, lost: Mapping[str, int]) -> Facts:
    """Add how many other machines have the host name of a node, and how often it was lost.

    `lost` is by address: a node that comes back has another id.
    """
    others = {one["boot_id"] for one in facts if one["host"] == fact["host"]} - {fact["boot_id"]}
    known = {
        "name machines with the same": str(len(others)),
        "raylet losses": str(lost.get(fact["address"], 0)),
    }
    return {**answer, "readings": {**answer["readings"], **known}}


def shorten(found: Mapping[str, Facts]) -> Facts:
    """Return the readings of most nodes once, and of each node those that it has instead."""
    readings = {who: node["readings"] for who, node in found.items()}
    counts: dict[str, Counter[str]] = {}
    for name, text in (item for node in readings.values() for item in node.items()):
        counts.setdefault(name, Counter())[text] += 1
    usual = {name: texts.most_common(1)[0][0] for name, texts in counts.items()}
    others = {
        who: {name: node.get(name, ABSENT) for name in usual if node.get(name) != usual[name]}
        for who, node in readings.items()
    }
    unreadable = {who: node["unreadable"] for who, node in found.items() if node["unreadable"]}
    return {"usual": usual, "others": others, "unreadable": unreadable}


def judge_conditions(found: Mapping[str, Facts], silent: Sequence[str], measure: Recorder) -> None:
    """Judge each row of the file on each node, by name; what is only noted fails nothing."""
    broken: Counter[str] = Counter()
    unread: dict[str, list[str]] = {name: [] for name in found}
    for title, row in read_table().rows.items():
        faults = {}
        for name, node in found.items():
            value = node["readings"].get(row.of)
            verdict = row.judge(value)
            if verdict is Verdict.UNPROVEN and not row.noted:
                why = node["unreadable"].get(row.of.partition(" ")[0], "it is not there")
                unread[name].append(f"{row.of}: {why}")
            elif verdict is Verdict.FAIL:
                faults[name] = row.text.format(value=value)
        if row.noted:
            for text, names in group_pairs((text, name) for name, text in faults.items()).items():
                measure.note(title, text, on=join_names(names))
        else:
            broken.update(faults.keys())
            because = f"{{nodes}}: {{text}}. It breaks jobs, because {row.because}"
            explain_alike(measure, row.code, faults, because, asked=len(found))
    counts = {name: broken[name] or (None if unread[name] else 0) for name in found}
    notes = {name: "; ".join(reasons) for name, reasons in unread.items()}
    record_each(measure, check.BREAKING_CONDITIONS, counts, silent, notes)


def note_unlike(readings: Mapping[str, Readings], measure: Recorder) -> None:
    """Note the readings that differ between nodes of one kind; those that differ alike are one."""
    names = sorted({name for node in readings.values() for name in node})
    left_out = read_table().left_out
    alike: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for name in names:
        if any(fnmatchcase(name, pattern) for pattern in left_out):
            continue
        values = group_pairs((node.get(name, ABSENT), who) for who, node in readings.items())
        if len(values) > 1:
            by_size = sorted(values.items(), key=lambda item: -len(item[1]))
            texts = (f"{value or 'empty'} on {join_names(who)}" for value, who in by_size)
            groups = tuple(tuple(who) for _, who in by_size)
            alike.setdefault(groups, []).append(f"{name}: {', '.join(texts)}")
    for (_, *odd), sentences in alike.items():
        who = [name for group in odd for name in group]
        measure.note("unlike_conditions", join_names(sentences), on=join_names(who))


SHORT_BYTES = 2**28  # of the longest file, for the control: logs of a worker are shorter


def control_short_files(
    cluster: Cluster, victim: Facts, ray_cpus: Mapping[str, float], measure: Recorder
) -> None:
    """Check that a worker on the last node that may write no long files is detected and named."""
    fault = f"a worker on {victim['name']} may write no file of more than {SHORT_BYTES} bytes"
    cpus = ray_cpus[victim["node"]]
    answer, unable = ask_victim(cluster, victim, read_conditions, "", SHORT_BYTES, cpus)
    found = {victim["name"]: with_cluster(answer, victim, [victim], {})} if answer else {}
    judge = partial(judge_conditions, found, [])
    plant(measure, check.SHORT_FILES, fault, judge, unable=unable)
