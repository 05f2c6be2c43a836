"""Reads what configures NCCL on this node: environment, conf files, libraries and devices.

Runs inside a Ray worker, so that it sees what a job sees.  Uses only the standard library.  NCCL
reads its conf files once, in src/misc/param.cc (initEnvFunc): NCCL_CONF_FILE or else ~/.nccl.conf,
then /etc/nccl.conf.  It passes each line to setenv() without overwriting.  So the environment wins
over files, the first file over the second, and the first line over a later one.

`read_settings` returns these keys.  A variable that is not known has the value "set"; secrets are
redacted, and every value is truncated:

`environment`  {variable: value} as the worker has it
`files`        {path: {variable: value}} of the conf files, in NCCL's order
`trouble`      {path: what is wrong with that file}
`effective`    {variable: {"value", "where"}} as NCCL reads it; `where` is "environment" or a
               path.  Valid since NCCL 2.23, which introduced NCCL_CONF_FILE
`missing_files` {variable: [paths that it names and that do not exist]}
`libraries`    see `probes.environment.collect.find_libraries`
`interfaces`, `rdma`, `rdma_active`, `gpus`  names of network interfaces, of RDMA devices, of
               those with an active port, and of GPU models
`host`         {"name", "boot_id", "network"}: NCCL identifies hosts by the first two
               (src/misc/utils.cc, getHostHash); containers on one machine differ in the last
"""

from __future__ import annotations

import os
import platform
import pwd
import re
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from probes.cluster.node_facts import rdma_ports
from probes.cluster.system_facts import BOOT_ID, read_text
from probes.cluster.variables import withhold_all
from reports.redact import redact

LIBRARY_FILE = re.compile(r"libnccl\.so(?:\.\d+)*$")
VERSIONED_FILE = re.compile(r"libnccl\.so\.(\d+\.\d+\.\d+)$")
# The banner of src/init.cc; in the wheel of 2.27.5 it is at 1.7 MiB of 410 MiB.
BANNER = re.compile(rb"NCCL version (\d+\.\d+\.\d+)\+cuda")
CHUNK_BYTES = 4 * 2**20  # bytes read at once: files have hundreds of MiB
MAX_READ_BYTES = 64 * 2**20  # bytes searched: far more than the banner's position
MAX_FOLDERS = 256  # that are searched of one search path
SYSTEM_FOLDERS = (
    "/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu", "/usr/local/lib", "/usr/local/cuda/lib64",
)  # fmt: skip


def find_libraries(environment: Mapping[str, str]) -> list[dict[str, str]]:
    """Find each libnccl file once: real `path`, `version` ("" if unknown), and how it was `found`.

    `found` is "mapped", "LD_PRELOAD", "torch", "LD_LIBRARY_PATH" or "loader", in the order in which
    the loader would use them.  torch's wheels have an RPATH, which the loader tries before
    LD_LIBRARY_PATH (ld.so(8)).  So the first entry is the most likely.
    """
    by_path: dict[str, dict[str, str]] = {}
    for source, path in _candidate_paths(environment):
        real = os.path.realpath(path)
        if real not in by_path and os.path.isfile(real):
            by_path[real] = {"path": real, "version": version_of(real), "found": source}
    return list(by_path.values())


def _candidate_paths(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for path in mapped_paths(read_text(Path("/proc/self/maps"))):
        yield "mapped", path
    for path in re.split(r"[\s:]+", environment.get("LD_PRELOAD", "")):
        if LIBRARY_FILE.search(path):
            yield "LD_PRELOAD", path
    wheels = [os.path.join(folder, "nvidia", "nccl", "lib") for folder in sys.path]
    env_dirs = re.split("[:;]", environment.get("LD_LIBRARY_PATH", ""))
    sys_dirs = [os.path.join(sys.prefix, "lib"), *SYSTEM_FOLDERS, *_loader_folders()]
    for source, folders in (("torch", wheels), ("LD_LIBRARY_PATH", env_dirs), ("loader", sys_dirs)):
        for folder in [f for f in folders if f][:MAX_FOLDERS]:
            # The loader searches only the soname; libnccl.so is for code that calls dlopen itself.
            yield source, os.path.join(folder, "libnccl.so.2")
            yield source, os.path.join(folder, "libnccl.so")


def mapped_paths(maps: str) -> list[str]:
    """Return the paths of libnccl in a text of the form of /proc/PID/maps, each once."""
    paths = [line.split(maxsplit=5)[5] for line in maps.splitlines() if line.count("/")]
    paths = [path.removesuffix(" (deleted)") for path in paths]
    return list(dict.fromkeys(path for path in paths if LIBRARY_FILE.search(path)))


def version_of(path: str) -> str:
    """Read the version ("2.28.9") from the file name, else from a banner in the first 64 MiB."""
    if match := VERSIONED_FILE.search(path):
        return match[1]
    with suppress(OSError), open(path, "rb") as file:
        return _read_banner(iter(lambda: file.read(CHUNK_BYTES), b""))
    return ""


def _read_banner(chunks: Iterator[bytes]) -> str:
    tail = b""
    for count, chunk in enumerate(chunks, 1):
        if match := BANNER.search(tail + chunk):
            return match[1].decode()
        if count * CHUNK_BYTES >= MAX_READ_BYTES:
            break
        tail = chunk[-64:]  # the banner may span two chunks
    return ""


def _loader_folders() -> list[str]:
    """Return the folders named in /etc/ld.so.conf.d, where CUDA's packages put theirs."""
    texts = (read_text(path) for path in sorted(Path("/etc/ld.so.conf.d").glob("*.conf")))
    lines = (line.strip() for text in texts for line in text.splitlines())
    return [line for line in lines if line.startswith("/")]


SYSTEM_CONF = "/etc/nccl.conf"
MAX_FILE_BYTES = 64 * 1024  # bytes read of one conf file
MAX_VALUE_LENGTH = 1023  # characters NCCL keeps of a name or value in a file (src/misc/param.cc)
PREFIXES = ("NCCL_", "TORCH_NCCL_", "GLOO_", "FI_", "UCX_")
EXACT_NAMES = ("LD_PRELOAD", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING")
FILE_VARIABLES = ("NCCL_CONF_FILE", "NCCL_TOPO_FILE", "NCCL_GRAPH_FILE")
# Values are names, suffixes or paths (env.rst, ld.so(8)): only a path can be checked.
LIBRARY_VARIABLES = (
    "NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN", "NCCL_ENV_PLUGIN", "LD_PRELOAD",
)  # fmt: skip


def read_settings() -> dict[str, Any]:
    """Read the NCCL settings of this node; the docstring of this file lists the keys."""
    environment = {_to_utf8(name): _to_utf8(value) for name, value in sorted(os.environ.items())}
    relevant = {_truncate(name): value for name, value in environment.items() if _is_relevant(name)}
    files, problems = read_nccl_conf_files(relevant)
    values = effective_values(relevant, files)
    plain = {name: value for name, (value, _) in values.items()}
    shown = _redact_secret_values(plain)
    active = {port["device"] for port in rdma_ports() if "ACTIVE" in port["state"]}
    return {
        "environment": _redact_secret_values(relevant),
        "files": {path: _redact_secret_values(lines) for path, lines in files.items()},
        "trouble": problems,
        "effective": {name: {"value": shown[name], "where": values[name][1]} for name in values},
        "missing_files": missing_files(plain),
        "libraries": find_libraries(environment),
        "interfaces": _device_names("/sys/class/net"),
        "rdma": _device_names("/sys/class/infiniband"),
        "rdma_active": sorted(active),
        "gpus": gpu_models(),
        "host": host_identity(),
    }


def parse_conf(text: str) -> dict[str, str]:
    """Parse the variables of a conf file as NCCL does: blanks and quotes are kept.

    Lines that begin with # or have no = are skipped.  The first line with a name counts.
    """
    variables: dict[str, str] = {}
    for line in text.split("\n"):
        name, equals, value = line.partition("=")
        if name and equals and not line.startswith("#"):
            variables.setdefault(name[:MAX_VALUE_LENGTH], value[:MAX_VALUE_LENGTH])
    return variables


def read_nccl_conf_files(
    environment: Mapping[str, str],
) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Read the conf files in NCCL's order; return their variables and their problems by path.

    A file that does not exist is no problem, unless NCCL_CONF_FILE names it: see `missing_files`.
    """
    files: dict[str, dict[str, str]] = {}
    problems = {}
    for path in conf_paths(environment):
        try:
            text, problem = _read_conf(path)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:  # ValueError: a path with a NUL byte
            text, problem = "", f"cannot be read: {_error_text(error)}"
        files[_truncate(path)] = parse_conf(text)
        if problem:
            problems[_truncate(path)] = problem
    return files, problems


def conf_paths(environment: Mapping[str, str]) -> list[str]:
    """Return the paths of the conf files, highest priority first."""
    user_path = environment.get("NCCL_CONF_FILE") or (home_dir() and f"{home_dir()}/.nccl.conf")
    return [path for path in dict.fromkeys([user_path, SYSTEM_CONF]) if path]


def home_dir() -> str:
    """Return the home folder from the password file, as NCCL does, not from HOME; "" if none."""
    with suppress(KeyError):
        return pwd.getpwuid(os.getuid()).pw_dir
    return ""


def effective_values(
    environment: Mapping[str, str], files: Mapping[str, Mapping[str, str]]
) -> dict[str, tuple[str, str]]:
    """Return variable -> (value, where) as NCCL reads it; this file's docstring has the order."""
    values: dict[str, tuple[str, str]] = {}
    for where, variables in {"environment": environment, **files}.items():
        for name, value in variables.items():
            values.setdefault(name, (value, where))
    return values


def missing_files(variables: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the paths that variables name and that do not exist here, by variable."""
    named = {name: [variables.get(name, "")] for name in FILE_VARIABLES}
    for name in LIBRARY_VARIABLES:
        parts = re.split(r"[\s:,]+", variables.get(name, ""))
        named[name] = [part for part in parts if "/" in part]
    missing = {
        name: [redact_value(name, path) for path in paths if path and not os.path.exists(path)]
        for name, paths in named.items()
    }
    return {name: paths for name, paths in missing.items() if paths}


def redact_value(name: str, value: str) -> str:
    """Redact keys, tokens and passwords in `value`, then truncate it."""
    shown = str(redact(value, name))  # before truncation: in half a URL a password is not found
    return shown if len(shown) <= MAX_VALUE_LENGTH else shown[:MAX_VALUE_LENGTH] + "..."


def _redact_secret_values(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: redact_value(name, value) for name, value in withhold_all(variables).items()}


def gpu_models() -> list[str]:
    """Return the GPU models, each once, from the driver's own files; empty without a driver."""
    files = Path("/proc/driver/nvidia/gpus").glob("*/information")
    matches = {re.search(r"^Model:\s*(.+?)\s*$", read_text(file), re.MULTILINE) for file in files}
    return sorted({match[1] for match in matches if match})


def host_identity() -> dict[str, str]:
    """Return what NCCL identifies a host by, and the network namespace; "" where unknown."""
    network = ""
    with suppress(OSError):
        network = os.readlink("/proc/self/ns/net")
    return {"name": platform.node(), "boot_id": read_text(Path(BOOT_ID)), "network": network}


def _is_relevant(name: str) -> bool:
    return name.startswith(PREFIXES) or name in EXACT_NAMES


def _read_conf(path: str) -> tuple[str, str]:
    """Read a conf file; return its text, and its problem or "".  Raises OSError if unreadable.

    The file type is checked before it is opened: a read from a pipe could block for ever.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        return "", "is not a regular file"
    with open(path, "rb") as file:
        content = file.read(MAX_FILE_BYTES + 1)
    if b"\0" in content:
        return "", "contains NUL bytes, so it is not text"
    text = content[:MAX_FILE_BYTES].decode("utf-8", "replace")
    if len(content) > MAX_FILE_BYTES:
        return text, f"is longer than {MAX_FILE_BYTES // 1024} KiB, and the rest was not read"
    return text, "is not UTF-8" if "\ufffd" in text else ""


def _error_text(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _to_utf8(value: str) -> str:
    """Replace what is not UTF-8: environment values may hold any bytes."""
    return os.fsencode(value).decode("utf-8", "replace")


def _truncate(name: str) -> str:
    return name[:MAX_VALUE_LENGTH]


def _device_names(folder: str) -> list[str]:
    """Return the names of the devices in a sysfs folder; plain files there are no devices."""
    return sorted(path.name for path in Path(folder).glob("*") if path.is_dir())
