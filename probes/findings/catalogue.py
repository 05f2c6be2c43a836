"""The catalogue of findings: meaning, cause and remedy of each code.

`seatrial explain CODE` and docs/use/findings.md show each entry.
"""

from __future__ import annotations

from probes.findings.entry import Entry
from probes.findings.environment import ENVIRONMENT
from probes.findings.fabric import FABRIC
from probes.findings.gang import GANG
from probes.findings.hosts import HOSTS
from probes.findings.launch import LAUNCH
from probes.findings.nccl import NCCL
from probes.findings.restart import RESTART
from probes.findings.scaling import SCALING

CATALOGUE: dict[str, Entry] = {
    **HOSTS,
    **FABRIC,
    **NCCL,
    **ENVIRONMENT,
    **GANG,
    **LAUNCH,
    **RESTART,
    **SCALING,
}
