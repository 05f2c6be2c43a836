"""The contract: criteria and limits agreed before the run, in TOML.

    [cluster]                     what was ordered, and its names
    nodes = 8
    [FABRIC.busbw]                one limit: criterion, measure
    at_least = 340
    marginal = 368
    unit = "GB/s"
    because = "85 % of 8 x 400 Gb/s"

`load` raises ContractError with one sentence: file, key, what was expected, what was found.
"""

from __future__ import annotations

import difflib
import hashlib
import re
import sys
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from probes.acceptance import component_placement as components
from probes.acceptance.criteria import CRITERIA, Measure
from reports.record import ContractFacts, Criterion, Limit, Waiver
from reports.renamed import MEASURES, current_name
from scaling.collectives.line_rate import limit_reason

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SCHEMA = 1  # of contract files: a file of another form must not be read as if it were of this
NAME = re.compile(r"\w[\w.-]*", re.ASCII)  # it is a part of folders' names
NOT_PROVABLE = "not_provable"  # key of a criterion: why this cluster cannot prove it
MAX_SAVE_MINUTES, MAX_SAVE_GB = 7 * 24 * 60.0, 1e6  # between two saves, and of one
MIN_SHARE, MARGINAL_SHARE = 0.85, 0.92  # of line rate: what a healthy all-reduce keeps, with a band


class ContractError(ValueError):
    """One sentence: file, key, what was expected and what was found."""


class ClusterTerms(BaseModel):
    """What was ordered, and the names the parties agreed on.

    `accelerators` is "emulated" where arithmetic is on the CPU: nothing else makes a rehearsal of a
    run, and such a run accepts no cluster.  `gpu_model` is the name that NVML gives, or several of
    which each GPU must have one; `gpu_memory_gib`, `cpus_per_node` and `ram_gib` are the least that
    each GPU or node must have; `versions` is by part: "2.13.0" exactly, ">=550.54" at least.
    `fabric` is the interface that must carry gradients (of several Ethernet ports, their bond), or
    "rdma".  `line_rate_gbps` is of one rail, of which a node has `rails`; `management_gbps` is of
    `management`, where its devices do not say it.  `pace_seconds` emulates an accelerator: each
    step's compute is padded to it.  `shards` is the folder of each node's token shard, for SCALING
    to read real data (synthetic without it); `{nodes}` in it stands for the number of nodes that
    train.  `save_minutes` is how often training will save, and `save_gb` how much: SCALING judges
    what saving costs by them (without `save_gb`, by the save of its own model).
    `queue` is the layer that gangs pods above Ray, where there is one.  `components` places
    the parts of a job on its accelerators (`"actor,rollout" = "all"`), `parallel` is how they are
    split (tp, pp, dp); both are checked at once when the size of the cluster is known.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    accelerators: Literal["real", "emulated"] = "real"
    nodes: int | None = Field(default=None, ge=1)
    gpus_per_node: int | None = Field(default=None, ge=0)
    gpu_model: str | list[str] | None = None
    gpu_memory_gib: float | None = Field(default=None, gt=0)
    cpus_per_node: int | None = Field(default=None, ge=1)
    ram_gib: float | None = Field(default=None, gt=0)
    versions: dict[str, str] | None = None
    shared: str | None = None
    fabric: str | None = None
    management: str | None = None
    management_gbps: float | None = Field(default=None, gt=0)
    rails: int | None = Field(default=None, ge=1)
    line_rate_gbps: float | None = Field(default=None, gt=0)
    pace_seconds: float = Field(default=0.0, ge=0)
    shards: str | None = None
    save_minutes: float = Field(default=30.0, gt=0, le=MAX_SAVE_MINUTES)
    save_gb: float | None = Field(default=None, gt=0, le=MAX_SAVE_GB)
    queue: Literal["kueue", "volcano", "yunikorn", "kai"] | None = None
    components: dict[str, str | int] | None = None
    parallel: dict[Literal["tp", "pp", "dp"], int] | None = None

    @model_validator(mode="after")
    def _check_terms(self) -> ClusterTerms:
        """The placement and the split must be of the cluster that was ordered."""
        if self.fabric == "rdma" and self.line_rate_gbps and self.rails is None:
            raise ValueError(
                f"expected rails beside line_rate_gbps = {self.line_rate_gbps:g}, which is of one "
                "rail, found none: say how many RDMA ports of a node carry gradients, as rails = 8"
            )
        if self.parallel is not None and set(self.parallel) != {"tp", "pp", "dp"}:
            raise ValueError(f"parallel takes tp, pp and dp, found {', '.join(self.parallel)}")
        if self.shards is not None and not self.shards.startswith("/"):
            raise ValueError(f"shards is an absolute path on every node, found {self.shards!r}")
        if self.nodes and self.gpus_per_node:
            self.check_placement(self.nodes * self.gpus_per_node)
        return self

    def check_placement(self, total: int) -> None:
        """Raises SpecError when components or parallel do not fit `total` accelerators."""
        default: dict[str, str | int] = {"job": "all"}
        parts = components.parse(default if self.components is None else self.components, total)
        if self.parallel is not None:
            components.check_parallel_sizes(total, **self.parallel)
            for numbers in parts.values():
                components.split_groups(numbers, [""] * total, self.parallel["tp"])


class LimitTerms(BaseModel):
    """One limit as people write it; `marginal` is the inner bound on the same side."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    at_least: float | None = None
    at_most: float | None = None
    exactly: float | None = None
    one_of: list[str] | None = None
    marginal: float | None = None
    unit: str = ""
    because: str = Field(min_length=3)

    def to_limit(self, source: str) -> Limit:
        """The limit as the record knows it; raises ValueError when the bounds make no sense."""
        low = self.exactly if self.exactly is not None else self.at_least
        high = self.exactly if self.exactly is not None else self.at_most
        if low is None and high is None and not self.one_of:
            raise ValueError("has no bound: give at_least, at_most, exactly or one_of")
        if self.marginal is not None and (low is None) == (high is None):
            raise ValueError("marginal needs exactly one of at_least and at_most")
        inner_low = self.marginal if low is not None else None
        inner_high = self.marginal if low is None else None
        if low is not None and inner_low is not None and inner_low < low:
            raise ValueError(f"marginal {inner_low} lies outside at_least {low}")
        if high is not None and inner_high is not None and inner_high > high:
            raise ValueError(f"marginal {inner_high} lies outside at_most {high}")
        return Limit(
            low=low,
            high=high,
            marginal_low=inner_low,
            marginal_high=inner_high,
            one_of=self.one_of,
            unit=self.unit,
            because=self.because,
            source=source,
        )


class Contract(BaseModel):
    """A contract, read and checked."""

    model_config = ConfigDict(frozen=True)

    name: str
    title: str
    sha256: str
    agreed: bool
    cluster: ClusterTerms
    limits: dict[str, dict[str, Limit]]
    tier: Literal["quick", "standard", "soak"] = "quick"  # the shortest that proves what was agreed
    optional: dict[str, str] = {}  # criterion -> why this cluster cannot prove it
    waivers: list[Waiver] = []
    notices: list[str] = []  # what whoever keeps the file should change in it

    @property
    def rehearsal(self) -> bool:
        """Whether the contract itself says that its run is a rehearsal."""
        return self.cluster.accelerators == "emulated"

    @property
    def agreed_names(self) -> frozenset[str]:
        """The measures that it has a limit for, as SCALING.mfu."""
        return frozenset(f"{id}.{name}" for id, names in self.limits.items() for name in names)

    def facts(self) -> ContractFacts:
        """What the record keeps of it."""
        criteria = [
            Criterion(
                id=id,
                title=self.title_of(id),
                how=row.how,
                required=id not in self.optional,
                not_provable=self.optional.get(id, ""),
            )
            for id, row in CRITERIA.items()
        ]
        kept = {"name", "title", "sha256", "agreed", "tier", "waivers"}
        agreed = self.model_dump(include=kept)
        return ContractFacts(**agreed, rehearsal=self.rehearsal, criteria=criteria)

    def title_of(self, id: str) -> str:
        """The criterion's title.  Only a contract whose fabric is RDMA may claim RDMA."""
        if id == "FABRIC" and self.cluster.fabric != "rdma":
            return "the agreed fabric is in use"
        return CRITERIA[id].title

    def limit(self, criterion: str, measure: str) -> Limit | None:
        """The limit of a measure: fixed, else agreed, else the reasoned default, else None."""
        known = CRITERIA[criterion].measures[measure]
        return known.fixed or self.limits.get(criterion, {}).get(measure) or known.default


def shipped_contracts() -> list[str]:
    """Names of the contracts that come with seatrial."""
    folder = resources.files("probes.acceptance") / "contracts"
    return sorted(
        f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml")
    )


def load(name: str) -> Contract:
    """The contract of a shipped name, or of a file (a word with a dot or a slash)."""
    if "/" in name or name.endswith(".toml"):
        path = Path(name)
        if not path.is_file():
            raise ContractError(f"contract {name}: expected a TOML file, found none there")
        return parse(path.read_bytes(), path.name)
    if name not in shipped_contracts():
        raise ContractError(
            f"contract {name!r} is not shipped{_hint(name, shipped_contracts())}; "
            f"there are {', '.join(shipped_contracts())}, or give a file"
        )
    content = (resources.files("probes.acceptance") / "contracts" / f"{name}.toml").read_bytes()
    return parse(content, f"{name}.toml")


def parse(content: bytes, file: str) -> Contract:
    """Check a contract's text.  Raises ContractError naming the file and the key or line."""
    try:
        raw = tomllib.loads(content.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ContractError(f"{file}: not TOML: {error}") from None
    if raw.get("schema") != SCHEMA:
        raise ContractError(f"{file}: expected schema = {SCHEMA}, found {raw.get('schema')!r}")
    known_keys = ["schema", "name", "title", "tier", "cluster", "waivers", *CRITERIA]
    for key in raw:
        if key not in known_keys:
            raise ContractError(f"{file}: unknown key {key!r}{_hint(key, known_keys)}")
    limits = {id: _parse_criterion(raw[id], id, file) for id in CRITERIA if id in raw}
    optional = {id: str(raw[id][NOT_PROVABLE]) for id in limits if NOT_PROVABLE in raw[id]}
    cluster: ClusterTerms = _validate(ClusterTerms, raw.get("cluster", {}), f"{file}: [cluster]")
    name, waivers_raw = raw.get("name", Path(file).stem), raw.get("waivers", [])
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ContractError(f"{file}: name: expected a word of A-Z a-z 0-9 _ . -, found {name!r}")
    if not isinstance(waivers_raw, list):
        raise ContractError(f"{file}: expected [[waivers]] tables, found {waivers_raw!r}")
    waivers = [_parse_waiver(waiver, file) for waiver in waivers_raw]
    if gbps := cluster.line_rate_gbps:
        rails = cluster.rails or 1  # of Ethernet there is one interface
        derived = ring_limit(rails * gbps / 8, f"{rails} x {gbps:g} Gbit/s", f"{file} [cluster]")
        limits.setdefault("FABRIC", {}).setdefault("busbw", derived)
    return Contract(
        name=name,
        title=str(raw.get("title", "")),
        sha256=hashlib.sha256(content).hexdigest(),
        agreed=True,
        cluster=cluster,
        limits=limits,
        tier=raw.get("tier", "quick"),
        optional=optional,
        waivers=waivers,
        notices=_renamed_keys(raw, file),
    )


def _parse_criterion(table: Any, id: str, file: str) -> dict[str, Limit]:
    """Read the limits of one criterion's table."""
    if not isinstance(table, dict):
        raise ContractError(f"{file}: {id} is expected to be a table, found {table!r}")
    known, limits = [*CRITERIA[id].measures, NOT_PROVABLE], {}
    for key, value in table.items():
        name = current_name(MEASURES.get(id, {}), key)
        if name not in known:
            raise ContractError(
                f"{file}: unknown key {id}.{key}{_hint(key, known)}; {id} knows {', '.join(known)}"
            )
        if name != key and name in table:
            raise ContractError(
                f"{file}: found both [{id}.{key}] and [{id}.{name}], two names of one limit: "
                f"keep [{id}.{name}]"
            )
        if key != NOT_PROVABLE:
            limits[name] = _parse_limit(value, CRITERIA[id].measures[name], file, f"[{id}.{key}]")
    return limits


def _renamed_keys(raw: dict[str, Any], file: str) -> list[str]:
    """Tell, of each old name of a measure, what it is called now."""
    return [
        f"{file}: [{id}.{key}] is now called [{id}.{MEASURES[id][key]}]"
        for id in MEASURES
        for key in raw.get(id, {})
        if key in MEASURES[id]
    ]


def ring_limit(gbytes_per_s: float, rate_text: str, source: str, prefix: str = "") -> Limit:
    """Build the plateau of all-reduce that a node's line rate gives, with its reason."""
    return Limit(
        low=MIN_SHARE * gbytes_per_s,
        marginal_low=MARGINAL_SHARE * gbytes_per_s,
        unit="GB/s",
        because=prefix + limit_reason(MIN_SHARE, rate_text),
        source=source,
    )


def _parse_waiver(value: Any, file: str) -> Waiver:
    waiver: Waiver = _validate(Waiver, value, f"{file}: [[waivers]]")
    if waiver.criterion not in CRITERIA:
        hint = _hint(waiver.criterion, CRITERIA)
        raise ContractError(f"{file}: waiver {waiver.id} of unknown {waiver.criterion!r}{hint}")
    return waiver


def _parse_limit(value: Any, measure: Measure, file: str, table: str) -> Limit:
    """Read one limit from its table of the file."""
    where = f"{file}: {table}"
    if measure.from_run:
        raise ContractError(f"{where}: this limit follows from {measure.from_run}: leave it out")
    if measure.fixed is not None:
        raise ContractError(
            f"{where} is fixed at {measure.fixed} ({measure.fixed.because}): "
            "no contract may change it"
        )
    terms: LimitTerms = _validate(LimitTerms, value, where)
    if terms.unit != measure.unit:
        raise ContractError(f"{where}: expected unit {measure.unit!r}, found {terms.unit!r}")
    try:
        return terms.to_limit(source=f"{file} {table}")
    except ValueError as error:
        raise ContractError(f"{where} {error}") from None


def _validate(model: type[Any], value: Any, where: str) -> Any:
    """Validate with pydantic; its first complaint becomes our sentence."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            message = f"unknown key {key!r}{_hint(key, model.model_fields)}"
        elif not key:  # a sentence of ours about several keys
            message = first["msg"].removeprefix("Value error, ")
        elif first["type"] == "missing":
            message = f"{key!r} is missing"
        else:
            message = f"{key!r}: {first['msg']}, found {first['input']!r}"
        raise ContractError(f"{where}: {message}") from None


def _hint(word: str, known: Any) -> str:
    """`, did you mean 'busbw'?` or nothing."""
    close = difflib.get_close_matches(word, list(known), 1)
    return f", did you mean {close[0]!r}?" if close else ""
