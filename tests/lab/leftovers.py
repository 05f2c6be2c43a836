"""Prints what Ray still holds, as one JSON line.  Run on a node of the lab."""

from __future__ import annotations

import json

import ray
from ray.util.state import list_actors

ray.init("auto", log_to_driver=False, logging_level="error")
groups = ray.util.placement_group_table().values()
total, free = ray.cluster_resources().get("GPU", 0), ray.available_resources().get("GPU", 0)
found = {
    "groups": [group["name"] for group in groups if group["state"] != "REMOVED"],
    "actors": [a.class_name for a in list_actors(limit=1000) if a.state not in ("DEAD",)],
    "gpus": total - free,
}
print(json.dumps(found))
