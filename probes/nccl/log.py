"""Holds the content of one job's NCCL log: ranks, hosts, communicators, edges, errors.

`parser` adds the lines to a Log; `report` judges it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from functools import cached_property
from string import ascii_letters

from probes.nccl.job import STAGES, Communicator, Host, HostEdges, MatchedMessage, Process, Rank
from probes.nccl.lines import LogLines, LogWriter, to_text
from probes.nccl.patterns import find_kinds
from probes.nccl.rows import MAX_KEPT, Reported, RowReader
from reports.groups import group_pairs

MAX_GLUED = 20  # letters of another text before the name of a host
# Bytes: 100,000 ranks on 12,500 hosts, with two communicators and 12 edges each.
BUDGET = 185 << 20
NO_RANK = Rank(LogWriter(), Host(""))
RUNTIME_CONNECT = (2, 22)  # since this version ranks connect at the first collective, not at init


class Log:
    """Content of all files of one job; call `finish` once all of them are read."""

    def __init__(self) -> None:
        self.free_bytes = BUDGET  # for what is remembered
        self.full = False  # something is left out that exceeds them
        self.files: list[LogLines] = []  # in the order of reading
        self.others = RowReader()  # what other programs write
        self.ranks: dict[LogWriter, Rank] = {}
        self.unnamed: set[int] = set()  # numbers of ranks, of lines without a host
        self.hosts: dict[str, Host] = {}
        self.communicators: dict[bytes, Communicator] = {}  # by commId
        self.splits: dict[bytes, Communicator] = {}
        self.host_edges = HostEdges(())  # those of all ranks, once the log is finished
        self.gdr: set[bool] = set()
        self.no_gdr = ""  # place where NCCL logs that some rank has an edge without GPUDirect
        self.other_networks: dict[str, str] = {}  # name -> place
        self.hits: dict[str, list[MatchedMessage]] = defaultdict(list)
        self.saw_network = False  # some line is about networks
        self.has_info = False  # some line is no warning
        self.unread_files: list[str] = []  # one sentence for each file without usable lines
        self.read_failed = False  # a file could not be read to its end
        self.every_rank = False  # the caller knows that each rank's complete log is here
        self.tail_size = 0  # ranks, as the end of an edge's line gives them

    def finish(self) -> Log:
        """Determine which edges leave a host, once all lines are read; return the log."""
        self._unglue()
        self.host_edges = HostEdges([*self.communicators.values(), *self.splits.values()])
        self.host_edges.count_edges(self.ranks.values(), self.location_of)
        for one in self.reported("nccl")[:MAX_KEPT]:
            rank = self._find_rank(one.groups.get("pid", ""))
            hits = self.hits[one.row.kind]
            hits.append(MatchedMessage(rank, one.sentence, one.line, True, one.place))
        for one in self.reported("quote"):
            text = self.files[0].clean(one.detail.encode())
            for kind in find_kinds(text) or ["last-error"]:
                detail = f"{to_text(text[:300])}{one.sentence}"
                self.hits[kind].append(MatchedMessage(NO_RANK, detail, one.line, True, one.place))
        self._name_sockets()
        self._judge_gdr()
        return self

    def _judge_gdr(self) -> None:
        """Find out whether RDMA edges use GPUDirect, but for sends that NCCL stages by choice."""
        hosts = self.hosts.values()
        self.gdr = {False for host in hosts if host.no_gdr}
        self.gdr |= {True for host in hosts for _, gdr in host.gdr if gdr}
        if not self.gdr - {True} and any(host.staged_send for host in hosts):
            self.no_gdr = ""  # these sends are why all ranks log GDR 0
        counts = self.host_edges.counts
        if self.no_gdr and self.gdr and not (counts["tcp"] or counts["other"]):
            self.gdr.add(False)  # an edge over TCP makes all ranks log GDR 0 as well

    def _find_rank(self, pid: str) -> Rank:
        """Find the rank of a process by its number, where only one host has that number."""
        process = int(pid or -1)
        found = {one.host.name: one for one in self.ranks.values() if one.writer.pid == process}
        return next(iter(found.values())) if len(found) == 1 else NO_RANK

    def _unglue(self) -> None:
        """Leave out hosts such as `Channelnode1`: a lost newline put a word before the name.

        The same process has lines under its own name, or only the other host has lines of a start.
        """
        numberless = [writer for writer, rank in self.ranks.items() if not rank.size]
        if not numberless:
            return
        processes = {writer[:2] for writer in self.ranks}
        joined = {writer[:2] for writer, rank in self.ranks.items() if rank.size}
        begun = {host for host, _ in joined}
        begun |= {name for name, host in self.hosts.items() if host.bootstrap or host.networks}
        for writer in numberless:
            name = writer.host
            letters = 0 if name in begun else len(name) - len(name.lstrip(ascii_letters))
            for at in range(1, len(name)):
                process, host = (name[at:], writer.pid), self.hosts.get(name[at:])
                own = process in joined or (name[at - 1].isalnum() and process in processes)
                if host and (own or (at <= min(letters, MAX_GLUED) and name[at:] in begun)):
                    rank, glued = self.ranks.pop(writer), self.hosts.pop(name, host)
                    host.networks |= glued.networks
                    rank.host, rank.writer = host, writer._replace(host=host.name)
                    same = self.ranks.setdefault(rank.writer, rank)
                    same.timing = same.timing or rank.timing
                    break

    def _name_sockets(self) -> None:
        """Name the network of hosts without an RDMA device: 2.4 and 2.5 only list their sockets."""
        old = self.others.version.startswith(("2.4.", "2.5."))
        no_device = {hit.host.name: hit.line for hit in self.hits["no-device"]}
        if any(host.networks for host in self.hosts.values()):
            return
        for name, host in self.hosts.items():
            if old and host.devices:
                host.networks["IB"] = ""
            if host.sockets and name in no_device:
                host.networks["Socket"] = no_device[name]

    def reported(self, *roles: str) -> list[Reported]:
        """List what other programs report in one of these roles, in the order of the lines."""
        return [one for one in self.others.found if one.row.role in roles]

    def take(self, size: int, *, when: bool = True) -> bool:
        """Take bytes if they are free and if `when` holds; otherwise set `full`, return False."""
        fits = when and size <= self.free_bytes
        self.full |= not fits
        self.free_bytes -= size if fits else 0
        return fits

    def skip(self, sentence: str) -> None:
        """Record that something is not read, so that a missing line proves nothing."""
        self.unread_files.append(sentence)
        self.read_failed = True

    @property
    def location(self) -> str:
        """Place `file:line` of the line that is read now."""
        return f"{self.files[-1].name}:{self.files[-1].line_number}"

    @property
    def external_edges(self) -> int:
        """Number of edges between hosts, over any network."""
        return sum(self.host_edges.counts[kind] for kind in ("rdma", "tcp", "other"))

    def location_of(self, position: int) -> str:
        """Return `file:line` of a place: the index of the file, and the line in the low 40 bits."""
        return f"{self.files[position >> 40].name}:{position & (1 << 40) - 1}"

    @cached_property
    def partial(self) -> bool:
        """Whether lines are known to be missing, so that a missing line proves nothing."""
        cut = any(file.overlong or (file.truncated and file.count) for file in self.files)
        return cut or self.read_failed or self.full

    @property
    def repeated(self) -> int:
        """Number of lines that Ray's driver dropped as repetitions."""
        return sum(file.repeated for file in self.files)

    @cached_property
    def seen(self) -> dict[LogWriter, int]:
        """Who wrote lines that nothing reads, and when."""
        return {writer: count for file in self.files for writer, count in file.seen.items()}

    @cached_property
    def job_ranks(self) -> list[Rank]:
        """List ranks that joined a communicator, and processes that joined none so far.

        Processes that need none are left out. If one communicator is complete, a process without
        any only made its id, or belongs to an earlier attempt.
        """
        joined = [rank for rank in self.ranks.values() if rank.size]
        if any(len(g.members) == g.completed == g.size for g in self.communicators.values()):
            return joined
        processes = {rank.process for rank in joined}
        others = [one for one in self.ranks.values() if one.writer.host]
        waiting = {one.process: one for one in others if one.process not in processes}
        return [*joined, *waiting.values()]

    def joined(self, rank: Rank) -> Rank:
        """Find the only rank of this process that joined a communicator; otherwise `rank` itself.

        A thread without a CUDA device writes as device 0 of its process.
        """
        found = self._joined.get(rank.process, [])
        return found[0] if len(found) == 1 else rank

    @cached_property
    def _joined(self) -> dict[Process, list[Rank]]:
        return group_pairs((one.process, one) for one in self.ranks.values() if one.size)

    @cached_property
    def jobs(self) -> list[set[Process]]:
        """Group processes that communicators connect, directly or through others: a set per job."""
        jobs: dict[Process, set[Process]] = {}  # of each process
        for comm in self.communicators.values():
            processes = {member.rank.process for member in comm.members.values()}
            known = {id(jobs[one]): jobs[one] for one in processes & jobs.keys()}
            largest = max(known.values(), key=len, default=set[Process]())
            for part in (processes, *known.values()):
                if part is not largest:
                    largest |= part
                    jobs |= dict.fromkeys(part, largest)
        return list({id(group): group for group in jobs.values()}.values())

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
        given = max(self.tail_size, max(self.others.test_ranks, default=-1) + 1)
        return max((rank.size for rank in self.ranks.values()), default=0) or given

    @cached_property
    def numbers(self) -> set[int]:
        """Numbers of the ranks that wrote lines, also such that only their edges give."""
        found = {rank.number for rank in self.job_ranks if rank.number >= 0}
        others = (rank.edges for rank in self.ranks.values() if rank.number < 0 and rank.edges)
        return found | {next(iter(edges))[0].rank for edges in others if len(edges)}

    @property
    def present(self) -> int:
        """Number of ranks that wrote lines, and of processes that did not join so far."""
        return len({one.number if one.number >= 0 else one.process for one in self.job_ranks})

    @property
    def is_complete(self) -> bool:
        """Whether every rank of every communicator completed it, and has finished."""
        comms = [*self.communicators.values(), *self.splits.values()]
        done = bool(comms) and all(len(g.members) == g.completed == g.size for g in comms)
        return done and not any(rank.stuck for rank in self.job_ranks)

    @cached_property
    def crosses_hosts(self) -> bool:
        """Whether the log shows two hosts: only then can a network be accused."""
        names = {*self.host_names, *self.test_hosts}
        return len(names) > 1 or self.nodes > 1 or self.external_edges > 0

    @cached_property
    def shown(self) -> int:
        """Count the ranks that are shown, at least: by their numbers, or as GPUs of processes.

        A process without a number may be an earlier attempt of one that has it.
        """
        numbers = self.numbers | self.unnamed
        numbers |= {int(one.rank) for one in self.others.found if one.rank}
        writers = {writer for writer in (*self.ranks, *self.seen) if writer.host}
        devices = group_pairs((writer[:2], writer.device) for writer in writers)
        named = {rank.number: rank.process for rank in self.ranks.values() if rank.number >= 0}
        numbered = {rank.process for rank in self.ranks.values() if rank.number >= 0}
        groups = [{*named.values()} & devices.keys(), devices.keys() - numbered]
        gpus = [sum(_count_gpus(devices[process]) for process in group) for group in groups]
        return max(len(numbers), *gpus)

    @cached_property
    def test_hosts(self) -> set[str]:
        """Hosts that nccl-tests lists above its table."""
        return {host for host, _ in self.others.test_ranks.values()}

    @cached_property
    def nodes(self) -> int:
        """Count nodes as NCCL does, the most of any communicator; 0 if no line gives it."""
        return max((rank.nodes for rank in self.ranks.values()), default=0)

    @cached_property
    def host_names(self) -> list[str]:
        """List the hosts that wrote lines."""
        return sorted({rank.writer.host for rank in self.ranks.values()} - {""})

    @cached_property
    def versions(self) -> dict[str, list[str]]:
        """Map NCCL versions to hosts; versions without a host count only if there are no others."""
        versioned = (rank for rank in self.ranks.values() if rank.version)
        hosts_of = group_pairs((rank.version, rank.writer.host) for rank in versioned)
        versions = {version: sorted({*hosts} - {""}) for version, hosts in hosts_of.items()}
        return {version: hosts for version, hosts in versions.items() if hosts} or versions

    @cached_property
    def single_host(self) -> bool:
        """Return whether the log shows that nothing had to leave the host (or NVLink's domain)."""
        if self.nodes:
            return self.nodes == 1 and (len(self.host_names) <= 1 or len(self.jobs) == 1)
        numbers = {rank.number for rank in self.job_ranks}  # before 2.20
        listed = len(self.test_hosts) == 1 and len(self.others.test_ranks) == self.world_size
        all_ranks = listed or len(numbers) == self.world_size > 0
        return len(self.host_names) <= 1 and all_ranks and not self.external_edges

    @cached_property
    def stage(self) -> str:
        """Return the name of the stage of the rank that is furthest behind."""
        return STAGES[min((rank.stage for rank in self.job_ranks), default=0)]

    @cached_property
    def behind(self) -> list[Rank]:
        """List the ranks at this stage."""
        return [rank for rank in self.job_ranks if STAGES[rank.stage] == self.stage]

    def connects_at_runtime(self, rank: Rank) -> bool:
        """Return whether this NCCL connects ranks at the first collective.

        Only some ranks log the version: others take the first version seen. An unknown one counts
        as new.
        """
        version = rank.version or self.others.version
        return not version or tuple(map(int, version.split(".")[:2])) >= RUNTIME_CONNECT


def _count_gpus(devices: Collection[str]) -> int:
    """Count the GPUs of one process, at least: a thread without a GPU writes as device 0."""
    count = sum(map(str.isdigit, devices))
    return 1 if count == 2 and "0" in devices else max(count, 1)
