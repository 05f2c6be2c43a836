"""Collects the names in a record: node facts, series, subjects, suspects, commands."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from reports.record import RunRecord, node_facts
from reports.share.aliases import MAX_WORD, PUBLIC_USERS, USER, Aliases, is_identifier, shorten

# Keys of facts, by the kind of their values.
HOST_KEYS = {"name", "host", "hostname", "node_name", "nodename", "head"}
HOST_KEYS |= {"master_addr", "nccl_hostid"}
NODE_KEYS = {"node", "peer"}  # an id of Ray, or a name
ID_KEYS = NODE_KEYS | {"node_id", "boot_id", "machine_id", "serial"}
ID_KEYS |= {"guid", "node_guid", "gid", "lid"}
GPU_KEYS = {"uuid", "gpu_uuid", "gpu_serial"}
USER_KEYS = {"user", "username", "logname", "login", "owner", "account"}
PATH_KEYS = {"shared", "shards", "home", "pwd", "folder", "mount", "run_dir", "cwd"}
HOME = re.compile(r"(?:/home|/Users)/([A-Za-z_][\w.-]*)|~([A-Za-z_][\w.-]*)/")
PATH_WITH_BLANK = re.compile(r"[/~](?=\S* \S)(?:(?! -)[^\n])+")  # and no command
ADDRESS = re.compile(r"(?:^|_)(?:address|addr|ip|ips)$")
# Names that people gave to jobs and what runs them, as keys of facts and variables have them.
GIVEN = re.compile(
    r"(?:^|_)(?:(?P<pod>pod(?:_?name)?)|(?P<partition>partition)|(?P<account>account|qos|reservation)"
    r"|(?P<namespace>namespace)|(?P<cluster>cluster_?name)|(?P<job>job(?:_?name)?|queue|project))$"
)
SERIAL = re.compile(r"(?:^|_)(?:serial(?:_?(?:number|no))?|sn|(?:asset|service|chassis)_?tag)$")
JOB_ID = re.compile(r"(?:^|_)job_?id$")
NAME_KEYS = HOST_KEYS | ID_KEYS | GPU_KEYS | USER_KEYS | {"nodes", "capacity", "address"}
OUR_CLUSTERS = {"local", "silent", "unjoined"}  # cluster names that the suite gave
AUTO_ID = re.compile(r"\d{4}-\d\d-\d\dT\d{6}Z")  # start of a run folder's name (see store.py)
OPTION = re.compile(r"--(cluster|run-dir|contract|address)[ =](['\"]?)([^\s'\"]+)\2")
# `SLURM_JOB_NAME='falcon 7b'`, `--partition acme_h100`, `namespace: falcon-ns`.
ASSIGNED = re.compile(
    r"(?<![A-Za-z0-9_])(?P<option>--)?(?P<key>[A-Za-z][A-Za-z_-]{2,40})(?(option)[ =]|(?:=|: ?))"
    r"(?:(?P<quote>['\"])(?P<quoted>[^'\"\n]{1,100})(?P=quote)|(?P<word>\w[\w.-]*\w))"
)
MAX_GIVEN = 200  # characters of such a name; a longer one is a text, which has names in it
GIVEN_WORD = re.compile(r"[A-Za-z].*[\d._-]|\d.*[A-Za-z]")  # no word of a sentence
SERIAL_TEXT = re.compile(
    r"\b(?:serial(?: ?(?:number|no\.?))?|s/n)[ :=#]{1,3}(?=[A-Z-]*\d)([A-Z0-9][A-Z0-9-]{5,40})\b",
    re.IGNORECASE,
)
# Fields of the subject of a certificate (RFC 4514); DC and C alone name nobody.
SUBJECT = re.compile(
    r"(?<![A-Za-z])(?:CN|OU?|DC|UID|emailAddress)=([\w.@*-]+(?: [A-Z][\w.-]*){0,3})"
)
HOST = r"[A-Za-z0-9][A-Za-z0-9.-]*"
# The parts of a subject or suspect: `gpu-01`, `gpu-01/mlx5_0`, `gpu-01 alone`, `rank 0 (gpu-01)`.
PART = re.compile(rf"({HOST})(?:[/:].*| alone| [A-Za-z]+\d*_\d\S*)?|.*\(({HOST})\).*")


def collect_names(record: RunRecord, texts: Iterable[str], own_words: Iterable[str]) -> Aliases:
    """Make the alias table of a record: first its nodes in their order, then all other names."""
    all_texts = list(texts)
    taken = re.findall("[a-z0-9]+", "\n".join(all_texts).lower())
    aliases = Aliases(taken, {*own_words, *(word.lower() for word in _devices(record.cluster))})
    _add_nodes(aliases, _nodes(record.cluster))
    _add_facts(aliases, record.cluster)
    _add_cluster(aliases, record)
    if record.contract.agreed:
        _add_given(aliases, "contract", record.contract.name)
    for result in record.results:
        _add_places(aliases, result.series)
        for finding in result.findings:
            _add_facts(aliases, finding.names)
            for suspect in finding.suspects:
                _add_parts(aliases, shorten(suspect), is_suspect=True)
        for measurement in result.measurements:
            _add_parts(aliases, shorten(measurement.subject), is_suspect=False)
    for waiver in record.contract.waivers:
        aliases.of("user", waiver.name)
    for text in all_texts:
        _add_words(aliases, text)
    return aliases


def _nodes(cluster: Mapping[str, Any]) -> list[Any]:
    nodes = cluster.get("nodes")
    return nodes if isinstance(nodes, list) else []


def _devices(cluster: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is equal on all machines of one kind: interfaces, ports, words of models."""
    for facts in node_facts(cluster):
        yield from map(str, facts.get("interfaces") or ())
        for port in facts.get("rdma") or ():
            yield str(port.get("device")) if isinstance(port, Mapping) else ""
        gpus = facts.get("gpus")
        for gpu in gpus if isinstance(gpus, list) else ():
            model = gpu.get("model") or gpu.get("name") if isinstance(gpu, Mapping) else gpu
            yield from re.split(r"[^\w.-]+", str(model))


def _add_nodes(aliases: Aliases, nodes: list[Any]) -> None:
    """Give all names of a node one alias; a name that several nodes share has its own."""
    names = [_node_names(node) for node in nodes]
    uses = Counter(name.lower() for of_node in names for name in of_node)
    for first, *others in filter(None, names):
        alias = aliases.host(first)
        # The form that names of evidence files contain.
        safe = re.sub(r"[^a-z0-9._-]+", "-", first.lower()).strip("-.")
        for other in filter(None, [safe, *others]):
            if uses[other.lower()] < 2:
                aliases.known.setdefault(other.lower(), alias)
            aliases.host(other)


def _node_names(node: Any) -> list[str]:
    """List the names of a node, each once."""
    facts = node if isinstance(node, Mapping) else {"name": node}
    names = (str(facts.get(key) or "") for key in ("name", "host", "hostname"))
    return list({name.lower(): name for name in names if name.strip()}.values())


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and len(value) <= MAX_WORD


def _add_given(aliases: Aliases, kind: str, name: str) -> None:
    """Add a name that a person gave, unless it is a word of the suite."""
    if _is_name(name) and len(name) <= MAX_GIVEN and not aliases.is_plain(name):
        aliases.of(kind, name)


def _add_facts(aliases: Aliases, value: Any, key: str = "") -> None:
    """Add the values whose key shows their kind: host, id, GPU, user, path, address or job."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            _add_facts(aliases, item, str(name).lower())
    elif isinstance(value, list):
        for item in value:
            _add_facts(aliases, item, key)
    elif _is_name(value):
        _add_fact(aliases, value, key)


def _add_fact(aliases: Aliases, value: str, key: str) -> None:
    if key in GPU_KEYS or key in ID_KEYS:
        is_host = key in NODE_KEYS and not re.fullmatch("[0-9a-fA-F]{16,}", value)
        kind = "gpu" if key in GPU_KEYS else "id"
        _ = aliases.host(value) if is_host else aliases.of(kind, value)
    elif key in USER_KEYS and value.lower() not in PUBLIC_USERS:
        aliases.of("user", value)
    elif (key in PATH_KEYS or PATH_WITH_BLANK.fullmatch(value)) and value.startswith(("/", "~")):
        if len(value) > 1:
            aliases.of("path", value.rstrip("/"))
    elif SERIAL.search(key):
        _add_given(aliases, "id", value)
    elif given := GIVEN.search(key):
        _add_given(aliases, str(given.lastgroup), value)
    elif ADDRESS.search(key):
        _add_address(aliases, value)
    elif key in HOST_KEYS - {"name"}:
        aliases.host(value)


def _add_address(aliases: Aliases, value: str) -> None:
    """Add the host of `ray://host:10001`; a numeric address is found by its shape instead."""
    match = re.fullmatch(rf"(?:\w+://)?({HOST})(?::\d+)?(?:/.*)?", value)
    if match and re.search("[A-Za-z]", match[1]) and match[1] not in ("auto", "local", "localhost"):
        aliases.host(match[1])


def _add_cluster(aliases: Aliases, record: RunRecord) -> None:
    """Add the cluster, often named like its head node, the run folder, and the baseline."""
    name = record.cluster.get("name")
    if isinstance(name, str) and _is_name(name) and name not in OUR_CLUSTERS:
        aliases.of("cluster", name)
    run, stamp = aliases.of("run", record.id), AUTO_ID.match(record.id)
    if stamp:
        aliases.known[record.id.lower()] = f"{stamp[0]}-{run}"
    for id in filter(None, [record.baseline, *(one.run for one in record.baseline_values)]):
        aliases.of("run", id)


def _add_places(aliases: Aliases, value: Any, key: str = "") -> None:
    """Add the nodes in series: names in a list `nodes`, keys of `nodes` and `capacity`."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            if key in ("nodes", "capacity") and _is_name(name):
                aliases.host(name)
            _add_places(aliases, item, str(name))
    elif isinstance(value, list):
        for item in value:
            if key == "nodes" and isinstance(item, str) and _is_name(item):
                aliases.host(item)
            _add_places(aliases, item)


def _add_parts(aliases: Aliases, text: str, is_suspect: bool) -> None:
    """Add the hosts, or the path, in a subject or suspect."""
    if text.startswith("/") and len(text) > 1:
        aliases.of("path", text)
        return
    for part in re.split(r"\s*(?:<?->|,)\s*|\s+-\s+", text):
        match = None if is_identifier(part.strip()) else PART.fullmatch(part.strip())
        name = (match[1] or match[2]).strip(".-") if match else ""
        if re.search("[A-Za-z]", name) and not _is_ours(aliases, name, is_suspect):
            aliases.host(name)


def _is_ours(aliases: Aliases, name: str, is_suspect: bool) -> bool:
    """Return whether a word of a subject or suspect is no host: `sampling`, `rank3`."""
    if aliases.is_plain(name) or re.fullmatch(r"(?i:rank|step)\d+", name):
        return True
    words = re.split("[.-]+", name)
    may_be_ours = not is_suspect and all(map(str.isalpha, words))
    return may_be_ours and (len(words) == 1 or all(map(aliases.is_plain, words)))


def _add_words(aliases: Aliases, text: str) -> None:
    """Add names found in a text: users of home folders and before @, values of options."""
    users = [user for match in HOME.finditer(text) for user in match.groups() if user]
    users += [match[1] for match in USER.finditer(text)]
    for user in users:
        if user.lower() not in PUBLIC_USERS:
            aliases.of("user", user)
    for option, _, value in OPTION.findall(text):
        if option in ("cluster", "address"):
            _add_address(aliases, value.partition(":")[0] if value.startswith("local") else value)
        elif "/" in value:
            aliases.of("path", value)
        elif option == "contract":
            _add_given(aliases, "contract", value.removesuffix(".toml"))
    for match in ASSIGNED.finditer(text):
        _add_assigned(aliases, match)
    for serial in SERIAL_TEXT.findall(text):
        _add_given(aliases, "id", serial)
    for name in SUBJECT.findall(text) if "CN=" in text else ():
        _add_given(aliases, "name", name)


def _add_assigned(aliases: Aliases, match: re.Match[str]) -> None:
    """Add the value of a variable, an option, or a field that names a job or what runs it."""
    given = GIVEN.search(match["key"].lower().replace("-", "_"))
    name = match["quoted"] or match["word"]
    if given and (match["key"].isupper() or GIVEN_WORD.search(name)):  # a variable, or no word
        _add_given(aliases, str(given.lastgroup), name)
