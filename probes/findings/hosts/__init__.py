"""Findings of HOSTS."""

from __future__ import annotations

from probes.findings.entry import Entry
from probes.findings.hosts.gpus import GPUS
from probes.findings.hosts.network import NETWORK
from probes.findings.hosts.nodes import NODES
from probes.findings.hosts.storage import STORAGE
from probes.findings.hosts.system import SYSTEM

HOSTS: dict[str, Entry] = {**NODES, **GPUS, **SYSTEM, **NETWORK, **STORAGE}
