"""What NCCL is told on this node: environment, conf files, and what there is to be told about.

Runs inside a Ray worker, so that it sees what a job sees.  Only the standard library.  NCCL reads
its conf files once, in src/misc/param.cc (initEnvFunc): NCCL_CONF_FILE or else ~/.nccl.conf, then
/etc/nccl.conf, each line handed to setenv() that replaces nothing.  So the environment wins over
files, the first file over the second, and the first line over a later one.
"""

from __future__ import annotations

import os
import platform
import pwd
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probes.cluster.node_facts import rdma_ports
from probes.environment.nccl_libraries import libraries
from reports.redact import REDACTED, redact_environment

SYSTEM_CONF = "/etc/nccl.conf"
LONGEST_FILE = 64 * 1024  # bytes
LONGEST_VALUE = 1023  # what NCCL keeps of a name and of a value in a file (src/misc/param.cc)
PREFIXES = ("NCCL_", "TORCH_NCCL_", "GLOO_", "FI_", "UCX_")
NAMES = ("LD_PRELOAD", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")
FILES = ("NCCL_CONF_FILE", "NCCL_TOPO_FILE", "NCCL_GRAPH_FILE")
# A name, a suffix or a path (env.rst, ld.so(8)): only a path can be looked for.
LIBRARIES = (
    "NCCL_NET_PLUGIN",
    "NCCL_TUNER_PLUGIN",
    "NCCL_PROFILER_PLUGIN",
    "NCCL_ENV_PLUGIN",
    "LD_PRELOAD",
)
PRE_SHARED_KEY = "PSK"  # in a name: NCCL_PSK is the key of NCCL's TLS (env.rst)
# Words that are keys by their form, whatever the variable is called.
SECRET_WORD = re.compile(r"\b(?:gh[opsu]_|hf_|sk-|glpat-|xox[abp]-|AKIA|eyJ)[\w.-]{12,}")
CUT_USERINFO = re.compile(r"://[^/\s@]*$")


def settings() -> dict[str, Any]:
    """What this node tells NCCL, with secrets redacted and every value bounded.

    `environment`  {variable: value} as the worker has it
    `files`        {path: {variable: value}} of the conf files, in NCCL's order
    `trouble`      {path: what is wrong with that file}
    `effective`    {variable: {"value", "where"}} as NCCL will see it; `where` is "environment"
                   or a path.  As of NCCL 2.23, which brought NCCL_CONF_FILE
    `missing_files` {variable: [paths that it names and that do not exist]}
    `libraries`    see `probes.environment.nccl_libraries.libraries`
    `interfaces`, `rdma`, `rdma_active`, `gpus`  names of network interfaces, of RDMA devices, of
                   those with an active port, and of GPU models
    `host`         {"name", "boot_id", "network"}: NCCL tells hosts apart by the first two
                   (src/misc/utils.cc, getHostHash), containers on one machine differ in the last
    """
    environment = {_utf8(name): _utf8(value) for name, value in sorted(os.environ.items())}
    told = {_cut(name): value for name, value in environment.items() if _of_interest(name)}
    files, trouble = conf_files(told)
    seen = effective(told, files)
    ports = rdma_ports()
    return {
        "environment": {name: shown(name, value) for name, value in told.items()},
        "files": {
            path: {name: shown(name, value) for name, value in lines.items()}
            for path, lines in files.items()
        },
        "trouble": trouble,
        "effective": {
            name: {"value": shown(name, value), "where": where}
            for name, (value, where) in seen.items()
        },
        "missing_files": missing_files({name: value for name, (value, _) in seen.items()}),
        "libraries": libraries(environment),
        "interfaces": _names("/sys/class/net"),
        "rdma": _names("/sys/class/infiniband"),
        "rdma_active": sorted({port["device"] for port in ports if "ACTIVE" in port["state"]}),
        "gpus": gpu_models(),
        "host": host(),
    }


def parse_conf(text: str) -> dict[str, str]:
    """Variables of a conf file as NCCL reads them: no blank and no quote is taken away.

    A line that begins with # or has no = is skipped; of two lines with one name the first counts.
    """
    found: dict[str, str] = {}
    for line in text.split("\n"):
        name, equals, value = line.partition("=")
        if name and equals and not line.startswith("#"):
            found.setdefault(name[:LONGEST_VALUE], value[:LONGEST_VALUE])
    return found


def conf_files(
    environment: Mapping[str, str],
) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """The conf files that NCCL would read, in its order, and what is wrong with them.

    A file that is not there is no trouble, unless NCCL_CONF_FILE names it: see `missing_files`.
    """
    files: dict[str, dict[str, str]] = {}
    trouble = {}
    for path in conf_paths(environment):
        try:
            text, said = _conf_text(path)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:  # ValueError: a path with a NUL byte
            text, said = "", f"cannot be read: {_reason(error)}"
        files[_cut(path)] = parse_conf(text)
        if said:
            trouble[_cut(path)] = said
    return files, trouble


def conf_paths(environment: Mapping[str, str]) -> list[str]:
    """Paths of the conf files, the strongest first."""
    own = environment.get("NCCL_CONF_FILE") or (home() and f"{home()}/.nccl.conf")
    return [path for path in dict.fromkeys([own, SYSTEM_CONF]) if path]


def home() -> str:
    """The user's folder, of the password file as in NCCL, not of HOME; "" without an entry."""
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return ""


def effective(
    environment: Mapping[str, str], files: Mapping[str, Mapping[str, str]]
) -> dict[str, tuple[str, str]]:
    """variable -> (value, where) as NCCL will see it; see the head of this file for who wins."""
    sources = {"environment": environment, **files}
    found: dict[str, tuple[str, str]] = {}
    for where, variables in sources.items():
        for name, value in variables.items():
            found.setdefault(name, (value, where))
    return found


def missing_files(variables: Mapping[str, str]) -> dict[str, list[str]]:
    """Paths that variables name and that do not exist here."""
    named = {name: [variables.get(name, "")] for name in FILES}
    for name in LIBRARIES:
        words = re.split(r"[\s:,]+", variables.get(name, ""))
        named[name] = [word for word in words if "/" in word]
    gone = {
        name: [shown(name, path) for path in paths if path and not _exists(path)]
        for name, paths in named.items()
    }
    return {name: paths for name, paths in gone.items() if paths}


def shown(name: str, value: str) -> str:
    """`value` as it may be kept and shown: bounded, and without keys, tokens and passwords."""
    if PRE_SHARED_KEY in name and value:
        return REDACTED
    if len(value) > LONGEST_VALUE:
        # A URL that is cut before its @ would keep the password that redaction looks for.
        value = CUT_USERINFO.sub("://...", value[:LONGEST_VALUE]) + "..."
    return SECRET_WORD.sub(REDACTED, redact_environment({name: value})[name])


def gpu_models() -> list[str]:
    """Names of the GPUs' models, each once, from the driver's own files; empty without it."""
    files = Path("/proc/driver/nvidia/gpus").glob("*/information")
    found = {re.search(r"^Model:\s*(.+?)\s*$", _read(file), re.MULTILINE) for file in files}
    return sorted({model[1] for model in found if model})


def host() -> dict[str, str]:
    """What NCCL tells hosts apart by, and the network namespace; "" where there is none."""
    try:
        network = os.readlink("/proc/self/ns/net")
    except OSError:
        network = ""
    boot_id = _read(Path("/proc/sys/kernel/random/boot_id")).strip()
    return {"name": platform.node(), "boot_id": boot_id, "network": network}


def _of_interest(name: str) -> bool:
    return name.startswith(PREFIXES) or name in NAMES


def _conf_text(path: str) -> tuple[str, str]:
    """Text of a conf file and what is wrong with it, "" when all is well; OSError if unreadable.

    It is looked at before it is opened: a pipe in its place would make a reader wait for ever.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        return "", "is not a regular file"
    with open(path, "rb") as file:
        content = file.read(LONGEST_FILE + 1)
    if b"\0" in content:
        return "", "holds NUL bytes: it is no text"
    text = content[:LONGEST_FILE].decode("utf-8", "replace")
    if len(content) > LONGEST_FILE:
        return text, f"is longer than {LONGEST_FILE // 1024} KiB: the rest was not looked at"
    return text, "is not UTF-8" if "\ufffd" in text else ""


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _exists(path: str) -> bool:
    try:
        return os.path.exists(path)
    except ValueError:  # a NUL byte
        return False


def _utf8(value: str) -> str:
    """Environment values may hold any bytes; what is not UTF-8 is replaced."""
    return os.fsencode(value).decode("utf-8", "replace")


def _cut(name: str) -> str:
    return name[:LONGEST_VALUE]


def _names(folder: str) -> list[str]:
    """Names of the devices in a folder of sysfs; plain files there are switches, not devices."""
    return sorted(path.name for path in Path(folder).glob("*") if path.is_dir())


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
