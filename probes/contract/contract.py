"""The contract: criteria and limits agreed before the run, in TOML.

    [cluster]                     what was ordered, and agreed names
    nodes = 8
    [FABRIC.busbw]                one limit: criterion, measure
    at_least = 340
    marginal = 368
    unit = "GB/s"
    because = "85 % of 8 x 400 Gb/s"

`load` raises ContractError with one sentence: file, key, what was expected, what was found.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from probes.check.declarations import Check, OnOneNode, one_node_ordered
from probes.check.owed import MANY_NODES, has_ip_fabric, judged_names, owed_event
from probes.check.registry import CRITERIA, is_judged
from probes.cluster.node_facts import software_versions
from probes.contract import validation
from probes.contract.limits import LimitTerms, lacks_speed_limit, read_tolerances, ring_limit
from probes.contract.terms import ClusterTerms, LaunchTerms
from probes.contract.validation import ContractError, has_words, parse_toml, validate_terms
from probes.toml_tables import show, spelling_hint
from reports.measurement import Limit, about
from reports.record import TIERS, ContractFacts, Criterion, Waiver

__all__ = ("ClusterTerms", "Contract", "ContractError", "load", "parse", "shipped_contracts")
SHIPPED = resources.files("probes.contract") / "contracts"
SCHEMA = 1  # of contract files: a file of another schema must not be read as this one
NAME = re.compile(r"\w[\w.-]{0,59}", re.ASCII)  # it is a part of folder names, of 255 at most
NOT_PROVABLE = "not_provable"  # key of a criterion: why this cluster cannot prove it
NOT_COUNTABLE = "not_countable"  # key of a measure: why no device of this fabric counts it
MIN_REASON_WORDS = 3  # of both: fewer words are no reason
TOP_KEYS = (
    *("schema", "name", "title", "tier", "draft"),
    *("cluster", "launch", "accept", "baseline", "waivers"),
)
END_DRAFT = "change each value to what was ordered, then remove the line `draft = true`"


class AcceptTerms(BaseModel):
    """Terms of the acceptance itself, the table [accept]."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_marginal: int | None = about(None, "How many measures may be MARGINAL.", ge=0)


class Contract(BaseModel):
    """A parsed and checked contract."""

    model_config = ConfigDict(frozen=True)

    name: str
    title: str
    sha256: str
    agreed: bool
    cluster: ClusterTerms
    limits: dict[str, dict[str, Limit]]
    tier: Literal["quick", "standard", "soak"] = "quick"  # the shortest that proves the terms
    text: bytes = b""  # of the file; empty where limits are derived
    optional: dict[str, str] = {}  # criterion -> why this cluster cannot prove it
    not_countable: dict[str, str] = {}  # measure, as FABRIC.lost_packets -> why nothing counts it
    waivers: list[Waiver] = []
    baseline: dict[str, float] = {}  # measure -> percent that it may be worse than before
    max_marginal: int | None = None  # measures that may be MARGINAL; None: no maximum was agreed
    draft: bool = False  # nobody has agreed on it yet: no run takes it
    guide: str = ""  # path of the operator's guide, if it is a file

    @property
    def rehearsal(self) -> bool:
        """Whether the contract itself declares a rehearsal."""
        return self.cluster.accelerators == "emulated"

    @property
    def limited_names(self) -> frozenset[str]:
        """Measures with a limit, agreed or derived, as SCALING.mfu."""
        return frozenset(f"{id}.{name}" for id, names in self.limits.items() for name in names)

    def facts(self, alone: bool = False) -> ContractFacts:
        """Build the facts that the record keeps; `alone` if the cluster is the one node ordered."""
        criteria = [self.criterion(id, alone) for id in CRITERIA]
        kept = {"name", "title", "sha256", "agreed", "tier", "waivers", "baseline", "max_marginal"}
        agreed = self.model_dump(include=kept)
        return ContractFacts(**agreed, rehearsal=self.rehearsal, criteria=criteria)

    def criterion(self, id: str, alone: bool = False) -> Criterion:
        """Build the facts of one criterion; `alone` as in `facts`."""
        row, one = CRITERIA[id], CRITERIA[id].on_one_node if alone else None
        headlines = one.headlines if one and one.headlines else row.headlines
        other = {str(check): text for check, text in one.failing.items()} if one else {}
        return Criterion(
            id=id,
            title=self.title_of(id, alone),
            how=row.how,
            required=id not in self.optional,
            not_provable=self.optional.get(id, ""),
            headlines={str(check): text for check, text in headlines.items()},
            failing={**row.failing, **other},
            proven=self.proven_of(id, one),
            not_tested=f"One node was ordered: {one.untested} was not tested" if one else "",
            not_countable={
                name.partition(".")[2]: reason
                for name, reason in self.not_countable.items()
                if name.startswith(f"{id}.")
            },
        )

    def proven_of(self, id: str, one: OnOneNode | None = None) -> str:
        """Return what an accepted criterion shows.  Only RDMA that was agreed may be claimed."""
        if one is not None and one.proven is not None:
            return one.proven
        return CRITERIA[id].proven if self._may_claim(id) else " over the agreed fabric"

    def title_of(self, id: str, alone: bool = False) -> str:
        """Return the criterion's title.  Only a contract whose fabric is RDMA may claim RDMA."""
        row = CRITERIA[id]
        if alone and row.on_one_node and row.on_one_node.title:
            return row.on_one_node.title
        return row.title if self._may_claim(id) else "the agreed fabric is in use"

    def _may_claim(self, id: str) -> bool:
        return id != "FABRIC" or self.cluster.fabric == "rdma"

    def judges(self, criterion: str, measure: str) -> bool:
        """Return whether a measure is judged: what this cluster cannot prove only informs."""
        return is_judged(criterion, measure, self.optional)

    def limit(self, criterion: str, measure: str) -> Limit | None:
        """Return the limit of a measure: fixed, else agreed, else the default, else None.

        It is also None where the measure only informs.
        """
        if not self.judges(criterion, measure):
            return None
        known = CRITERIA[criterion].measures[measure]
        return known.fixed or self.limits.get(criterion, {}).get(measure) or known.default

    def owed_event(
        self, tier: str, only: Sequence[str], terms: ClusterTerms, cluster: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Build the event on what a run must record, of the facts of its cluster in the record."""
        return owed_event(
            tier,
            self.tier,
            only,
            terms=terms,
            nodes=cluster.get("alive", 0),
            on_gpu=bool(cluster.get("on_gpu")),
            agreed=self.limited_names,
            not_provable=frozenset(self.optional),
            not_countable=frozenset(self.not_countable),
            one_host=cluster.get("kind") == "local",
            ranks=cluster.get("ranks", 0),
            ip_fabric=has_ip_fabric(terms.fabric, cluster.get("nodes", [])),
        )


def is_one_node(terms: ClusterTerms, cluster: Mapping[str, Any]) -> bool:
    """Return whether a recorded cluster is the one node that was ordered."""
    return one_node_ordered(terms, cluster.get("alive", 0), cluster.get("kind") == "local")


def shipped_contracts() -> list[str]:
    """Return the names of the contracts that come with seatrial."""
    names = (file.name for file in SHIPPED.iterdir())
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def load(name: str) -> Contract:
    """Load a shipped contract by its name, or a file (a word with a slash or .toml)."""
    if "/" in name or name.endswith(".toml"):
        return _find_guide(parse(_read_file(Path(name)), Path(name).name), Path(name))
    if name not in shipped_contracts():
        here = f" (this folder has a file of this name: ./{name})" if os.path.isfile(name) else ""
        hint = spelling_hint(name, shipped_contracts()) or "."
        raise ContractError(
            f"seatrial has no contract {show(name)}{hint} "
            f"Give one of {', '.join(shipped_contracts())}, or a file{here}"
        )
    return parse((SHIPPED / f"{name}.toml").read_bytes(), f"{name}.toml")


def _find_guide(contract: Contract, path: Path) -> Contract:
    """Find the operator's guide from the contract's folder.  Raises ContractError."""
    document = contract.cluster.launch.document
    if document is None or document.startswith(("http://", "https://")):
        return contract
    guide = path.parent / document
    if not guide.is_file():
        raise ContractError(f"{path.name}: [launch] document: expected a file, found none: {guide}")
    return contract.model_copy(update={"guide": str(guide.absolute())})


def _read_file(path: Path) -> bytes:
    """Read at most MAX_BYTES + 1 bytes of a regular file.

    Nothing else is opened: a read from a pipe could block.  Raises ContractError.
    """
    try:
        if stat.S_ISREG(path.stat().st_mode):
            with path.open("rb") as file:
                return file.read(validation.MAX_BYTES + 1)
    except FileNotFoundError:
        raise ContractError(f"contract {path}: expected a TOML file, found none there") from None
    except OSError as error:
        raise ContractError(f"contract {path} cannot be read: {error.strerror}") from None
    except ValueError:  # a NUL, which no path can have
        raise ContractError(f"contract {show(str(path))}: the path has a NUL character") from None
    raise ContractError(f"contract {path}: expected a TOML file, found something else")


def parse(content: bytes, file: str) -> Contract:
    """Parse and check a contract's text.  Raises ContractError with file and key or line."""
    raw = _read_toml(content, file)
    cluster = _parse_cluster(raw.get("cluster", {}), f"{file}: [cluster]")
    launch: LaunchTerms = validate_terms(LaunchTerms, raw.get("launch", {}), f"{file}: [launch]")
    cluster = cluster.model_copy(update={"launch": launch})
    accept: AcceptTerms = validate_terms(AcceptTerms, raw.get("accept", {}), f"{file}: [accept]")
    if type(draft := raw.get("draft", False)) is not bool:
        raise ContractError(f"{file}: draft: expected true or false, found {show(draft)}")
    not_countable = dict(_take_not_countable(raw, file))
    limits = {id: _parse_criterion(raw[id], id, file) for id in CRITERIA if id in raw}
    optional = {
        id: _parse_not_provable(raw[id][NOT_PROVABLE], cluster, f"{file}: [{id}]")
        for id in limits
        if NOT_PROVABLE in raw[id]
    }
    name, title = raw.get("name", Path(file).stem), raw.get("title", "")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        expected = "expected at most 60 characters of A-Z a-z 0-9 _ . -"
        raise ContractError(f"{file}: name: {expected}, found {show(name)}")
    if not isinstance(title, str):
        raise ContractError(f"{file}: title: expected text in quotes, found {show(title)}")
    if "title" in raw and not has_words(title):
        raise ContractError(f"{file}: title: expected words, found {show(title)}")
    _agree_fabric(limits.setdefault("FABRIC", {}), cluster, file)
    contract = Contract(
        name=name,
        title=title,
        sha256=hashlib.sha256(content).hexdigest(),
        text=content,
        agreed=True,
        cluster=cluster,
        limits=limits,
        tier=_parse_tier(raw.get("tier", TIERS[0]), file),
        optional=optional,
        not_countable=not_countable,
        waivers=_parse_waivers(raw.get("waivers", []), file),
        baseline=read_tolerances(raw.get("baseline", {}), file),
        max_marginal=accept.max_marginal,
        draft=draft,
    )
    _refuse_unjudged(contract, file)
    return contract


def refuse_draft(contract: Contract | None, file: str) -> None:
    """Refuse a contract that is still a draft, to judge by.  Raises ContractError."""
    if contract and contract.draft:
        raise ContractError(f"{file} is a draft: {END_DRAFT}")


def _needed_keys(name: str) -> str:
    """Name the keys of [cluster] without which a measure, as FABRIC.slowest_rail, is not judged."""
    criterion, _, measure = name.partition(".")
    when = CRITERIA[criterion].measures[measure].when
    keys = sorted(when.terms) if when else []
    return " and ".join('fabric (for example "rdma")' if key == "fabric" else key for key in keys)


def _refuse_unjudged(contract: Contract, file: str) -> None:
    """Refuse terms that no probe of the contract's own tier measures: they would have no effect."""
    terms, tier, limited = contract.cluster, contract.tier, contract.limited_names
    for name in sorted(limited - judged_names(TIERS[-1], terms, limited)):
        raise ContractError(
            f"{file}: with the [cluster] of this contract, no test measures [{name}]. Remove "
            f"[{name}], or set {_needed_keys(name)} in [cluster]"
        )
    judged = judged_names(tier, terms, limited)
    keys = dict.fromkeys((f"[{name}]" for name in sorted(limited - judged)), True)
    for name in contract.baseline:
        provable = contract.judges(*name.split("."))
        if name not in judged or not provable:
            keys[f"[baseline] {name}"] = provable
    if tier == TIERS[0]:
        placed = ("components", "parallel", "queue")
        keys |= {f"[cluster] {key}": True for key in placed if getattr(terms, key) is not None}
    for key, has_use in keys.items():
        longer = has_use and tier == TIERS[0]  # the next tier uses it
        do = 'Write tier = "standard" at the top, or remove' if longer else "Remove"
        raise ContractError(f"{file}: {key}: no test of tier {tier} uses it. {do} this key")


def _read_toml(content: bytes, file: str) -> dict[str, Any]:
    """Parse the file's tables, and check its schema version and its top-level keys."""
    raw = parse_toml(content, file)
    schema = raw.get("schema")
    if type(schema) is not int or schema != SCHEMA:  # True == 1
        found = "none. Add it as the first line" if schema is None else show(schema)
        raise ContractError(f"{file}: expected schema = {SCHEMA}, found {found}")
    known_keys = [*TOP_KEYS, *CRITERIA]
    for key in raw:
        if key not in known_keys:
            raise ContractError(f"{file}: unknown key {show(key)}{spelling_hint(key, known_keys)}")
    return raw


def _parse_cluster(table: Any, where: str) -> ClusterTerms:
    """Parse [cluster].  Refuse versions that no probe reads: they would stay unproven."""
    terms: ClusterTerms = validate_terms(ClusterTerms, table, where)
    if "launch" in terms.model_fields_set:
        raise ContractError(f"{where}: 'launch': write it as a separate table, [launch]")
    known = software_versions()
    for part in terms.versions or ():
        if part not in known:
            hint = spelling_hint(part, known) or f". Expected one of: {', '.join(known)}"
            raise ContractError(
                f"{where}: 'versions': expected known software, found {part!r}{hint}"
            )
    return terms


def _agree_fabric(limits: dict[str, Limit], cluster: ClusterTerms, file: str) -> None:
    """Add the limits that follow from [cluster]; refuse those that contradict it."""
    network = limits.get("network")
    if network and cluster.fabric and cluster.fabric not in (network.one_of or []):
        raise ContractError(
            f"{file}: [FABRIC.network]: expected {cluster.fabric!r}, the fabric of [cluster], in "
            f"one_of, found {network}: change one of the two"
        )
    if cluster.fabric and not network:
        because = (
            "agreed as `fabric` of [cluster]; any other network is a fallback, even a fast one"
        )
        source = f"{file} [cluster]"
        limits["network"] = Limit(one_of=[cluster.fabric], because=because, source=source)
    rate = cluster.line_gbytes_per_s
    if not rate:
        return
    text = f"{cluster.rail_count} x {cluster.line_rate_gbps:g} Gbit/s"
    busbw = limits.setdefault("busbw", ring_limit(rate, text, f"{file} [cluster]"))
    if busbw.low is not None and busbw.low > rate:
        raise ContractError(
            f"{file}: [FABRIC.busbw]: expected at_least = {rate:g} or less, the line rate of "
            f"{text}, found {busbw.low:g}: no fabric is faster than its line rate"
        )


def _parse_tier(tier: Any, file: str) -> Any:
    if tier not in TIERS:
        hint = spelling_hint(str(tier), TIERS)
        expected = f"expected one of {', '.join(TIERS)}"
        raise ContractError(f"{file}: tier: {expected}, found {show(tier)}{hint}")
    return tier


def _parse_not_provable(reason: Any, cluster: ClusterTerms, where: str) -> str:
    """Read the reason why a rehearsal cannot prove a criterion, which is then not required."""
    if cluster.accelerators != "emulated":
        raise ContractError(
            f"{where} {NOT_PROVABLE}: expected only in the contract of a rehearsal, because "
            "real accelerators must prove every criterion: drop the key, or write [cluster] "
            'accelerators = "emulated"'
        )
    return _check_reason(
        reason, f"{where} {NOT_PROVABLE}", "this cluster cannot prove the criterion"
    )


def _check_reason(reason: Any, where: str, what: str) -> str:
    """Return a reason if it is a sentence.  Raises ContractError."""
    words = [word for word in reason.split() if has_words(word)] if isinstance(reason, str) else []
    if len(words) < MIN_REASON_WORDS:
        raise ContractError(f"{where}: expected a sentence: why {what}, found {show(reason)}")
    return str(reason)


def _take_not_countable(raw: dict[str, Any], file: str) -> Iterator[tuple[str, str]]:
    """Take the measures that nothing counts here out of the tables, each with its reason."""
    may = [f"{id}.{one}" for id in CRITERIA for one in CRITERIA[id].checks if one.may_lack_counter]
    for id, table in ((id, raw[id]) for id in CRITERIA if isinstance(raw.get(id), dict)):
        found = {k: v for k, v in table.items() if isinstance(v, dict) and NOT_COUNTABLE in v}
        for name, value in found.items():
            where = f"{file}: [{id}.{name}] {NOT_COUNTABLE}"
            if f"{id}.{name}" not in may:
                expected = f"expected only in {' and '.join(may)}, which some devices do not count"
                raise ContractError(f"{where}: {expected}: remove this key")
            if len(value) > 1:
                raise ContractError(
                    f"{where}: expected alone, because what nothing counts needs no limit: drop "
                    "one of the two"
                )
            yield f"{id}.{name}", _check_reason(value[NOT_COUNTABLE], where, "nothing counts it")
        raw[id] = {name: value for name, value in table.items() if name not in found}


def _parse_criterion(table: Any, id: str, file: str) -> dict[str, Limit]:
    """Read the limits of one criterion's table."""
    if not isinstance(table, dict):
        raise ContractError(f"{file}: {id}: expected a table, found {show(table)}")
    known, limits = [*CRITERIA[id].measures, NOT_PROVABLE], {}
    if NOT_PROVABLE in table and len(table) > 1:
        key = next(key for key in table if key != NOT_PROVABLE)
        raise ContractError(
            f"{file}: [{id}.{key}]: expected no limit, because [{id}] is {NOT_PROVABLE} and "
            "is not judged: drop one of the two"
        )
    for key, value in table.items():
        if key not in known:
            raise ContractError(
                f"{file}: unknown key {id}.{key}{spelling_hint(key, known) or '.'} "
                f"{id} has {', '.join(known)}"
            )
        if key != NOT_PROVABLE:
            limits[key] = _parse_limit(value, CRITERIA[id].measures[key], file, f"[{id}.{key}]")
    return limits


def _parse_waivers(tables: Any, file: str) -> list[Waiver]:
    """Read the waivers; id, reason and name of each must have words."""
    if not isinstance(tables, list):
        raise ContractError(f"{file}: expected [[waivers]] tables, found {show(tables)}")
    where = f"{file}: [[waivers]]"
    waivers: list[Waiver] = [validate_terms(Waiver, table, where) for table in tables]
    for waiver in waivers:
        if waiver.criterion not in CRITERIA:
            hint = spelling_hint(waiver.criterion, CRITERIA)
            raise ContractError(
                f"{file}: waiver {show(waiver.id)}: unknown criterion "
                f"{show(waiver.criterion)}{hint}"
            )
        for key in ("id", "reason", "name"):
            if not has_words(getattr(waiver, key)):
                raise ContractError(f"{where}: {key!r}: expected words, found none")
    return waivers


def _parse_limit(value: Any, measure: Check, file: str, table: str) -> Limit:
    """Read one limit from its table of the file."""
    where = f"{file}: {table}"
    if measure.from_run:
        raise ContractError(f"{where}: this limit follows from {measure.from_run}: remove it")
    if measure.fixed is not None:
        raise ContractError(
            f"{where} is fixed at {measure.fixed} ({measure.fixed.because}), and no contract may "
            "change it: remove this table"
        )
    terms: LimitTerms = validate_terms(LimitTerms, value, where)
    try:
        return terms.to_limit(measure, source=f"{file} {table}")
    except ValueError as error:
        raise ContractError(f"{where}: {error}") from None


NOT_ACCEPTED = "no run under this contract can be accepted"


def find_gaps(
    contract: Contract, models: Sequence[str] = (), nodes: int | None = None
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield (criteria, sentence) of each term without which no run can be accepted.

    `models` are the GPUs of the cluster, if they are known: they count, and else the ordered ones.
    `nodes` is the number of nodes that the command line orders.
    """
    terms, limited = contract.cluster, contract.limited_names
    terms = terms.model_copy(update={"nodes": nodes or terms.nodes})
    count = 1 if terms.nodes == 1 else MANY_NODES
    judged = {
        name
        for name in judged_names(contract.tier, terms, limited, count)
        if contract.judges(*name.split("."))
    }
    lacking = [
        f"{id}.{name}"
        for id, row in CRITERIA.items()
        for name, measure in row.measures.items()
        if f"{id}.{name}" in judged and not contract.limit(id, name)
        if not (measure.from_run or measure.derived_in_run)
    ]
    if lacking:
        listed, example = ", ".join(lacking), f"[{lacking[0]}]"
        text = f"no limit for {listed}. Add a table for each, such as {example}"
        yield tuple(dict.fromkeys(name.partition(".")[0] for name in lacking)), text
    if "SCALING.mfu" in judged:
        is_agreed = contract.limit("SCALING", "mfu") is not None
        is_mix = isinstance(terms.gpu_model, dict)  # then each model needs a limit of its own
        for named in [[one] for one in terms.models] if is_mix else [models or terms.models]:
            if lacks := lacks_speed_limit(named, is_agreed=is_agreed):
                yield ("SCALING",), lacks
    if terms.nodes is None:
        yield ("HOSTS",), "no number of nodes: write `nodes` in [cluster], or run with --nodes"
    if terms.gpus_per_node is None and contract.judges("HOSTS", "gpus"):
        yield ("HOSTS",), "no number of GPUs per node: write `gpus_per_node` in [cluster]"
    needs_second = terms.fabric not in (None, "rdma") and "FABRIC" not in contract.optional
    if needs_second and not terms.management and count > 1:
        text = "no second interface to self-test FABRIC: write `management` in [cluster]"
        yield ("FABRIC",), text
