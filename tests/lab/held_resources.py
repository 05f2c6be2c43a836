"""Prints what Ray still holds, as one JSON line. Run on a node of the lab.

It reads Ray's tables without being a job, because a probe that cleans up lists the jobs.
"""

from __future__ import annotations

import json

from ray._private.services import canonicalize_bootstrap_address_or_die
from ray._private.state import GlobalState
from ray._raylet import GcsClientOptions

tables = GlobalState()
tables._initialize_global_state(
    GcsClientOptions.create(
        canonicalize_bootstrap_address_or_die("auto"),
        None,
        allow_cluster_id_nil=True,
        fetch_cluster_id_if_nil=True,
    )
)
total, free = (
    resources.get("GPU", 0)
    for resources in (tables.cluster_resources(), tables.available_resources())
)
groups, actors = tables.placement_group_table().values(), tables.actor_table(None).values()
found = {
    "groups": [group["name"] for group in groups if group["state"] != "REMOVED"],
    "actors": [actor["ActorClassName"] for actor in actors if actor["State"] != "DEAD"],
    "gpus": total - free,
}
print(json.dumps(found))
