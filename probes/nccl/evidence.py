"""Builds findings from log messages, with their hosts, places and ranks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from probes.findings import MAX_NAMES, finding, join_names
from probes.nccl.job import MatchedMessage, Rank
from probes.nccl.log import Log
from probes.nccl.rows import Reported
from reports.record import Finding

MAX_LINES = 3  # places shown as evidence
# Since NCCL 2.22 also a host name.
PEER = re.compile(r"(?:to|peer|from) \[?([\w.:%\-]{1,255}?)\]?<\d+>")


def one_finding(
    code: str,
    message: str,
    suspects: Iterable[str] = (),
    lines: Iterable[str] = (),
    remedy: str = "",
    names: Mapping[str, object] | None = None,
) -> Finding:
    """Make a finding with the first suspects and the first places."""
    first, places = [*suspects][:MAX_NAMES], [*lines][:MAX_LINES]
    return finding(code, message, first, evidence=places, remedy=remedy, names=names)


def name_hosts(hosts: Iterable[str], problem: str) -> str:
    """Return `hosts: problem`; hosts without a name are the job."""
    return f"{join_names(hosts) or 'the job'}: {problem}"


def message_findings(
    code: str, problem: str, hits: list[MatchedMessage], remedy: str = "", *, quote: bool = True
) -> Iterator[Finding]:
    """Make one finding of all messages, if any: `hosts: problem`, with `quote` the first text."""
    if hits:
        hosts, detail = hosts_of(hits), f" ({hits[0].detail})" if quote else ""
        message = name_hosts(hosts, f"{problem}{detail}")
        yield one_finding(code, message, hosts, first_lines(hits), remedy)


def hosts_of(hits: Iterable[MatchedMessage]) -> list[str]:
    """List the hosts that wrote the messages, each once."""
    return list(dict.fromkeys(m.host.name for m in hits if m.host.name))


def first_of_each(hits: Iterable[MatchedMessage]) -> list[MatchedMessage]:
    """List the first message of each text."""
    return list({hit.detail: hit for hit in reversed([*hits])}.values())[::-1]


def first_rows(reports: Iterable[Reported]) -> list[Reported]:
    """List the first report of each row."""
    return list({one.row.example: one for one in reversed([*reports])}.values())[::-1]


def first_lines(hits: list[MatchedMessage]) -> list[str]:
    """Return `file:line` of the first messages."""
    return [m.line for m in hits[:MAX_LINES]]


def rank_names(ranks: list[Rank]) -> str:
    """Name ranks with their hosts, in order of rank."""
    return join_names(rank.name for rank in sorted(ranks, key=lambda rank: rank.number))


def named_peers(log: Log, hits: Iterable[MatchedMessage]) -> list[str]:
    """List the peers that the messages name, each once."""
    return [peer for peer in dict.fromkeys(_peer_host(log, m.detail) for m in hits) if peer]


def _peer_host(log: Log, text: str) -> str:
    """Find the host of the address that the text names; otherwise return the address or name."""
    match = PEER.search(text)
    if not match:
        return ""
    for name, host in log.hosts.items():
        addresses = [host.bootstrap, *host.sockets] if host.bootstrap else host.sockets
        if match[1] in [address for _, address in addresses]:
            return name
    return match[1]
