"""Reads what a contract says of the cluster and of launches: [cluster], [LAUNCH] and their keys."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from probes.cluster.network_facts import RDMA, interfaces_of
from probes.contract import placement as components
from probes.contract.validation import check_text
from reports.measurement import about
from reports.numbers import quantity
from reports.redact import is_secret_name, redact
from reports.sanitize import clean, one_line

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
COMMAND = "{command}"  # in [launch.values]
SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


def _check_variables(value: dict[str, str]) -> dict[str, str]:
    for name in value:
        if not VARIABLE.fullmatch(name):
            raise ValueError(f"expected the name of a variable, found {name!r}")
        if is_secret_name(name):
            raise ValueError(f"{name} may be a secret, and the report shows its value: remove it")
    return value


def _check_document(value: str) -> str:
    check_text(value, "text")
    scheme, colons, _ = value.partition("://")
    if clean(value) != value:
        raise ValueError(f"expected a path or URL of printable characters, found {value!r}")
    if colons and scheme not in ("http", "https"):
        expected = "a path, or an https URL (or an http URL with sha256)"
        raise ValueError(f"expected {expected}, found {value!r}")
    return value


def _check_sha256(value: str) -> str:
    if not SHA256.fullmatch(value):
        raise ValueError(f"expected 64 hex digits, as `sha256sum` prints, found {value!r}")
    return value


def _to_tuple(value: object) -> object:
    """Take a list of TOML for a tuple, which TOML has not."""
    return tuple(value) if isinstance(value, list) else value


Text = Annotated[str, AfterValidator(lambda text: check_text(text, "text"))]
Launcher = Literal["torchrun", "ray-train"]


class LaunchTerms(BaseModel):
    """Terms of LAUNCH: whose guide a user follows, and how."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    document: Annotated[str, AfterValidator(_check_document)] | None = about(
        None,
        "The operator's guide: a path relative to the contract's folder, or a URL (https, or http "
        "with `sha256`). Without this key, seatrial's own guide is followed.",
    )
    sha256: Annotated[str, AfterValidator(_check_sha256)] | None = about(
        None,
        "SHA-256 of the operator's guide. A changed guide is refused. An http URL needs this key.",
    )
    section: Text | None = about(
        None, "Heading above the commands, if only one section of the guide is used."
    )
    user: Literal["own"] | None = about(
        None,
        '"own" if the commands of the guide may run as the user who runs seatrial: the parties '
        "agree that this is an ordinary user.",
    )
    launchers: Annotated[tuple[Launcher, ...], BeforeValidator(_to_tuple)] = about(
        ("torchrun", "ray-train"),
        "Launchers of your users. Tier soak tests them. Without this key, it tests both.",
        min_length=1,
    )
    values: dict[str, str] = about(
        {},
        "Key: a text of the guide, such as `YOUR-CODE`. Value: what a user types instead. seatrial "
        "fills in `{command}` (it starts the job on Ray: one value must contain it), `{folder}` "
        "(of the job's code), `{name}` (a unique name), `{dashboard}` (the dashboard's address), "
        "`{nodes}` and `{ranks}` (how many there are), and `{shared}` (the shared folder).",
    )
    variables: Annotated[dict[str, str], AfterValidator(_check_variables)] = about(
        {}, "Variables that the guide sets for the job, and that each rank must have."
    )

    @model_validator(mode="after")
    def _check_guide(self) -> LaunchTerms:
        if self.document is None:
            for key in ("sha256", "section", "values", "variables"):
                if getattr(self, key):
                    raise ValueError(f"expected `document` (the guide) with {key}, found none")
            return self
        if self.document.startswith("http://") and self.sha256 is None:
            raise ValueError(
                f"expected sha256 with {self.document!r}, found none: others can change an http "
                "document on the network. Give the hash, or an https URL"
            )
        if any(not text.strip() for text in self.values):
            raise ValueError("values: expected texts of the guide, found an empty one")
        if not any(COMMAND in value for value in self.values.values()):
            raise ValueError(
                f"values: expected a value with {COMMAND}, found none. Add one for the job, such "
                f'as "python train.py" = "{COMMAND}": seatrial runs its own job in place of the '
                "guide's, and judges the ranks of its own job"
            )
        return self


# Bounds that no cluster reaches: a larger value is a mistake, such as bytes for GiB.
MAX_NODES, MAX_GPUS_PER_NODE, MAX_RAILS = 20_000, 64, 256  # 8 GPUs of 7 MIG slices are 56
MAX_GBPS = 1e5  # Gbit/s of one port; a hundred times today's fastest
MAX_CPUS, MAX_GIB = 100_000, 1e6  # of one node
MAX_PACE_S = 60.0  # s of one emulated step: a longer step leaves a probe no time
MAX_TARGETS = 32  # of egress and model_files: each node tries all of them at the same time
MAX_SAVE_MINUTES, MAX_SAVE_GB = 7 * 24 * 60.0, 1e6  # between two saves; GB of one
# Builds (torch's 2.13.0+cu130) have no order, so >= takes none.
VERSION = re.compile(r">= *\d+(\.\w+)*|\d+(\.\w+)*(\+[\w.]+)?", re.ASCII)
HOST = r"(\[[0-9a-fA-F:.]+\]|[\w.-]+)"
# A URL of HTTP without a user's name, or host:port.
TARGET = re.compile(
    rf"https?://{HOST}(:(?P<url_port>[1-9]\d*))?(/\S*)?|{HOST}:(?P<port>[1-9]\d*)", re.ASCII
)
MAX_PORT = 65535  # of 16 bits
# What HOSTS.system_differences compares.  Other parts change the speed or the results of jobs.
Agreeable = Literal["kernel", "ofed", "vbios", "nic_firmware", "persistence", "numa"]
# What people write for RDMA, and RDMA devices: no interface has such a name.
RDMA_WORDS = re.compile(
    r"rdma|ib|infiniband|roce(v2)?|efa|(mlx5|bnxt_re|irdma|efa)_\d+", re.IGNORECASE
)


Models = str | dict[str, int] | list[str]  # one, names that one board may have, or kinds of nodes


def _check_model(value: Models) -> Models:
    for name in [value] if isinstance(value, str) else value:
        check_text(name, 'the name that NVML gives, such as "NVIDIA H100 80GB HBM3"')
    if not value:
        raise ValueError("expected at least one name, found none: remove the key")
    return value


def _read_kinds(kinds: str, read: Callable[[Any], object], value: object) -> object:
    """Check a table of kinds of nodes; `read` turns a key into what it means, if it is right."""
    if not isinstance(value, dict):
        return value
    known, counts = [*map(read, value)], value.values()
    are_counts = all(type(count) is int and 0 < count <= MAX_NODES for count in counts)
    if not (value and all(known) and are_counts):
        text = ", ".join(f"{kind} = {nodes}" for kind, nodes in value.items()) or "nothing"
        raise ValueError(f"expected kinds of nodes, {kinds}; found {text}")
    return dict(zip(known, counts, strict=True))


# TOML has texts as keys.
COUNTS = {key: gpus for gpus in range(1, MAX_GPUS_PER_NODE + 1) for key in (gpus, str(gpus))}
GPU_KINDS = partial(_read_kinds, "GPUs = nodes, such as { 8 = 60, 4 = 4 }", COUNTS.get)
MODEL_KINDS = partial(_read_kinds, 'model = nodes, such as { "NVIDIA H200" = 4 }', str)


def _check_versions(value: dict[str, str]) -> dict[str, str]:
    for part, spec in value.items():
        if not VERSION.fullmatch(spec):
            expected = '"2.13.0" (exactly) or ">=550.54" (at least)'
            raise ValueError(f"{part}: expected {expected}, found {spec!r}")
    return value


def _check_folder(path: str) -> str:
    if not path.startswith("/") or clean(path) != path:
        raise ValueError(f"expected an absolute path on every node, found {path!r}")
    return path


def _check_egress(value: list[str]) -> list[str]:
    for target in value:
        match = TARGET.fullmatch(target)
        port = int(match["port"] or match["url_port"] or 0) if match else 0
        if not match or port > MAX_PORT or clean(target) != target:
            expected = "https://host/path without a user's name, or host:port"
            raise ValueError(f"expected {expected}, found {target!r}")
    return _check_list(value)


def _check_list(value: list[str]) -> list[str]:
    if not value:
        raise ValueError("expected at least one, found none: remove the key")
    if len(value) > MAX_TARGETS or len(set(value)) < len(value):
        found = f"{len(value)} ({len(set(value))} without repeats)"
        raise ValueError(f"expected at most {MAX_TARGETS} entries, each once, found {found}")
    return value


def _join_interfaces(value: object) -> object:
    if not isinstance(value, list):
        return value
    if not value or not all(isinstance(name, str) for name in value):
        raise ValueError(f'expected names of interfaces, such as ["eth1", "eth2"], found {value!r}')
    return ",".join(value)


def _check_fabric(value: str) -> str:
    names = value.split(",") if value != RDMA else []
    for name in names:
        _check_interface(name)
    if len({*names}) < len(names):
        raise ValueError(f"expected each interface once, found {value!r}")
    return value


def _check_interface(name: str) -> str:
    check_text(name, "the name of an interface")
    if one_line(name) != name or " " in name:
        raise ValueError(f"expected the name of an interface, found {name!r}")
    if RDMA_WORDS.fullmatch(name):
        expected = 'expected an interface, or "rdma" alone for InfiniBand, RoCE and EFA'
        raise ValueError(f"{expected}, found {name!r}")
    return name


def _check_rungs(value: list[int]) -> list[int]:
    if not value or len({*value}) < len(value):
        raise ValueError(f"expected numbers of nodes, each once, such as [1, 4, 16], found {value}")
    return value


Folder = Annotated[str, AfterValidator(_check_folder)]
Fabric = Annotated[str, BeforeValidator(_join_interfaces), AfterValidator(_check_fabric)]
NodeCount = Annotated[int, Field(ge=1, le=MAX_NODES)]


class ClusterTerms(BaseModel):
    """Terms of the cluster: what was ordered, and the names that the parties agreed on.

    `components` and `parallel` are both checked at once when the size of the cluster is known.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    accelerators: Literal["real", "emulated"] = about(
        "real",
        '"emulated" if ranks compute on the CPU. The run is then a rehearsal, which cannot accept '
        "a cluster.",
    )
    nodes: int | None = about(None, "Number of nodes with accelerators.", ge=1, le=MAX_NODES)
    nodes_at_most: NodeCount | None = about(
        None,
        "Maximum number of nodes, if it may grow above `nodes`, as with an autoscaler. All nodes "
        "are tested. Not with `parallel`, or a table in `gpus_per_node` or `gpu_model`.",
    )
    gpus_per_node: Annotated[
        Annotated[int, Field(ge=0, le=MAX_GPUS_PER_NODE)] | dict[int, int] | None,
        BeforeValidator(GPU_KINDS),
    ] = about(
        None,
        "Accelerators of each node. Where nodes differ, a table of kinds: `{ 8 = 60, 4 = 4 }` is "
        "60 nodes with 8 and 4 nodes with 4.",
    )
    gpus_outside_ray: int | None = about(
        None,
        "At most so many GPUs may be on nodes that offer Ray none, such as a desktop GPU of the "
        "head. They count as lost GPUs where fewer nodes than `nodes` answer.",
        ge=1,
        le=MAX_GPUS_PER_NODE,
    )
    gpu_model: (
        Annotated[Models, BeforeValidator(MODEL_KINDS), AfterValidator(_check_model)] | None
    ) = about(
        None,
        "GPU model, as `nvidia-smi -L` prints it. A list has names that this one model may have. "
        'Where nodes differ, a table of kinds: `{ "NVIDIA H200" = 4, "NVIDIA L40S" = 2 }` is 4 '
        "nodes with one model and 2 nodes with the other.",
    )
    gpu_memory_gib: float | None = about(None, "Minimum memory of each GPU.", gt=0, le=MAX_GIB)
    cpus_per_node: int | None = about(None, "Minimum CPUs of each node.", ge=1, le=MAX_CPUS)
    ram_gib: float | None = about(None, "Minimum memory of each node.", gt=0, le=MAX_GIB)
    disk_gib: float | None = about(
        None, "Minimum total size of the disks of each node.", gt=0, le=MAX_GIB
    )
    versions: Annotated[dict[str, str], AfterValidator(_check_versions)] | None = about(
        None, 'Software versions: "2.13.0" is only this version, ">=550.54" this or a later one.'
    )
    agreed_differences: Annotated[list[Agreeable], AfterValidator(_check_list)] | None = about(
        None,
        "What may differ between nodes: some of `kernel`, `ofed`, `vbios`, `nic_firmware`, "
        "`persistence`, `numa`. Such a difference is a note in the report, and no failure.",
    )
    shared: Folder | None = about(
        None,
        "Folder that all nodes share. Checkpoints are saved there, and HOSTS tests it. Without "
        "this key, checkpoints are saved in the run folder, which all nodes must then share.",
    )
    egress: Annotated[list[str], AfterValidator(_check_egress)] | None = about(
        None, "Servers that all nodes must reach, for downloads: `https://host/...` or `host:port`."
    )
    model_files: Annotated[list[Folder], AfterValidator(_check_list)] | None = about(
        None, "Folders and files that must be the same on each node."
    )
    dcgm_diag: bool = about(
        False,
        "Run DCGM's diagnostics on each node: level 1 in tier quick, 2 in standard, 3 in soak.",
    )
    ray_client_port: int | None = about(
        None, "Port of the head for `ray://` clients.", ge=1, le=MAX_PORT
    )
    host_names: bool = about(
        False,
        "True if jobs use the host names of nodes: then HOSTS tests each name. Ray does not need "
        "host names, and pods of Kubernetes do not resolve each other's names.",
    )
    authentication: Literal["token"] | None = about(
        None,
        '"token" if Ray must refuse each request without the cluster\'s token. Without this key, '
        "HOSTS requires the token only if Ray itself does. But HOSTS is UNPROVEN if a public "
        "address answers requests without a token.",
    )
    fabric: Fabric | None = about(
        None,
        'Network that carries gradients: "rdma" for InfiniBand, RoCE and EFA, otherwise the name '
        "of the interface (of bonded ports: the bond). In a list, each interface is a rail, and "
        "the ranks of a node use them in turn.",
    )
    management: Annotated[str, AfterValidator(_check_interface)] | None = about(
        None,
        "Interface outside the fabric. The self-test of FABRIC forces an all-reduce over it. "
        'Without this key, FABRIC is UNPROVEN unless `fabric` is "rdma".',
    )
    management_gbps: float | None = about(
        None, "Rate of `management`, if the interface does not report it.", gt=0, le=MAX_GBPS
    )
    rails: int | None = about(
        None, "How many RDMA ports of each node carry gradients.", ge=1, le=MAX_RAILS
    )
    line_rate_gbps: float | None = about(
        None,
        "Rate of one rail, or of the interface. The limit of FABRIC.busbw follows from this rate, "
        "unless the contract gives that limit.",
        gt=0,
        le=MAX_GBPS,
    )
    pace_seconds: float = about(
        0.0,
        "Only for a rehearsal: the compute of each step is extended to this time.",
        ge=0,
        le=MAX_PACE_S,
    )
    rungs: Annotated[list[NodeCount], AfterValidator(_check_rungs)] | None = about(
        None,
        "Numbers of nodes on which SCALING trains (default: 1, 2, 4, 8 and so on). One "
        "node and all nodes are always included.",
    )
    shards: Folder | None = about(
        None,
        "Folder with tokenised training data for SCALING. Without this key, the data is synthetic. "
        "The folder has the same path on each node, and each node needs all the data. With other "
        "data for each number of nodes, write `{nodes}` in the path: it becomes this number.",
    )
    save_minutes: float = about(
        30.0,
        "Time between two saves in training. SCALING divides the cost of a save by this time.",
        gt=0,
        le=MAX_SAVE_MINUTES,
    )
    save_gb: float | None = about(
        None,
        "Size of one save in training. SCALING scales the cost of its own save to this size, and "
        "HOSTS requires free space for three such saves.",
        gt=0,
        le=MAX_SAVE_GB,
    )
    launch: LaunchTerms = about(LaunchTerms(), "The table [launch], separate from [cluster].")
    queue: Literal["kueue", "volcano", "yunikorn", "kai"] | None = about(
        None, "Scheduler of Kubernetes that starts all pods of the Ray cluster or none."
    )
    components: dict[str, str | int] | None = about(
        None,
        "Only for jobs of several parts, as in RL. Key: a part, or several parts that use the same "
        'accelerators, such as `"actor,rollout"`. Value: the accelerators, counted from 0, such as '
        '`"0-31"`, or `"all"`. GANG starts a job with this placement.',
    )
    parallel: dict[Literal["tp", "pp", "dp"], Annotated[int, Field(ge=1)]] | None = about(
        None,
        "Tensor (tp), pipeline (pp) and data (dp) parallelism of a job on all accelerators. GANG "
        "checks that each tensor-parallel group is inside one node.",
    )

    @property
    def line_gbytes_per_s(self) -> float | None:
        """Line rate of a node (GB/s) over all its rails; None if no rate is agreed."""
        return self.rail_count * self.line_rate_gbps / 8 if self.line_rate_gbps else None

    @property
    def rail_count(self) -> int:
        """Rails of a node: as agreed, else one for each interface of the fabric."""
        return self.rails or max(1, len(interfaces_of(self.fabric)))

    @model_validator(mode="after")
    def _check_terms(self) -> ClusterTerms:
        """Check that the keys describe one cluster, and that placement and split fit it."""
        if self.pace_seconds and self.accelerators == "real":
            raise ValueError(
                "pace_seconds extends each step and hides its real speed: remove this key, or "
                'write accelerators = "emulated" for a rehearsal'
            )
        if self.fabric == "rdma" and self.line_rate_gbps and self.rails is None:
            raise ValueError(
                f"expected rails with line_rate_gbps = {self.line_rate_gbps:g} (the rate of one "
                "rail), found none: give the number of RDMA ports of a node that carry gradients, "
                "such as rails = 8"
            )
        if self.management and self.management in interfaces_of(self.fabric):
            raise ValueError(
                f"expected management to be another interface than the fabric, found "
                f"{self.management!r} for both: the self-test of FABRIC needs a second network"
            )
        names = interfaces_of(self.fabric)
        if self.rails and len(names) > 1 and self.rails != len(names):
            raise ValueError(
                f"expected rails = {len(names)}, one for each interface of the fabric, found "
                f"{self.rails}: remove rails"
            )
        if self.parallel is not None and set(self.parallel) != {"tp", "pp", "dp"}:
            raise ValueError(f"parallel: expected tp, pp and dp, found {', '.join(self.parallel)}")
        if self.gpus_per_node == 0 and self.accelerators == "real":
            raise ValueError(
                "expected gpus_per_node of 1 or more with real accelerators, found 0: a GPU "
                'cluster needs GPUs; write accelerators = "emulated" for a rehearsal'
            )
        for key in ("gpus_per_node", "gpu_model"):
            table = getattr(self, key)
            count = sum(table.values()) if isinstance(table, dict) else self.nodes
            if self.nodes != count:
                found = "no `nodes`" if self.nodes is None else f"nodes = {self.nodes}"
                raise ValueError(
                    f"expected nodes = {count}, the sum of {key}'s kinds, found {found}"
                )
        if self.nodes_at_most:
            if not 1 < (self.nodes or 0) < self.nodes_at_most:
                expected = f"expected nodes from 2 to {self.nodes_at_most - 1} with nodes_at_most"
                raise ValueError(f"{expected} = {self.nodes_at_most}, found {self.nodes or 'none'}")
            if self.parallel or {dict} & {type(self.gpus_per_node), type(self.gpu_model)}:
                raise ValueError(
                    "parallel, and a table of gpus_per_node or gpu_model, fit one number of nodes: "
                    "remove them, or nodes_at_most"
                )
        if self.total_gpus:
            self.check_placement(self.total_gpus)
        return self

    @property
    def kinds(self) -> dict[int, int]:
        """Ordered nodes by their number of accelerators: 0 where no number of nodes was ordered."""
        if isinstance(self.gpus_per_node, int):
            return {self.gpus_per_node: self.nodes or 0}
        return self.gpus_per_node or {}

    @property
    def total_gpus(self) -> int:
        """Number of all accelerators that were ordered; 0 where the terms do not say it."""
        return sum(gpus * nodes for gpus, nodes in self.kinds.items())

    def allows(self, nodes: int) -> bool:
        """Return whether so many nodes are as ordered; any number is without an order."""
        return self.nodes is None or self.nodes <= nodes <= (self.nodes_at_most or self.nodes)

    @property
    def nodes_text(self) -> str:
        """How many nodes were ordered: `8 nodes`, `8 to 12 nodes`, or `any number of nodes`."""
        if self.nodes_at_most:
            return f"{self.nodes} to {self.nodes_at_most} nodes"
        return quantity(self.nodes, "nodes") if self.nodes else "any number of nodes"

    @property
    def gpus_text(self) -> str:
        """How many accelerators: `8 per node`, or `8 on 60 nodes, 4 on 4 nodes`."""
        if isinstance(self.gpus_per_node, dict):
            return list_kinds(sorted(self.gpus_per_node.items(), reverse=True))
        return f"{self.gpus_per_node} per node"

    @property
    def models(self) -> list[str]:
        """Names of the GPU models that were ordered; none where the terms do not say it."""
        return [self.gpu_model] if isinstance(self.gpu_model, str) else [*(self.gpu_model or ())]

    @property
    def models_text(self) -> str:
        """Which GPUs: `NVIDIA H200`, or `NVIDIA H200 on 4 nodes, NVIDIA L40S on 2 nodes`."""
        if isinstance(self.gpu_model, dict):
            return list_kinds(self.gpu_model.items())
        return " or ".join(self.models)

    def kind_of(self, fact: Mapping[str, Any]) -> str:
        """Name the GPU models that a node has, by its facts; "" where no kinds were ordered."""
        found = sorted({gpu["name"] for gpu in fact["gpus"]} - {""})
        return " and ".join(found) if isinstance(self.gpu_model, dict) else ""

    def check_placement(self, total: int) -> None:
        """Raise SpecError when components or parallel do not fit `total` accelerators."""
        if self.components is None and self.parallel is None:
            return
        default: dict[str, str | int] = {"job": "all"}
        parts = components.parse(default if self.components is None else self.components, total)
        if self.parallel is not None:
            components.check_parallel_sizes(total, **self.parallel)
            for numbers in parts.values():
                components.split_groups(numbers, [""] * total, self.parallel["tp"])

    def overrides(self, other: dict[str, Any]) -> list[str]:
        """Return the keys whose value differs from `other`, terms without None values."""
        mine = redact(self.model_dump(mode="json"))  # as a record has it
        theirs = ClusterTerms().model_dump(mode="json") | other
        return [key for key in mine if _without_none(mine[key]) != _without_none(theirs[key])]


def list_kinds(kinds: Iterable[tuple[object, int]]) -> str:
    """List kinds of nodes: `8 on 60 nodes, 4 on 4 nodes`."""
    return ", ".join(f"{kind} on {quantity(nodes, 'nodes')}" for kind, nodes in kinds)


def match_kinds(order: Any, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what each node must have, from what was `found` there: a table has kinds = nodes.

    A node first takes the kind that has what it has.  Nodes that are no such kind take the kinds
    that are left, most accelerators first; one too many takes None.
    """
    if not isinstance(order, dict):
        return dict.fromkeys(found, order)
    left, matched = Counter(order), dict[str, Any]()
    for node, kind in found.items():
        if left[kind] > 0:
            left[kind] -= 1
            matched[node] = kind
    kinds = iter(sorted(left.elements(), reverse=True))
    odd = sorted((n for n in found if n not in matched), key=lambda n: found[n], reverse=True)
    return matched | {node: next(kinds, None) for node in odd}


def _without_none(value: Any) -> Any:
    """Drop the keys of a table that have no value: a record does not keep them."""
    if not isinstance(value, dict):
        return value
    return {key: each for key, each in value.items() if each is not None}
