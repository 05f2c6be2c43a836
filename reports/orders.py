"""Fills in the orders of a finding: which command, on which machine, for whom."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any, NamedTuple

from reports.record import Finding, ProbeResult, RepairStep, RunRecord, node_facts
from reports.redact import redact_text
from reports.sanitize import known_address, one_line

PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
HOST = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?"  # DNS: 253 letters
NUMBER = r"[0-9]{1,9}"
PATH = r"/[A-Za-z0-9._/@+=,:-]{0,254}"
WORD = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
PORTS = range(1, 2**16)  # of TCP and UDP


def _is_address(text: str) -> bool:
    return "%" not in text and known_address(text) is not None


def _matches(pattern: str) -> Callable[[str], bool]:
    compiled = re.compile(pattern)
    return lambda text: compiled.fullmatch(text) is not None


# Kinds of placeholders, and which names are plain enough for a command.
KINDS: dict[str, Callable[[str], bool]] = {
    **dict.fromkeys(("node", "peer", "host"), _matches(HOST)),
    **dict.fromkeys(("address", "head_address", "peer_address", "ray_address"), _is_address),
    "interface": _matches(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,14}"),  # IFNAMSIZ: 15 letters
    "device": _matches(r"[a-z][a-z0-9_]{0,63}"),  # of RDMA, as mlx5_0
    "gpu": _matches(rf"(?:GPU|MIG)-[0-9A-Fa-f-]{{4,64}}|{NUMBER}"),
    "slot": _matches(r"(?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]"),
    "port": lambda text: bool(re.fullmatch("[0-9]{1,5}", text)) and int(text) in PORTS,
    **dict.fromkeys(("folder", "file"), _matches(PATH)),
    "target": _matches(rf"(?:https?://)?{HOST}(?::[0-9]{{1,5}})?(?:{PATH})?"),
    "variable": _matches(r"[A-Za-z][A-Za-z0-9_]{0,63}"),
    **dict.fromkeys(("package", "job"), _matches(WORD)),
    # The payload is that of a ping, in bytes.
    **dict.fromkeys(("rank", "pid", "payload", "step"), _matches(NUMBER)),
}
LIST_KIND = "nodes"  # all suspects that are nodes: for texts alone


def in_capitals(text: str) -> str:
    """Write every placeholder in capitals, as a man page does."""
    return PLACEHOLDER.sub(lambda match: match[1].upper(), text)


Facts = Mapping[str, Any]
WORDS = re.compile(r"""(?:[^\s'"]|'[^']*'|"[^"]*")+""")
JOINT = " \\"  # a shell reads on in the next line
ON_NODE = re.compile(r".+ on (\S+)$")  # a rank, rail, port or device that names its node
# Suspects of other kinds: devices of RDMA are no nodes either.
NO_NODE = re.compile(r"(?:rank|process|job|gang) |task:|mlx|the |a node that |Ray's head$")
MAX_SHOWN = 80  # letters of a name in a text: longer names hide the rest of the sentence
MAX_LISTED = 4  # nodes named in one order


class FilledFinding(NamedTuple):
    """What to do in this case: names are filled in, unknown ones stand in capitals."""

    order: str
    steps: list[RepairStep]
    mended: str


def fill(finding: Finding, cluster: Facts) -> FilledFinding:
    """Fill in the names of a finding, else what the record's facts of the cluster hold."""
    names = _Names(finding, cluster)
    steps = [names.step(step) for step in finding.steps]
    return FilledFinding(names.text(finding.order), steps, names.text(finding.mended))


PLAIN_FOLDER = re.compile(r"[A-Za-z0-9._/+-]{1,100}")
VALUE = r"(?:=| +)('[^']*'|\"[^\"]*\"|\S+)"  # of an option in a command
RUN_DIR = re.compile(f" --run-dir{VALUE}")
BASELINE = re.compile(f" --baseline{VALUE}")
PART = re.compile(f" (?:--only|-k|--tier){VALUE}")
CONTRACT = re.compile(f" --contract{VALUE}")
OF_HEAD = re.compile(f" --(?:contract|nonce){VALUE}")  # of a submission: a path there, and its id
# How the commands of a part of an earlier run, and of one result, begin.
AGAIN = re.compile("(?:python -m )?seatrial again ")
ONE_TEST = re.compile(r"^pytest (?:'[^']*'|\S+)")


def again_command(record: RunRecord, shown: Finding | ProbeResult) -> str:
    """Return the command that tests the criterion of a finding or result again; "" for none.

    A command that a finding alone has stays, as does that of a probe of somebody else's.
    """
    of = [one for one in record.results if one.reproduce == shown.reproduce]
    known = {criterion.id for criterion in record.contract.criteria}
    if not shown.reproduce or not of or of[0].criterion not in known:
        return redact_text(shown.reproduce)
    if record.submission:  # `again` needs Ray
        return f"{whole_command(record)} --only {of[0].criterion}"
    return f"seatrial again {of[0].criterion} --run {run_argument(record)}"


def _typed(record: RunRecord) -> str:
    """Return the command as its user typed it: that of a submitted run was written for the head."""
    _, given, options = record.command.partition(" run --cluster=auto")
    if not (record.submission and given):
        return record.command
    contract = " --contract CONTRACT" * bool(CONTRACT.search(options))
    own = BASELINE.sub(" --baseline BASELINE", OF_HEAD.sub("", options.partition(" -- ")[0]))
    return f"seatrial submit --address ADDRESS{contract}{own}"


def same_command(record: RunRecord) -> str:
    """Return the command that starts a run like this one, in a new folder of its own."""
    return redact_text(RUN_DIR.sub("", _typed(record)))


def whole_command(record: RunRecord) -> str:
    """Return the command of a complete run with the options of this run."""
    command = _typed(record)
    if AGAIN.match(command):  # its results know the options of the earlier run
        of_result = next((one.reproduce for one in record.results if one.reproduce), "")
        command = ONE_TEST.sub("seatrial run", of_result) or command
    return redact_text(PART.sub("", RUN_DIR.sub("", command)))


def run_argument(record: RunRecord) -> str:
    """Return the run's folder as a command names it; RUN where its name is not plain."""
    named = RUN_DIR.search(record.command)
    return _plain_folder(named[1] if named else f"runs/{record.id}") or "RUN"


def baseline_argument(record: RunRecord) -> str:
    """Return the folder of the baseline run; BASELINE where it is not known, or not plain."""
    named = BASELINE.search(record.command)
    if not named:
        return "BASELINE"
    folder, id = named[1].strip("'\"").rstrip("/"), record.baseline
    of_runs = f"{folder}/{id}"  # the option can name a folder of runs
    return _plain_folder(folder if PurePath(folder).name == id else of_runs) or "BASELINE"


def _plain_folder(name: str) -> str:
    """Return a folder's name without quotes and secrets; "" where a shell would need quotes."""
    folder = redact_text(name.strip("'\""))
    return folder if PLAIN_FOLDER.fullmatch(folder) else ""


def node_suspects(suspects: Iterable[str]) -> list[str]:
    """List the suspects that are nodes: no ranks, jobs or devices."""
    named = (match[1] if (match := ON_NODE.match(name)) else name for name in suspects)
    return list(dict.fromkeys(name for name in named if not NO_NODE.match(name)))


def break_command(command: str, columns: int) -> list[str]:
    """Break a command so that it can still be pasted: at spaces, never inside quotes."""
    lines: list[str] = []
    for word in WORDS.findall(command):
        if lines and len(lines[-1]) + len(word) + len(JOINT) < columns:
            lines[-1] += f" {word}"
        else:
            lines.append(f"  {word}" if lines else word)
    return [line + JOINT for line in lines[:-1]] + lines[-1:]


class _Names:
    """Names of one finding: those that it has, and those of its nodes in the facts."""

    def __init__(self, finding: Finding, cluster: Facts) -> None:
        self._suspects = node_suspects(finding.suspects)
        self._known = {kind: name for kind, name in finding.names.items() if kind in KINDS}
        for kind, name in _read_facts(self._known, cluster):
            self._known.setdefault(kind, name)

    def text(self, template: str) -> str:
        """Fill a text: names are cleaned, and cut if they are long.  In backquotes is a command."""
        parts = one_line(template).split("`")
        parts[::2] = [PLACEHOLDER.sub(lambda match: self._shown(match[1]), p) for p in parts[::2]]
        parts[1::2] = map(self.command, parts[1::2])
        return "`".join(parts)

    def command(self, template: str) -> str:
        """Fill a command: a name that is not plain leaves its placeholder in capitals."""
        return PLACEHOLDER.sub(lambda match: self._plain(match[1]), one_line(template))

    def step(self, step: RepairStep) -> RepairStep:
        """Fill a step: its command, what its answers mean, and its place."""
        command, means, on = self.command(step.command), self.text(step.means), self.text(step.on)
        return RepairStep(command=command, means=means, on=on)

    def _plain(self, kind: str) -> str:
        name = self._known.get(kind, "")
        return name if name and KINDS[kind](name) else kind.upper()

    def _shown(self, kind: str) -> str:
        if kind != LIST_KIND:
            return _shorten(self._known.get(kind, "")) or kind.upper()
        listed = [_shorten(name) or "NODE" for name in self._suspects[:MAX_LISTED]]
        more = len(self._suspects) - len(listed)
        return ", ".join(listed or [self._shown("node")]) + (f" and {more} more" if more else "")


def _shorten(name: str) -> str:
    shown = one_line(redact_text(name)).replace("`", "'")  # backquotes mark commands
    return shown if len(shown) <= MAX_SHOWN else f"{shown[: MAX_SHOWN - 3]}..."


def _read_facts(known: Facts, cluster: Facts) -> Iterator[tuple[str, str]]:
    """Read the names of the finding's node, of its peer, and of the contract's terms."""
    terms = as_table(cluster.get("terms"))
    node, peer = (_node_facts(cluster, known.get(kind)) for kind in ("node", "peer"))
    of_device = _rdma_port(node, "device", known.get("device")).get("netdev")
    interface = str(known.get("interface") or of_device or terms.get("fabric"))
    values = {
        "interface": interface if interface in as_table(node.get("interfaces")) else None,
        "address": _address(node, interface),
        "peer_address": _address(peer, interface),
        "ray_address": node.get("address"),
        "device": _rdma_port(node, "netdev", interface).get("device"),
        "slot": _slot(node, known.get("gpu")),
        "folder": terms.get("shared"),
    }
    yield from ((kind, name) for kind, name in values.items() if isinstance(name, str) and name)


def as_table(value: Any) -> Facts:
    """Return a table of a record as it is; {} for what is none."""
    return value if isinstance(value, Mapping) else {}


def _entries(value: Any) -> Iterator[Facts]:
    return (one for one in (value if isinstance(value, list) else []) if isinstance(one, Mapping))


def _node_facts(cluster: Facts, name: str | None) -> Facts:
    return next((one for one in node_facts(cluster) if name == one.get("name")), {})


def _address(node: Facts, interface: str) -> Any:
    """Find the node's address on this interface; without one, its address in Ray."""
    of_interface = as_table(as_table(node.get("interfaces")).get(interface))
    return of_interface.get("address") or node.get("address")


def _rdma_port(node: Facts, key: str, name: str | None) -> Facts:
    """Find the RDMA port whose `device` or `netdev` has this name; {} without one."""
    return next((one for one in _entries(node.get("rdma")) if name and one.get(key) == name), {})


def _slot(node: Facts, gpu: str | None) -> Any:
    """Find the slot of the GPU that is named by its UUID or its number."""
    boards = _entries(as_table(node.get("gpu_health")).get("boards"))
    named = (one for one in boards if gpu and gpu in (one.get("uuid"), str(one.get("index"))))
    return next((one.get("slot") for one in named), None)
