"""The catalogue of findings: meaning, severity and repair of each code.

`seatrial explain CODE` and docs/use/findings.md show each entry.
"""

from __future__ import annotations

from collections.abc import Mapping

from probes.findings.entry import Entry
from probes.findings.environment import ENVIRONMENT
from probes.findings.fabric import FABRIC
from probes.findings.gang import GANG
from probes.findings.hosts import HOSTS
from probes.findings.launch import LAUNCH
from probes.findings.nccl import NCCL
from probes.findings.restart import RESTART
from probes.findings.scaling import SCALING
from probes.findings.transport import TRANSPORT

GROUPS: dict[str, Mapping[str, Entry]] = {  # by the heading of its page
    "HOSTS": HOSTS,
    "FABRIC": {**FABRIC, **TRANSPORT},
    "Log of NCCL": NCCL,
    "Environment": ENVIRONMENT,
    "GANG": GANG,
    "LAUNCH": LAUNCH,
    "RESTART": RESTART,
    "SCALING": SCALING,
}
CATALOGUE = {code: entry for entries in GROUPS.values() for code, entry in entries.items()}
LOG_READER = "FABRIC and SCALING (probes/nccl), and `seatrial nccl-log`"
# Probes that make the codes of each group.
MAKERS = {
    "HOSTS": "HOSTS (probes/hosts)",
    "FABRIC": "FABRIC (probes/fabric)",
    "Log of NCCL": LOG_READER,
    "Environment": "FABRIC (probes/environment)",
    "GANG": "GANG (probes/gang)",
    "LAUNCH": "LAUNCH (probes/launch)",
    "RESTART": "RESTART (probes/restart)",
    "SCALING": "SCALING (probes/scaling)",
}


def find_makers(code: str) -> str:
    """Name the probes that make the findings of this code."""
    if code in TRANSPORT:
        return LOG_READER
    return next(MAKERS[title] for title, entries in GROUPS.items() if code in entries)
