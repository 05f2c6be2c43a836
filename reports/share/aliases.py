"""Replaces each name by one alias, the same everywhere, also inside text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from reports.sanitize import clean
from reports.share.patterns import IPV4, alias_identifiers, alias_paths, is_domain
from reports.share.words import WORDS

MIN_SERIAL = 10  # digits; a shorter number may be a measured value
MAX_LABELS = 12  # parts of one name between dots, hyphens and underscores; no name has more
# Text before a name that is not part of it: \n as two characters, %2F, the end of a colour code.
ESCAPE = re.compile(r"(\\[abnrt]|%[0-9A-Fa-f]{2}|\[\d{1,2}m)")
SIMPLE = re.compile(r"[A-Za-z0-9]+(?:[._-]+[A-Za-z0-9]+)*")
SHORT_ID = re.compile(r"(?=\d*[a-fA-F])[0-9a-fA-F]{8,}")  # a shortened id, as logs write it
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
        self._odd: re.Pattern[str] | None = None
        self._plain_in_text: re.Pattern[str] | None = None
        self._plain_in_subject: re.Pattern[str] | None = None

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
        self._odd = _odd_names(
            name for name in self.known if not SIMPLE.fullmatch(name) and name not in plain
        )
        self._plain_in_text = _plain_hosts_in_text(plain)
        self._plain_in_subject = _plain_hosts_in_subject(plain)

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

    def _replace(self, names: re.Pattern[str] | None, text: str) -> str:
        return names.sub(lambda m: self.of("name", m[0]), text) if names else text

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


def _odd_names(names: Iterable[str]) -> re.Pattern[str] | None:
    """Compile a pattern for names with spaces, slashes or foreign letters; None if there are none.

    A folder matches only as the complete path.
    """
    everything = list(names)
    folders = [name for name in everything if name.startswith(("/", "~"))]
    others = [name for name in everything if name not in folders]
    kinds = [
        (r"(?<![\w./])", folders, r"(?![\w/-])"),
        (NOT_INSIDE, [name for name in others if name[0].isalnum()], "(?![a-z0-9])"),
        ("", [name for name in others if not name[0].isalnum()], ""),
    ]
    found = [before + _union(group) + after for before, group, after in kinds if group]
    return _compile("|".join(found)) if found else None


def _plain_hosts_in_text(names: list[str]) -> re.Pattern[str] | None:
    """Compile a pattern for hosts named like suite words, in places where only a host can be.

    Examples: `rank:4121:4180`, `node:8`. None if there are no such hosts.
    """
    names = [name for name in names if name.isalnum()]
    if not names:
        return None
    places = [rf"(?<=\bnode:){_union(names)}\b", rf"(?<![\w.]){_union(names)}(?=:\d+:\d+)"]
    # Not for numbers, nor for jobs A and B: NCCL writes `0[0] -> 8[0]` for ranks.
    if words := [name for name in names if len(name) > 1 and not name.isdecimal()]:
        word = _union(words)
        places += [
            rf"(?<![\w.]){word}(?= ?-> ?\w|/(?:mlx|eth|ib|GPU))",
            rf"(?<=->){word}\b|(?<=-> ){word}\b|(?:^|(?<=; )){word}(?=: )",
        ]
    return _compile("|".join(places))


def _plain_hosts_in_subject(names: list[str]) -> re.Pattern[str] | None:
    """Compile a pattern for hosts named like suite words in a subject or suspect.

    Examples: `a -> b`, `8 alone`, `rank 0 (fabric)`, `node mlx5_0`. None if there are none.
    """
    names = [name for name in names if name.isalnum()]
    if not names:
        return None
    name = _union(names)
    return _compile(
        rf"^{name}(?=$| alone$| ?-> ?| - |[/:]| [a-z]+\d*_\d)"
        rf"|(?<=->){name}$|(?<=-> ){name}$|(?<= - ){name}$|(?<=\(){name}(?=\))"
    )
