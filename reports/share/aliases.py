"""Finds names and addresses that a shared copy must not show, and gives them aliases."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from reports.sanitize import clean, known_address

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
        # MAC, also IPoIB's
        ("address", "[0-9a-f]{2}(?:([:-])[0-9a-f]{2})(?:\\1[0-9a-f]{2}){4,18}"),
        # GUID
        ("id", "(?<![0-9a-f]{4}:)[0-9a-f]{4}(?::[0-9a-f]{4}){3}(?!:[0-9a-f])|0x[0-9a-f]{16}"),
        ("id", "[0-9a-f]{56}|[0-9a-f]{48}|[0-9a-f]{40}|[0-9a-f]{36}|[0-9a-f]{32}"),
    )
]
IPV6 = re.compile(r"(?<![\w.])[0-9A-Fa-f]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f.]*[0-9A-Fa-f:](?![\w])")

SEGMENT = r"[^\s/'\"<>|;,()\[\]:`\\]"
# A path may go on after a blank: `/shared/My Runs/falcon`. Then up to two words with a capital may
# come before the next slash. `and/or`, an option and an assignment are no parts of it.
BLANK = r"\\{0,3} "
FURTHER = (
    rf"(?:{BLANK}(?:[A-Z]{SEGMENT}*{BLANK}){{0,2}}(?!and/|-|[^\s/]*=){SEGMENT}+(?:/{SEGMENT}+)+)*"
)
PATH = re.compile(
    # In quotes all of it; two parts or more; a path below ~; a path below a usual folder of users
    # or shared storage.
    rf"(?<=['\"])~?(?:/{SEGMENT}+)+(?: (?!-){SEGMENT}+(?:/{SEGMENT}+)*){{1,4}}(?=['\"])"
    rf"|(?:(?:(?<![\w/])|(?<=://))(?:/{SEGMENT}+){{2,}}"
    rf"|(?<![\w/])~(?:[A-Za-z_][\w.-]*)?(?:/{SEGMENT}+)+"
    rf"|/(?:home|Users|root|mnt|scratch|lustre|gpfs)(?:/{SEGMENT}+)+){FURTHER}"
)
STORED = re.compile(r"\b(?:s3a?|gs|gcs|abfss?|wasbs?|az|hdfs|oci|r2|swift)://[^\s'\"<>,;]+")
URL_PATH = re.compile(r"(?<=://)([^\s/'\"<>]+)(/[^\s'\"<>,;)]+)")
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


# A number is a name where the word before it says so.
NUMBERED = re.compile(
    r"(?<![a-z0-9])"
    r"(?P<word>(?P<job>(?:slurm[_ ]?)?job_?id|slurm job)|serial(?: ?(?:number|no\.?))?|s/n)"
    r"(?P<sep>[ :=#]{1,3})(?P<number>\d{3,20})(?!\w)",
    re.IGNORECASE,
)


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
    return path if PUBLIC_PATH.fullmatch(bare) else alias("path", bare) + path[len(bare) :]


def alias_identifiers(text: str, alias: Alias, versions: bool = False) -> str:
    """Replace users before an @, UUIDs, Ray ids, GUIDs, MAC and IP addresses, numbers of jobs.

    With `versions`, four numbers with dots are a version and stay unchanged.
    """
    text = USER.sub(
        lambda m: m[0] if m[1].lower() in PUBLIC_USERS else alias("user", m[1]) + "@", text
    )
    text = NUMBERED.sub(_alias_number(alias), text)
    text = IPV6.sub(lambda m: alias("address", m[0]) if _is_ipv6(m[0]) else m[0], text)
    for kind, shape in IDENTIFIERS:
        text = shape.sub(lambda m, kind=kind: alias(kind, m[0]), text)  # type: ignore[misc]
    if versions:
        return text
    return IPV4.sub(lambda m: alias("address", m[0]) if _is_ipv4(m[0]) else m[0], text)


def _alias_number(alias: Alias) -> Callable[[re.Match[str]], str]:
    """Return a function that replaces the number in a match of NUMBERED."""
    return lambda m: m["word"] + m["sep"] + alias("job" if m["job"] else "id", m["number"])


def is_identifier(text: str) -> bool:
    """Return whether the complete text is one UUID, id, GUID, MAC or IP address."""
    shapes = [shape for _, shape in IDENTIFIERS]
    return any(shape.fullmatch(text) for shape in [*shapes, IPV4, IPV6])


def _is_ipv4(text: str) -> bool:
    """Return whether the address is of one machine: no loopback, no mask, not 0.0.0.0."""
    return not text.startswith(("127.", "255.")) and text != "0.0.0.0"  # noqa: S104 - compared


def _is_ipv6(text: str) -> bool:
    """Return whether the text is an IPv6 address, and of one machine."""
    address = known_address(text)
    return address is not None and not (address.is_loopback or address.is_unspecified)


# Words of the suite's own texts: they are no names.
WORDS = frozenset(Path(__file__).with_name("words.txt").read_text(encoding="ascii").split())


MAX_WORD = 4096  # characters; a longer word is no name, and no text for people
LONG_WORD = re.compile(rf"\S{{{MAX_WORD + 1},}}")


def shorten(text: str) -> str:
    """Replace words that are too long by their length; it takes long to search them for names."""
    return LONG_WORD.sub(lambda match: f"(a word of {len(match[0])} characters)", text)


# A pod of Kubernetes: its suffix has five of these characters (apimachinery's rand.go). One without
# a digit may be a word, unless the name says what runs there.
POD_SUFFIX = "[bcdfghjklmnpqrstvwxz2456789]{5}"
POD = re.compile(
    rf"[a-z][a-z0-9]*(?:-[a-z0-9]+){{1,10}}-(?=[a-z]*\d){POD_SUFFIX}"
    rf"|[a-z][a-z0-9]*(?:-[a-z0-9]+){{0,8}}-(?:worker|head|group)(?:-[a-z0-9]+){{0,3}}-{POD_SUFFIX}"
)
MIN_SERIAL = 10  # digits; a shorter number may be a measured value
MAX_LABELS = 12  # parts of one name between dots, hyphens and underscores; no name has more
# Text before a name that is not part of it: \n as two characters, %2F, the end of a colour code.
ESCAPE = re.compile(r"(\\[abnrt]|%[0-9A-Fa-f]{2}|\[\d{1,2}m)")
SIMPLE = re.compile(r"[A-Za-z0-9]+(?:[._-]+[A-Za-z0-9]+)*")
SHORT_ID = re.compile(r"(?=\d*[a-fA-F])[0-9a-fA-F]{8,}")  # a shortened id, as logs write it
NO_NAME = re.compile("(?!)")  # matches nothing
NOT_INSIDE = r"(?:(?<![a-z0-9])|(?<=\\[abnrt])|(?<=%[0-9a-f]{2}))"  # before a name


class Aliases:
    """Table of names and aliases. `taken` are the words of the record: no alias equals one.

    `own_words` are the words that the suite gave to its measures, units and codes.
    """

    def __init__(self, taken: Iterable[str], own_words: Iterable[str]) -> None:
        self.known: dict[str, str] = {}  # name in lower case -> alias
        self._taken, self._own_words = set(taken), WORDS | set(own_words)
        self._issued: set[str] = set()
        self._counts = Counter[str]()
        self._domains: dict[str, str] = {}  # host without domain -> first name with domain
        self._shapes: set[str] = set()
        self._done: dict[tuple[str, bool], str] = {}  # cache: texts often repeat
        self._odd = self._plain_in_text = self._plain_in_subject = NO_NAME

    def of(self, kind: str, name: str) -> str:
        """Return the alias of a name, such as `path3`; make one if the name has none."""
        key = clean(name).lower()  # as in texts, which have no invisible characters
        if key not in self.known:
            self.known[key] = self._new(kind)
        return self.known[key]

    def host(self, name: str, kind: str = "node") -> str:
        """Return the alias of a host, the same with and without its domain.

        If two domains have a host of that name, the name without domain has its own alias.
        """
        key = clean(name).lower()
        short, _, domain = key.partition(".")
        if IPV4.fullmatch(key):
            return self.of(kind, key)
        if domain and key not in self.known and short in self.known and short not in self._domains:
            self.known[key] = self.known[short]
        alias = self.of(kind, key)
        if domain:
            self._add_domain(key, short, domain)
        elif re.search(r"\d", key) and re.search("[a-z]{3}|-", key):
            self._shapes.add(_shape(key))
        return alias

    def _add_domain(self, key: str, short: str, domain: str) -> None:
        first = self._domains.setdefault(short, key)
        if first == key:
            self.known.setdefault(short, self.known[key])
        elif self.known[short] == self.known[first] != self.known[key]:
            self.known[short] = self._new("node")
        if "." in domain:
            self.of("domain", domain)

    def _new(self, kind: str) -> str:
        while True:
            self._counts[kind] += 1
            alias = f"{kind}{self._counts[kind]}"
            if alias not in self._taken:
                self._issued.add(alias)
                return alias

    def is_plain(self, name: str) -> bool:
        """Return whether a name looks like a word of the suite, a number or a sign."""
        key = name.lower()
        is_sign = not any(map(str.isalnum, key))
        is_number = key.isdecimal() and len(key) < MIN_SERIAL
        return len(key) < 2 or is_number or is_sign or key in self._own_words

    def close(self) -> None:
        """Prepare the replacement in texts: it covers the names that are known now."""
        self._done.clear()
        plain = list(filter(self.is_plain, self.known))
        odd = (name for name in self.known if not SIMPLE.fullmatch(name) and name not in plain)
        self._odd = _odd_names(odd)
        if hosts := [name for name in plain if name.isalnum()]:
            self._plain_in_text = _plain_hosts_in_text(hosts)
            self._plain_in_subject = _plain_hosts_in_subject(hosts)

    def text(self, text: str, versions: bool = False) -> str:
        """Replace every name in free text. With `versions`, 1.2.3.4 is no address."""
        if (text, versions) not in self._done:
            parts = ESCAPE.split(self._replace(self._odd, text))
            parts[::2] = (self._alias_part(part, versions) for part in parts[::2])
            self._done[text, versions] = "".join(parts)
        return self._done[text, versions]

    def subject(self, text: str) -> str:
        """Replace every name in a place: there, a word of the suite may be the name of a host."""
        known = self.known.get(text.lower())
        return known or self.text(self._replace(self._plain_in_subject, text))

    def _alias_part(self, text: str, versions: bool) -> str:
        text = self._replace(self._plain_in_text, text)
        text = alias_identifiers(alias_paths(text, self.of), self.of, versions)
        return SIMPLE.sub(self._alias_token, text)

    def _replace(self, names: re.Pattern[str], text: str) -> str:
        return names.sub(lambda m: self.of("name", m[0]), text)

    def _alias_token(self, match: re.Match[str]) -> str:
        """Replace the longest names inside one run of letters, digits and `.`, `-`, `_`."""
        parts, written, at = re.split(r"([._-]+)", match[0]), [], 0
        while at < len(parts):
            last = min(len(parts), at + 2 * MAX_LABELS - 1)
            found = ((end, self._find("".join(parts[at:end]))) for end in range(last, at, -2))
            at, alias = next(((end, alias) for end, alias in found if alias), (at + 1, parts[at]))
            written += [alias, *parts[at : at + 1]]  # and the separator after it
            at += 1
        return "".join(written)

    def _ends_in_host(self, label: str) -> bool:
        """Return whether a known host follows a hyphen or `_`: `gpu01` in `rank-3-gpu01`."""
        ends = (label[match.end() :].lower() for match in re.finditer("[-_]+", label))
        return any(end in self.known and not self.is_plain(end) for end in ends)

    def _find(self, name: str) -> str:
        """Return the alias of a complete name; "" if it is no name or looks like a suite word."""
        if name in self._issued:
            return name
        if name.lower() in self.known:
            return "" if self.is_plain(name) else self.known[name.lower()]
        if is_domain(name) and not self._ends_in_host(name.partition(".")[0]):
            return self.host(name, "host")
        if POD.fullmatch(name):
            return self.of("pod", name)
        if SHORT_ID.fullmatch(name):
            return next((alias for long, alias in self.known.items() if name.lower() in long), "")
        return self.host(name) if _shape(name.lower()) in self._shapes else ""


def _shape(name: str) -> str:
    """Replace numbers by 0 (`gpu-17` -> `gpu-0`): hosts of a cluster differ in their numbers."""
    return re.sub(r"\d+", "0", name)


def _union(names: Iterable[str]) -> str:
    """Return a pattern that matches any of these names, the longest first."""
    longest_first = sorted(names, key=lambda name: (-len(name), name))
    return f"(?:{'|'.join(map(re.escape, longest_first))})"


def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


def _odd_names(names: Iterable[str]) -> re.Pattern[str]:
    """Compile a pattern for names with spaces, slashes or foreign letters.

    A folder matches only as the complete path, or with what is below it if it has a blank.
    """
    everything = list(names)
    folders = [name for name in everything if name.startswith(("/", "~"))]
    others = [name for name in everything if name not in folders]
    kinds = [
        (r"(?<![\w./])", [name for name in folders if " " in name], rf"(?![\w-])(?:/{SEGMENT}+)*"),
        (r"(?<![\w./])", [name for name in folders if " " not in name], r"(?![\w/-])"),
        (NOT_INSIDE, [name for name in others if name[0].isalnum()], "(?![a-z0-9])"),
        ("", [name for name in others if not name[0].isalnum()], ""),
    ]
    found = [before + _union(group) + after for before, group, after in kinds if group]
    return _compile("|".join(found)) if found else NO_NAME


def _plain_hosts_in_text(names: list[str]) -> re.Pattern[str]:
    """Compile a pattern for hosts named like suite words, in places where only a host can be.

    Examples: `rank:4121:4180`, `node:8`.
    """
    places = [rf"(?<=\bnode:){_union(names)}\b", rf"(?<![\w.]){_union(names)}(?=:\d+:\d+)"]
    # Not for numbers, nor for jobs A and B: NCCL writes `0[0] -> 8[0]` for ranks.
    if words := [name for name in names if len(name) > 1 and not name.isdecimal()]:
        word = _union(words)
        places += [
            rf"(?<![\w.]){word}(?= ?-> ?\w|/(?:mlx|eth|ib|GPU))",
            rf"(?<=->){word}\b|(?<=-> ){word}\b|(?:^|(?<=; )){word}(?=: )",
        ]
    return _compile("|".join(places))


def _plain_hosts_in_subject(names: list[str]) -> re.Pattern[str]:
    """Compile a pattern for hosts named like suite words in a subject or suspect.

    Examples: `a -> b`, `8 alone`, `rank 0 (fabric)`, `node mlx5_0`.
    """
    name = _union(names)
    return _compile(
        rf"^{name}(?=$| alone$| ?-> ?| - |[/:]| [a-z]+\d*_\d)"
        rf"|(?<=->){name}$|(?<=-> ){name}$|(?<= - ){name}$|(?<=\(){name}(?=\))"
    )
