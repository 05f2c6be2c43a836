"""The acceptance table: its criteria, their order, and what follows from all of them.

The same list is in four places: this table, the contract files, the report's first table and the
names of the probe files.  A test keeps them equal.
"""

from __future__ import annotations

from collections.abc import Container

from probes.check.criterion import CriterionRow
from probes.fabric.criterion import FABRIC
from probes.gang.criterion import GANG
from probes.hosts.criterion import HOSTS
from probes.launch.criterion import LAUNCH
from probes.restart.criterion import RESTART
from probes.scaling.criterion import SCALING

CRITERIA: dict[str, CriterionRow] = {
    "FABRIC": FABRIC,
    "SCALING": SCALING,
    "GANG": GANG,
    "LAUNCH": LAUNCH,
    "RESTART": RESTART,
    "HOSTS": HOSTS,
}

# Probes run in this order: the inventory first, then from the fabric upwards.
RUN_ORDER = ("HOSTS", "FABRIC", "GANG", "LAUNCH", "RESTART", "SCALING")


def is_judged(criterion: str, measure: str, not_provable: Container[str]) -> bool:
    """Return whether a measure is judged, where `not_provable` criteria cannot be proven."""
    return criterion not in not_provable or CRITERIA[criterion].measures[measure].of_data
