"""The catalogue of findings: meaning, cause and remedy of each code.

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

GROUPS: dict[str, Mapping[str, Entry]] = {  # by the heading of its page
    "HOSTS": HOSTS,
    "FABRIC": FABRIC,
    "Log of NCCL": NCCL,
    "Environment": ENVIRONMENT,
    "GANG": GANG,
    "LAUNCH": LAUNCH,
    "RESTART": RESTART,
    "SCALING": SCALING,
}
CATALOGUE = {code: entry for entries in GROUPS.values() for code, entry in entries.items()}
