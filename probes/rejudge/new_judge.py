"""Applies a contract to the events of an earlier run, which may have had other terms.

A value that was measured under other terms proves nothing about this contract: it gets no limit.
"""

from __future__ import annotations

from typing import Any

from probes.acceptance.contract import ClusterTerms, Contract
from probes.acceptance.control_targets import is_red
from probes.acceptance.criteria import CRITERIA
from probes.acceptance.criteria.criterion import Measure, exactly
from probes.acceptance.criteria.hosts_storage import STORAGE
from probes.acceptance.owed import has_ip_fabric, owed_event
from probes.toml_tables import show
from reports.measurement import Limit, Measurement
from reports.record import SCHEMA

# Measures of HOSTS, and the key of [cluster] that orders each.  Their values do not depend on the
# old order, so the new order judges them.
EXACT_ORDERS = {"nodes": "nodes", "gpus": "gpus_per_node"}
LEAST_ORDERS = {
    "gpu_memory": "gpu_memory_gib",
    "cpus": "cpus_per_node",
    "ram": "ram_gib",
    "disk": "disk_gib",
}
# gpu_model and ordered_versions depend on the old order: it chose one name for several GPUs, and
# counted the versions that differ from it.
ORDERS = {**EXACT_ORDERS, **LEAST_ORDERS, "gpu_model": "gpu_model", "ordered_versions": "versions"}
# Key of [cluster] -> measures that depend on its value, by criterion; () is all of them.
BY_CONTROL = ("network", "agreeing_sources", "fabric_share", "share_on_other_networks")
JOB_NETWORK = ("share_on_agreed_network",)
TERM_MEASURES: dict[str, dict[str, tuple[str, ...]]] = {
    "accelerators": dict.fromkeys(CRITERIA, ()),
    **{key: {"HOSTS": (name,)} for name, key in ORDERS.items()},
    "egress": {"HOSTS": ("egress_closed",)},
    "model_files": {"HOSTS": ("model_differences",)},
    "dcgm_diag": {"HOSTS": ("diag_failures",)},
    "ray_client_port": {"HOSTS": ("ray_client",)},
    "shared": {
        "HOSTS": ("shared_missing", *STORAGE, "storage_lost"),
        "RESTART": (),
        "SCALING": ("checkpoint_overhead",),
    },
    "host_names": {"HOSTS": ("names_unresolved",)},
    # What an entrance must do depends on it.
    "authentication": {"HOSTS": ("wrong_entrances", "stranger_jobs", "public_entrances")},
    "fabric": {
        "FABRIC": (),
        "HOSTS": ("locked_memory", "rdma_closed"),  # for RDMA alone
        "LAUNCH": JOB_NETWORK,
    },
    # The controls force the bytes onto it.
    "management": {"FABRIC": BY_CONTROL, "LAUNCH": JOB_NETWORK},
    "management_gbps": {"FABRIC": BY_CONTROL},  # the control's bandwidth depends on it
    # Shares of this number of rails, and devices for as many.
    "rails": {"FABRIC": ("rails", "slowest_rail"), "HOSTS": ("rdma_closed",)},
    "line_rate_gbps": {},  # the measured bandwidth stays, its limit is new
    "pace_seconds": {"SCALING": ()},
    "rungs": {"SCALING": ()},
    "shards": {"SCALING": ()},
    "save_minutes": {"SCALING": ("checkpoint_overhead",)},
    "save_gb": {"SCALING": ("checkpoint_overhead",), "HOSTS": ("checkpoint_room",)},
    "launch": {"LAUNCH": ()},  # another guide, or another user
    "queue": {"GANG": ()},
    "components": {"GANG": ("misplaced",)},
    "parallel": {"GANG": ("misplaced",)},
}


class NewJudge:
    """The new contract, applied to the events of a run that was measured under `old` terms."""

    def __init__(self, contract: Contract, run_id: str) -> None:
        self.contract, self.run_id = contract, run_id
        self.old: dict[str, Any] = {}
        self.other: list[str] = []  # keys of [cluster] whose value differs now
        self.probes: dict[str, str] = {}  # probe -> its criterion
        self.new_limits: dict[tuple[str, str], Any] = {}  # by criterion and measure, as JSON
        self.finished = False  # as its own last event states
        self.start: dict[str, Any] = {}  # of the run, as recorded

    def replace(self, kind: str, probe: str, data: dict[str, Any]) -> dict[str, Any]:
        """Return the data of an event under this contract; other kinds of events stay unchanged."""
        replacements = {
            "run_started": self._start_run,
            "run_owes": self._owe,
            "run_finished": self._finish_run,
            "probe_started": self._start_probe,
            "measurement": self._judge_measurement,
            "control": self._judge_control,
        }
        return replacements[kind](probe, data) if kind in replacements else data

    def _start_run(self, _: str, data: dict[str, Any]) -> dict[str, Any]:
        self.start, self.old = data, dict(data.get("cluster", {}).get("terms", {}))
        if data.get("rehearsal"):  # on one host, also where no contract declares it
            self.old["accelerators"] = "emulated"
        self.other = self.contract.cluster.overrides(self.old)
        facts = self.contract.facts().model_dump(mode="json")
        return {**data, "schema_version": SCHEMA, "id": self.run_id, "contract": facts}

    def _finish_run(self, _: str, data: dict[str, Any]) -> dict[str, Any]:
        self.finished = data.get("state") == "finished"
        return data

    def _owe(self, _: str, data: dict[str, Any]) -> dict[str, Any]:
        """Compute what the new contract's tier owes: the run may have covered less."""
        tier, cluster, terms = self.start["tier"], self.start.get("cluster", {}), self._terms()
        return owed_event(
            tier,
            self.contract.tier,
            data["only"],
            terms=terms,
            nodes=cluster.get("alive", 0),
            on_gpu=bool(cluster.get("on_gpu")),
            agreed=self.contract.limited_names,
            not_provable=frozenset(self.contract.optional),
            one_host=cluster.get("kind") == "local",
            ranks=cluster.get("ranks", 0),
            ip_fabric=has_ip_fabric(terms.fabric, cluster.get("nodes", [])),
        )

    def _terms(self) -> ClusterTerms:
        """Return the contract's terms; --nodes of the run fills in a missing number of nodes."""
        terms, ordered = self.contract.cluster, self.old.get("nodes")
        fill_in = terms.nodes is None and ordered
        return terms.model_copy(update={"nodes": ordered}) if fill_in else terms

    def _start_probe(self, probe: str, data: dict[str, Any]) -> dict[str, Any]:
        self.probes[probe] = data["criterion"]
        return data

    def _judge_measurement(self, probe: str, data: dict[str, Any]) -> dict[str, Any]:
        criterion, name = self.probes[probe], data["name"]
        row = CRITERIA.get(criterion)
        measure = row.measures.get(name) if row else None
        if measure is None or not data.get("judged", True):
            return data
        value, note = measure.plausible_value(data.get("value"))
        data = {**data, "value": value, "note": note or data.get("note", "")}
        order = ORDERS.get(name, "") if criterion == "HOSTS" else ""
        if reason := self._measured_otherwise(criterion, name, order):
            return {**data, "limit": None, "note": reason}
        if order:
            return self._judge_order(data, order)
        return {**data, "limit": self._limit(criterion, name, measure, data)}

    def _judge_control(self, probe: str, data: dict[str, Any]) -> dict[str, Any]:
        """Judge a control again: its fault may pass looser limits, and is then not caught.

        A limit that follows from what the control injected is kept.
        """
        criterion, caught = self.probes[probe], data.get("caught")
        row = CRITERIA.get(criterion)
        known = [one for one in data.get("observed", []) if row and one["name"] in row.measures]
        if row is None or not known:
            return data
        observed = [
            {**one, "limit": self._limit(criterion, one["name"], row.measures[one["name"]], one)}
            for one in known
        ]
        if caught:
            caught = all(is_red(criterion, Measurement(**one)) for one in observed)
        return {**data, "observed": observed, "caught": caught}

    def _judge_order(self, data: dict[str, Any], key: str) -> dict[str, Any]:
        """Judge what was read of the nodes by the new order.

        Without an order there is no limit, and only EXACT_ORDERS count as judged.
        """
        order, name = getattr(self._terms(), key), data["name"]
        if order is None:
            return {**data, "limit": None, "judged": name in EXACT_ORDERS}
        if name in LEAST_ORDERS:
            limit = Limit(low=order, unit=data["unit"], because="ordered")
        elif name in EXACT_ORDERS:
            limit = exactly(order, data["unit"], "ordered")
        else:  # the old order chose the value
            other = key in self.other
            return {**data, "limit": None, "note": self._describe_change(key)} if other else data
        return {**data, "limit": limit.model_dump(mode="json")}

    def _limit(self, criterion: str, name: str, measure: Measure, data: dict[str, Any]) -> Any:
        """Return the new contract's limit of a measure; keep one that only the run could know."""
        if measure.from_run:
            return data.get("limit")
        kept = data.get("limit") or {}
        if (criterion, name) not in self.new_limits:
            limit = self.contract.limit(criterion, name)
            self.new_limits[criterion, name] = limit and limit.model_dump(mode="json")
        new = self.new_limits[criterion, name]
        if new is None and measure.derived_in_run:
            return kept if kept.get("source") == "derived" else None
        return new

    def _measured_otherwise(self, criterion: str, name: str, order: str) -> str:
        """Describe the terms of its measurement that differ now; "" if there are none.

        `order` is left out: the value is judged by it, also if the old order differed.
        """
        if not self.other:
            return ""
        keys = [key for key in self.other if criterion in TERM_MEASURES[key] and key != order]
        keys = [key for key in keys if name in (TERM_MEASURES[key][criterion] or (name,))]
        return "; ".join(self._describe_change(key) for key in keys)

    def _describe_change(self, key: str) -> str:
        before, now = self.old.get(key), getattr(self.contract.cluster, key)
        measured = f"with {key} = {show(before)}" if before is not None else f"without {key}"
        return f"measured {measured}, the contract has {'none' if now is None else show(now)}"
