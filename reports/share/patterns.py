"""Finds names by their shape, where no fact of the run identifies them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable

Alias = Callable[[str, str], str]  # (kind such as "node" or "path", name) -> alias

OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
IPV4 = re.compile(rf"(?<![\d.])(?:{OCTET}\.){{3}}{OCTET}(?!\.?\d)")
UUID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
# (kind, shape). Ray's ids have 32 to 56 hexadecimal digits; 64 are a sha256, which is no name.
IDENTIFIERS = [
    (kind, re.compile(rf"(?<![0-9a-z])(?:{shape})(?![0-9a-z])", re.IGNORECASE))
    for kind, shape in (
        ("gpu", rf"(?:MIG-GPU-|GPU-|MIG-){UUID}(?:/\d+/\d+)?"),
        ("id", UUID),
        (
            "address",
            "[0-9a-f]{2}(?:([:-])[0-9a-f]{2})(?:\\1[0-9a-f]{2}){4,18}",
        ),  # MAC, also IPoIB's
        (
            "id",
            "(?<![0-9a-f]{4}:)[0-9a-f]{4}(?::[0-9a-f]{4}){3}(?!:[0-9a-f])|0x[0-9a-f]{16}",
        ),  # GUID
        ("id", "[0-9a-f]{56}|[0-9a-f]{48}|[0-9a-f]{40}|[0-9a-f]{36}|[0-9a-f]{32}"),
    )
]
IPV6 = re.compile(r"(?<![\w.])[0-9A-Fa-f]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f.]*[0-9A-Fa-f:](?![\w])")

SEGMENT = r"[^\s/'\"<>|;,()\[\]:`\\]"
PATH = re.compile(
    # Two parts or more; a path below ~; a path below a usual folder of users or shared storage.
    rf"(?:(?<![\w/])|(?<=://))(?:/{SEGMENT}+){{2,}}"
    rf"|(?<![\w/])~(?:[A-Za-z_][\w.-]*)?(?:/{SEGMENT}+)+"
    rf"|/(?:home|Users|root|mnt|scratch|lustre|gpfs)(?:/{SEGMENT}+)+"
)
STORED = re.compile(r"\b(?:s3a?|gs|gcs|abfss?|wasbs?|az|hdfs|oci|r2|swift)://[^\s'\"<>,;]+")
URL_PATH = re.compile(r"(?<=://)([^\s/'\"<>]+)(/[^\s'\"<>,;)]+)")
HOME = re.compile(r"(?:/home|/Users)/([A-Za-z_][\w.-]*)|~([A-Za-z_][\w.-]*)/")
# Paths that exist on every Linux: remedies name them, and they identify no user or site.
PUBLIC_PATH = re.compile(
    r"/(?:proc|sys)/.*|~/\.nccl\.conf|/etc/(?:hosts|nccl\.conf|ld\.so\.conf\.d|security/limits\.d(?:/rdma\.conf)?)"
    r"|/dev/(?:shm|null|kfd|std\w+|nvidia[\w*-]*|infiniband(?:/[\w*]+)?)"
)
USER = re.compile(r"(?<![\w.+-])([A-Za-z0-9_][\w.+-]*)@(?=[A-Za-z0-9])")
PUBLIC_USERS = {"root", "ubuntu", "user", "ray", "nobody", "git", "admin"}

DOMAINS = (
    "com org net edu gov mil int io ai dev cloud app local localdomain internal lan corp intra"
    " intranet home private example test invalid arpa svc de eu uk fr nl ch se fi dk pl cz jp kr cn"
    " tw sg au ca br il"
)
FILES = (
    "log txt json jsonl toml yaml yml csv html xml py so pt pth bin distcp safetensors metadata gz"
    " tar zip whl conf cfg ini sh md prom sock pid cpp cu cc rs js ts out err tmp partial"
)
ENDS_OF_DOMAINS, ENDS_OF_FILES = frozenset(DOMAINS.split()), frozenset(FILES.split())


def is_domain(name: str) -> bool:
    """Return whether dotted words are a host in a domain, and no file, module or version."""
    rest, dot, last = name.rpartition(".")
    if not dot or len(last) < 2 or not last.isalpha() or "_" in name:
        return False
    if last.lower() in ENDS_OF_FILES or not re.search("[A-Za-z]", rest):
        return False
    if last.lower() in ENDS_OF_DOMAINS:
        return True
    # Three parts or more with a digit or a hyphen: `gpu-01.dc1.acme`. `torch.nn.functional` and
    # kernel settings are no domains.
    is_setting = rest.partition(".")[0] in ("net", "kernel", "vm", "fs")
    return "." in rest and not is_setting and bool(re.search(r"[\d-]", rest))


def alias_paths(text: str, alias: Alias) -> str:
    """Replace paths of files and folders, in URLs, and of objects in a store."""
    text = STORED.sub(lambda m: alias("path", m[0]), text)
    text = URL_PATH.sub(lambda m: f"{m[1]}/{alias('path', m[2])}", text)
    return PATH.sub(lambda m: _alias_path(m[0], alias), text)


def _alias_path(path: str, alias: Alias) -> str:
    bare = path.rstrip(".")
    if PUBLIC_PATH.fullmatch(bare):
        return path
    return alias("path", bare) + path[len(bare) :]


def alias_identifiers(text: str, alias: Alias, versions: bool = False) -> str:
    """Replace users before an @, UUIDs, Ray ids, GUIDs, MAC and IP addresses.

    With `versions`, four numbers with dots are a version and stay unchanged.
    """
    text = USER.sub(lambda m: m[0] if _is_public(m[1]) else alias("user", m[1]) + "@", text)
    text = IPV6.sub(lambda m: alias("address", m[0]) if _is_ipv6(m[0]) else m[0], text)
    for kind, shape in IDENTIFIERS:
        text = shape.sub(lambda m, kind=kind: alias(kind, m[0]), text)  # type: ignore[misc]
    if versions:
        return text
    return IPV4.sub(lambda m: alias("address", m[0]) if _is_ipv4(m[0]) else m[0], text)


def is_identifier(text: str) -> bool:
    """Return whether the complete text is one UUID, id, GUID, MAC or IP address."""
    shapes = [shape for _, shape in IDENTIFIERS]
    return any(shape.fullmatch(text) for shape in [*shapes, IPV4, IPV6])


def _is_public(user: str) -> bool:
    return user.lower() in PUBLIC_USERS


def _is_ipv4(text: str) -> bool:
    """Return whether the address is of one machine: no loopback, no mask, not 0.0.0.0."""
    return not text.startswith(("127.", "255.")) and text != "0.0.0.0"  # noqa: S104 - compared


def _is_ipv6(text: str) -> bool:
    """Return whether the text is an IPv6 address, and of one machine."""
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return not address.is_loopback and not address.is_unspecified
