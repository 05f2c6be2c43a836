"""Holds the content of one job's NCCL log: ranks, hosts, communicators, edges, errors.

`parser` adds the lines to a Log; `report` judges it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property
from string import ascii_letters

from probes.nccl import job
from probes.nccl.job import STAGES, Communicator, Host, Process, Rank
from probes.nccl.lines import NO_WRITER, LogWriter
from probes.nccl.other_lines import MAX_KEPT, OtherLines
from probes.nccl.rows import Reported

MAX_REPORTS = 20_000  # lines of other programs, of all files: about 20 MB
MAX_GLUED = 20  # letters of another text before the name of a host
MAX_SAME_PID = 100  # hosts that are compared: in pods all processes may have pid 1
NO_RANK = Rank(NO_WRITER, Host(""))
RUNTIME_CONNECT = (2, 22)  # since this version ranks connect at the first collective, not at init


class Log:
    """Content of all files of one job; call `finish` once all of them are read."""

    def __init__(self) -> None:
        self.budget = MemoryBudget()
        self.files: list[str] = []  # names, in the order of reading
        self.ranks: dict[LogWriter, Rank] = {}
        self.seen: dict[LogWriter, int] = {}  # who wrote lines that nothing reads, and when
        self.skipped_much = False  # `seen` may lack some
        self.processes: list[set[Process]] = []  # of each file with lines of NCCL
        self.unnamed: set[tuple[int, int]] = set()  # number and size, of lines without a host
        self.hosts: dict[str, Host] = {}
        self.communicators: dict[bytes, Communicator] = {}  # by commId
        self.splits: dict[bytes, Communicator] = {}
        self.edge_counts: dict[str, int] = dict.fromkeys(("rdma", "tcp", "intra", "other"), 0)
        self.silent_ranks: list[Rank] = []  # others connect to them, they logged no connection
        self.gdr: set[bool] = set()
        self.no_gdr = ""  # place where NCCL logs that some rank has an edge without GPUDirect
        self.other_networks: dict[str, str] = {}  # name -> place
        self.hits: dict[str, list[job.MatchedMessage]] = defaultdict(list)
        self.slow_inits: list[job.InitTiming] = []  # of ranks over the limit
        self.fastest: dict[int, job.InitTiming] = {}  # communicator size -> shortest bootstrap
        self.saw_network = False  # some line is about networks
        self.bad_rows: list[tuple[str, int]] = []  # place, wrong elements
        self.reports: list[Reported] = []  # what other programs report
        self.repeated = 0
        self.has_lines = False  # of NCCL, also such that nothing reads
        self.unread_files: list[str] = []  # one sentence for each file without usable lines
        self.truncated: list[str] = []  # names of files that end within a line
        self.overlong: list[str] = []  # names of files with a line that is too long to be read
        self.read_failed = False  # a file could not be read to its end
        self.every_rank = False  # the caller knows that each rank's complete log is here
        self.tail_size = 0  # ranks, as the end of an edge's line gives them
        self.test_ranks: dict[int, tuple[str, str]] = {}  # nccl-tests: rank -> (host, GPU)
        self.listed_twice: tuple[int, str, str] | None = None
        self.ib_off = ""  # place of a command that sets NCCL_IB_DISABLE=1
        self.version_seen = ""

    def finish(self) -> Log:
        """Determine which edges leave a host, once all lines are read; return the log."""
        self._unglue()
        comms = [*self.communicators.values(), *self.splits.values()]
        host_edges = job.HostEdges(comms)
        host_edges.count_edges(self.ranks.values(), self.location_of)
        for one in self.reported("nccl"):
            if len(self.hits[one.row.kind]) < MAX_KEPT:
                rank = self._find_rank(int(one.groups["pid"]))
                self.add_hit(one.row.kind, rank, one.sentence, one.line)
        self.edge_counts, self.silent_ranks = dict(host_edges.counts), host_edges.silent_ranks
        self._name_sockets()
        self._judge_gdr()
        return self

    def _judge_gdr(self) -> None:
        """Find out whether RDMA edges use GPUDirect, but for sends that NCCL stages by choice."""
        for host in self.hosts.values():
            if not host.stages_sends:
                host.no_gdr = host.no_gdr or host.staged_send
            self.gdr |= {False} if host.no_gdr else set()
            self.gdr |= {True} if host.gdr_sends or host.gdr_receives else set()
        if False not in self.gdr and any(host.stages_sends for host in self.hosts.values()):
            self.no_gdr = ""  # these sends are why all ranks log GDR 0
        if self.no_gdr and self.gdr and not (self.edge_counts["tcp"] or self.edge_counts["other"]):
            self.gdr.add(False)  # an edge over TCP makes all ranks log GDR 0 as well

    def _find_rank(self, pid: int) -> Rank:
        """Find the rank of a process by its number, where only one host has that number."""
        found = {rank.host.name: rank for rank in self.ranks.values() if rank.writer.pid == pid}
        return next(iter(found.values())) if len(found) == 1 else NO_RANK

    def _unglue(self) -> None:
        """Leave out hosts such as `Channelnode1`: a lost newline put a word before the name.

        The same process and device has lines under its own name, or only the other host has lines
        of a start.
        """
        glued = {}
        begun = {rank.writer.host for rank in self.ranks.values() if rank.size}
        begun |= {name for name, host in self.hosts.items() if host.bootstrap or host.networks}
        for writer in [writer for writer, rank in self.ranks.items() if not rank.size]:
            name = writer.host
            starts = (at for at in range(1, len(name)) if name[at - 1].isalnum())
            names = (writer._replace(host=name[at:]) for at in starts)
            if own := next((self.ranks[one] for one in names if one in self.ranks), None):
                glued[writer] = own.host
            elif name not in begun:
                letters = len(name) - len(name.lstrip(ascii_letters))
                words = (name[at:] for at in range(1, min(letters, MAX_GLUED) + 1))
                if whole := next((word for word in words if word and word in begun), ""):
                    glued[writer] = self.hosts[whole]
        for writer, host in glued.items():
            rank = self.ranks.pop(writer)
            rank.host = host
            self.hosts.pop(writer.host, None)
            rank.writer = writer._replace(host=host.name)
            self.ranks.setdefault(rank.writer, rank)

    def _name_sockets(self) -> None:
        """Name the network of hosts without an RDMA device: 2.4 and 2.5 only list their sockets."""
        if any(host.networks for host in self.hosts.values()):
            return
        if self.version_seen.startswith(("2.4.", "2.5.")):
            for host in self.hosts.values():
                if host.devices:
                    host.networks["IB"] = ""
        no_device = {hit.host.name: hit.line for hit in self.hits["no-device"]}
        for name, host in self.hosts.items():
            if host.sockets and name in no_device:
                host.networks["Socket"] = no_device[name]

    def add_others(self, name: str, others: OtherLines) -> None:
        """Add what others than NCCL wrote into the file `name`."""
        self.bad_rows += [(f"{name}:{number}", wrong) for number, wrong in others.bad_rows]
        found = others.rows.found[: MAX_REPORTS - len(self.reports)]
        self.reports += [one._replace(line=f"{name}:{one.number}") for one in found]
        self.version_seen = self.version_seen or others.version
        self.test_ranks |= others.test_ranks
        self.listed_twice = self.listed_twice or others.listed_twice
        if others.ib_off and not self.ib_off:
            self.ib_off = f"{name}:{others.ib_off}"

    def reported(self, *roles: str) -> list[Reported]:
        """List what other programs report in one of these roles, in the order of the lines."""
        return [one for one in self.reports if one.row.role in roles]

    def add_hit(
        self, kind: str, rank: Rank, detail: str, line: str, *, warned: bool = True
    ) -> None:
        """Add a message of a rank that has a phrase of this kind."""
        self.hits[kind].append(job.MatchedMessage(rank, detail, line, warned))

    @property
    def external_edges(self) -> int:
        """Number of edges between hosts, over any network."""
        return sum(self.edge_counts[kind] for kind in ("rdma", "tcp", "other"))

    def location_of(self, position: int) -> str:
        """Return `file:line` of a place: the index of the file, and the line in the low 40 bits."""
        return f"{self.files[position >> 40]}:{position & (1 << 40) - 1}"

    @property
    def partial(self) -> bool:
        """Whether lines are known to be missing, so that a missing line proves nothing."""
        return bool(self.truncated or self.overlong) or self.read_failed or self.budget.full

    @cached_property
    def job_ranks(self) -> list[Rank]:
        """List ranks that joined a communicator, and processes that joined none so far.

        Processes that need none are left out. If one communicator is complete, a process without
        any only made its id, or belongs to an earlier attempt.
        """
        joined = [rank for rank in self.ranks.values() if rank.size]
        if any(len(g.members) == g.completed == g.size for g in self.communicators.values()):
            return joined
        processes = {rank.writer[:2] for rank in joined}
        waiting = {
            rank.writer[:2]: rank
            for rank in self.ranks.values()
            if rank.writer.host and rank.writer[:2] not in processes
        }
        # `NCCL version ...` has no prefix; a lost newline puts a word before the host's name.
        pids = {pid for _, pid in waiting}
        names: dict[int, set[str]] = defaultdict(set)
        for host, pid in processes:
            if pid in pids:
                names[pid].add(host)
        return joined + [
            rank
            for (host, pid), rank in waiting.items()
            if not any(host.endswith(name) for name in names.get(pid, ()))
        ]

    def joined(self, rank: Rank) -> Rank:
        """Find the only rank of this process that joined a communicator; otherwise `rank` itself.

        A thread without a CUDA device writes as device 0 of its process.
        """
        same = self._joined_ranks.get(rank.writer[:2], ())
        return same[0] if len(same) == 1 else rank

    @cached_property
    def _joined_ranks(self) -> dict[Process, list[Rank]]:
        by_process: dict[Process, list[Rank]] = defaultdict(list)
        for rank in self.ranks.values():
            if rank.size:
                by_process[rank.writer[:2]].append(rank)
        return by_process

    @cached_property
    def jobs(self) -> list[set[Process]]:
        """Group the processes that communicators connect."""
        return split_into_jobs(self.communicators.values())

    @cached_property
    def apart(self) -> int:
        """Count the processes of jobs on hosts of their own, at least one rank each; 0 if none is.

        A job on the hosts of another may be a later attempt of it.
        """
        hosts = [{process[0] for process in job} for job in self.jobs]
        are_apart = sum(map(len, hosts)) == len(set[str]().union(*hosts))
        return sum(map(len, self.jobs)) if are_apart and len(hosts) > 1 else 0

    @cached_property
    def world_size(self) -> int:
        """Count the ranks of the largest communicator; 0 if no line gives it."""
        given = max(self.tail_size, max(self.test_ranks, default=-1) + 1)
        return max((rank.size for rank in self.ranks.values()), default=0) or given

    @cached_property
    def numbers(self) -> set[int]:
        """Numbers of the ranks that wrote lines, also such that only their edges give."""
        found = {rank.number for rank in self.job_ranks if rank.number >= 0}
        others = (rank.edges for rank in self.ranks.values() if rank.number < 0 and rank.edges)
        return found | {next(iter(edges))[0].rank for edges in others if len(edges)}

    @cached_property
    def shown(self) -> int:
        """Count the ranks that are shown, at least: by their numbers, or as GPUs of processes.

        A process without a number may be an earlier attempt of one that has it.
        """
        numbers = {*self.numbers, *(number for number, _ in self.unnamed)}
        numbers |= {int(one.rank) for one in self.reports if one.rank}
        devices: dict[Process, set[str]] = defaultdict(set)
        for host, pid, device in {*self.ranks, *self.seen}:
            if host:
                devices[host, pid].add(device)
        named = {rank.number: rank.writer[:2] for rank in self.ranks.values() if rank.number >= 0}
        numbered = {rank.writer[:2] for rank in self.ranks.values() if rank.number >= 0}
        groups = [{*named.values()} & devices.keys(), devices.keys() - numbered]
        gpus = [sum(_count_gpus(devices[process]) for process in group) for group in groups]
        return max(len(numbers), *gpus)

    @cached_property
    def test_hosts(self) -> set[str]:
        """Hosts that nccl-tests lists above its table."""
        return {host for host, _ in self.test_ranks.values()}

    @cached_property
    def nodes(self) -> int:
        """Count nodes as NCCL does, the most of any communicator; 0 if no line gives it."""
        return max((rank.max_nodes for rank in self.ranks.values()), default=0)

    @cached_property
    def host_names(self) -> list[str]:
        """List the hosts that wrote lines; a lost newline puts a word before a host's name."""
        joined: dict[int, set[str]] = defaultdict(set)  # hosts by pid, of ranks with a communicator
        for rank in self.ranks.values():
            if rank.size and len(joined[rank.writer.pid]) < MAX_SAME_PID:
                joined[rank.writer.pid].add(rank.writer.host)
        names = {rank.writer.host for rank in self.ranks.values() if rank.size}
        for rank in self.ranks.values():
            host, near = rank.writer.host, joined.get(rank.writer.pid, ())
            if host not in names and not any(host.endswith(name) for name in near if name):
                names.add(host)
        return sorted(names - {""})

    @cached_property
    def versions(self) -> dict[str, list[str]]:
        """Map NCCL versions to hosts; versions without a host count only if there are no others."""
        hosts_of: dict[str, set[str]] = defaultdict(set)
        for rank in self.ranks.values():
            if rank.version:
                hosts_of[rank.version].add(rank.writer.host)
        versions = {version: sorted(hosts - {""}) for version, hosts in hosts_of.items()}
        return {version: hosts for version, hosts in versions.items() if hosts} or versions

    @cached_property
    def single_host(self) -> bool:
        """Return whether the log shows that nothing had to leave the host (or NVLink's domain)."""
        if self.nodes > 1:
            return False
        if self.nodes == 1:
            return len(self.host_names) <= 1 or len(self.jobs) == 1
        complete = len(self.test_ranks) == self.world_size  # rank 0 is listed first
        if self.test_ranks and complete and len(self.test_hosts) == 1 and not self.external_edges:
            return len(self.host_names) <= 1
        all_ranks = len({rank.number for rank in self.job_ranks}) == self.world_size > 0
        return len(self.host_names) <= 1 and all_ranks and not self.external_edges  # before 2.20

    @cached_property
    def stage(self) -> str:
        """Return the name of the stage of the rank that is furthest behind."""
        return STAGES[min((rank.stage for rank in self.job_ranks), default=0)]

    def connects_at_runtime(self, rank: Rank) -> bool:
        """Return whether this NCCL connects ranks at the first collective.

        Only some ranks log the version: others take the first version seen. An unknown one counts
        as new.
        """
        version = rank.version or self.version_seen
        return not version or tuple(map(int, version.split(".")[:2])) >= RUNTIME_CONNECT


def _count_gpus(devices: set[str]) -> int:
    """Count the GPUs of one process, at least: a thread without a GPU writes as device 0."""
    count = sum(map(str.isdigit, devices))
    return 1 if count == 2 and "0" in devices else max(count, 1)


def split_into_jobs(communicators: Iterable[Communicator]) -> list[set[Process]]:
    """Group processes that communicators connect, directly or through others: one set per job."""
    parents: dict[Process, Process] = {}

    def find(process: Process) -> Process:
        while (parent := parents.setdefault(process, process)) != process:
            parents[process] = parents[parent]
            process = parent
        return process

    for comm in communicators:
        processes = [member.rank.writer[:2] for member in comm.members.values()]
        for process in processes:
            parents[find(process)] = find(processes[0])
    groups: dict[Process, set[Process]] = defaultdict(set)
    for process in list(parents):
        groups[find(process)].add(process)
    return list(groups.values())


BUDGET = 200 << 20  # bytes: 100,000 ranks on 12,500 hosts, with two communicators and 20 edges each


class MemoryBudget:
    """Bytes for what is remembered; what exceeds them is left out, and `full` is set."""

    def __init__(self, size: int = BUDGET) -> None:
        self.free_bytes, self.full = size, False

    def take(self, size: int, *, when: bool = True) -> bool:
        """Take `size` bytes if free and if `when` holds; otherwise set `full` and return False."""
        if size > self.free_bytes or not when:
            self.full = True
            return False
        self.free_bytes -= size
        return True

    def give(self, size: int) -> None:
        """Give back the bytes of something that was removed."""
        self.free_bytes += size
