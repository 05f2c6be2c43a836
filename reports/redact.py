r"""Removes secrets from all that is stored or shown. It is the suite's only redactor.

`redact` is for facts (JSON), `redact_text` for logs, tracebacks, commands, headers and JSON, YAML
or TOML as text. A value is hidden because of its name (`is_secret_name`) or its own form: keys of
known vendors, PEM blocks, users in URLs, webhooks. Both functions may be applied repeatedly. Their
time is proportional to the length of the text, for any text. Some text is ambiguous: a password, or
a number or a word of prose. There, a value that would be useless as a password stays readable.

Text may contain JSON inside JSON. There, each quote has backslashes before it (`\"`, `\\\"`), and
a newline is the two characters `\n`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from reports import token_shapes
from reports.token_shapes import FOREIGN_WORDS, HARMLESS_P, looks_random, may_be_password

REDACTED = "<redacted>"

MAX_PASSES = 6  # text changes in one pass; rare mixtures of quotes need three
# Names are compared as their words in lower case, joined by "_".
NAME_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
# Endings that do not change the meaning of a name: HF_TOKEN_2, API_KEY_B64.
NAME_TAIL = re.compile(
    r"(?:_(?:\d+|values?|data|b64|base64|hex|str|string|raw|text|header|old|new|read|write|ro|rw"
    r"|prod|dev))+$"
)
# Names with these endings hold no secret: `token_path`, AUTH_MODE, `tokens_per_s`.
PLAIN_END = re.compile(
    r"(?:^|_)(?:path|file|dir|folder|mode|type|kind|counts?|length|len|size|bytes|s|seconds|ttl"
    r"|expiry|expires|enabled|required|name|user|username|host|port|url|uri|policy|version"
    r"|algorithm|format|errors?|rate|limit|budget|bucket|stdin|id)$"
)
SECRET_END = re.compile(
    rf"passw(?:or)?d|{FOREIGN_WORDS}|(?:^|_)pw$|_pin$|ntfy_topic$"
    r"|passphrase|passcode|secret|credential|(?:^|_)(?:creds?|psks?)(?:_|$)"
    r"|(?:api|access|private|secret)_?keys?(?:_|$)|[a-z0-9]_key$|token$"
    r"|(?:account|auth|encryption|service|shared|signing|ssh|storage)_keys$"
    r"|(?:api|access|auth|deploy|personal|refresh|service|session|user)_?tokens$"
    r"|(?:^|_)(?:auth|authorization|cookies?|bearer|jwt)$|(?:^|_)pwd$|_(?:pass|sas|pat)$|[a-z]pass$"
)
# With these words, `key` and `pass` are no secrets: a key of a table, a pass over the data.
# InfiniBand's P_Key, Q_Key, L_Key and R_Key are no secrets either, nor is where a thread is pinned.
PLAIN_NAME = re.compile(
    r"(?:^|_)(?:"
    r"(?:sort|group|cache|primary|foreign|partition|public|pub|unique|natural|dict|row|col|column"
    r"|map|lookup|known|unknown|missing|extra|common|other|top|no|any|each|same|first|last|next"
    r"|hash|object|config|toml|json|yaml|metric|[bplqr\d])_key"
    r"|(?:first|second|third|last|forward|backward|one|two|single|multi|each|per|next|previous"
    r"|final|all|by|low|high|band|test)_pass"
    r"|(?:by|com|sur|tres|over|under)pass"
    r"|(?:cpu|core|gpu|irq|mem|memory|mpi|numa|omp|proc|process|rank|task|thread)_pin"
    r")$"
)
NUMBER_IS_SECRET = re.compile(
    rf"passw|passphrase|passcode|pwd|secret|psk|cred|pass$|pw$|pin$|{FOREIGN_WORDS}"
)
SHORT_NUMBER = re.compile(r"\d{1,3}")  # no PIN is as short
# Values of switches, types and verdicts are not passwords.
PLAIN_VALUE = re.compile(
    r"(?:true|false|none|null|nil|yes|no|on|off|ok|(?:un)?set|fail(?:ed)?|pass(?:ed)?|str|int|float|bool|bytes"
    r"|any|\.{3}|\*{3,})[,;)\]}]*",
    re.IGNORECASE,
)
NUMBER = re.compile(r"[-+]?\d[\d_,.]*(?:[eE][-+]?\d+)?[%,;.)\]}]*")
# `--key f.pem` and PWD=/home/joe hold paths.
PATH_NAMES = ("key", "pwd")
PATH = re.compile(r"[/~]|\./|[\w.-]+\.(?:pem|key|pub|crt)\b")
OPTION_WORDS = ("key", "pass")  # as an option (`--key x`); elsewhere a table key or a verdict

# Words that are secrets by their form, whatever precedes them. They begin at the start of a word,
# after an escaped newline, or after an escape such as %3D.
SECRET_WORD = re.compile(
    r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt])|(?<=%[0-9A-F]{2}))"
    rf"(?:{'|'.join(token_shapes.TOKENS.values())})"
)
# Up to its END or, if END was cut off, as far as the text looks like PEM. BEGIN and END stay: the
# lines of a block may arrive one by one and be joined later.
PEM = re.compile(
    r"(?P<begin>-{4,5} ?BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)? ?-{4,5})(?:"
    r"[^-]*(?:-(?!----? ?(?:BEGIN|END) )[^-]*)*(?P<end>-{4,5} ?END [A-Z0-9 ]{0,60}-{4,5})"
    rf"|(?:{REDACTED})?[\w+/=\s\\,:;-]*)"
)
SLASH = r"\\*/"  # JSON may escape a slash
# A topic of ntfy is its only password; some paths of its server are pages.
WEBHOOK = re.compile(
    rf"(?=[adhnow])(?P<kept>(?<![\w.-])ntfy\.[\w.-]{{1,100}}{SLASH}(?!(?:docs|app|static|account|login)\b)"
    rf"|(?:hooks\.slack\.com{SLASH}(?:services|workflows|triggers)"
    rf"|discord(?:app)?\.com{SLASH}api{SLASH}webhooks|webhook\.office\.com{SLASH}webhookb?2?"
    rf"|outlook\.office\.com{SLASH}webhook|api\.telegram\.org){SLASH})[^\s\"'<>]+",
    re.IGNORECASE,
)
# The user part ends at the last @ before the path. A password that contains / is recognised by the
# user before its colon. 256 bounds the search: no password has as many characters.
PORT_AND_PATH = r"(?!\d{1,5}(?:[/?#]|\\+/))"
URL_USER = re.compile(
    rf"(?<=:)(?P<slashes>{SLASH}{SLASH})(?:"
    rf"[^\s/\"'?#:\\]*(?::{PORT_AND_PATH}(?:[^\s/\"'\\]|\\+(?![\\\"'/])|(?<=\w)'(?=\w))*)?@"
    rf"|[^\s/\"'?#:@\\]{{1,64}}:{PORT_AND_PATH}[^\s\"'@\\]{{0,256}}@)"
)
# `user:password@host` without a scheme, as in https_proxy. 128 bounds the search, as above.
PROXY_USER = re.compile(
    r"(?<![\w.:/@%+-])(?P<user>[\w.+%-]{1,64}):(?P<password>[^\s\"'\\:/@,;<][^\s\"']{0,127})"
    r"@(?P<host>[A-Za-z0-9\[][A-Za-z0-9.:\]-]*)(?!\w)"
)
NO_USER = re.compile(
    r"e?-?mail|mailto|contact|author|maintainer|owner|from|to|cc|sips?|xmpp|\d+", re.IGNORECASE
)
NO_PASSWORD = re.compile(
    r"git|[\d:]{1,3}|\d+(?:\.\d+)+|.*(?:://|<redacted>).*|[0-9a-fA-F:]*:[0-9a-fA-F:]*"
)
IMAGE_DIGEST = re.compile(r"sha\d{3}:")
BEARER = re.compile(r"\b(?P<scheme>bearer|basic)(?P<sep>[ \t]+)(?P<value>[\w.~+/=-]{8,})", re.I)
SCHEME = re.compile(r"(?:bearer|basic|token|digest|negotiate|aws4-hmac-sha256)[ \t]+", re.I)

# A value may begin after: `NAME: `, "NAME": , NAME=, os.environ["NAME"] = , `--NAME `, argv's
# '--NAME', '...', the value of {"name": NAME, "value": ...}, and options that take passwords.
# A set of first letters before many words makes a search three times as fast.
HINT = (
    r"(?=[_abchjklmnpstwABCHJKLMNPSTW])"
    rf"(?i:pass|pw|pin|secret|token|key|cred|auth|cookie|psk|bearer|jwt|_sas|_pat|ntfy"
    rf"|{FOREIGN_WORDS})"
)
QUOTE = r"\\*[\"']"
NAME = rf"(?<![\w.-])(?=[\w.-]*?{HINT})(?P<name>[\w.-]+)"
ASSIGNED = re.compile(
    rf"{NAME}(?P<quote>{QUOTE})?\]?(?P<sep>[ \t]*(?:=>|[:=]=?)(?!:)[ \t]*|%3[Dd])"
)
# Separator of two words of a command or of an argument list.
BETWEEN = rf"(?:{QUOTE},[ \t\n]*|[ \t]+(?:\\+(?:\n|n)[ \t]*)?)"
OPTION = re.compile(rf"(?<![\w-])(?=-)(?=[\w.-]*?{HINT})(?P<name>[\w.-]+)(?P<sep>{BETWEEN})(?!-)")
QUERY = re.compile(
    r"(?:(?<=[?&;])|(?<=%3F)|(?<=%26))(?P<name>sig|signature|key|x-(?:amz|goog)-[a-z-]{1,40})"
    r"(?P<sep>=|%3D)",
    re.IGNORECASE,
)
ENCODED = re.compile(r"(?:[^\s\"'\\;&|<%]|%(?!2[026]|3[BbEe]))*")  # up to an escaped & ; " or blank
PAIR = re.compile(
    rf"[(\[]{QUOTE}{NAME}(?P<quote>{QUOTE}),[ \t\n]*"
    rf"(?={QUOTE}[^\"'\n]{{0,400}}{QUOTE}[ \t\n]*[)\]])"  # 400: such values are far shorter
)
NAMED = re.compile(
    rf"\b(?:name|key|variable){QUOTE}?[ \t]*[:=][ \t]*(?:{QUOTE})?{NAME}(?:{QUOTE})?"
    rf"(?:\s|,|\\+n){{1,80}}{QUOTE}?value(?P<quote>{QUOTE})?[ \t]*[:=][ \t]*",
    re.IGNORECASE,
)
USER_OPTION = re.compile(
    rf"(?<![\w-])(?:-u|-U|--user|--proxy-user)(?:=|{BETWEEN})(?P<quote>{QUOTE})?"
    r"(?P<name>[^\s:\"'\\]{1,100}):(?!//)"
)


def _commands(glued: bool) -> str:
    """Return a pattern for the options of programs that take passwords, with or without a blank."""
    rows = [row for row in token_shapes.PASSWORD_OPTIONS if (row[2] == "glued") is glued]
    starts = (rf"(?:{program})\b[^\n;|&]{{0,100}}?[ \"']{option}" for program, option, _ in rows)
    return rf"\b(?:{'|'.join(starts)})"


def _words(text: str) -> str:
    """Return a pattern for words of a command, or of an argument list."""
    return text.replace(" ", BETWEEN)


COMMAND = re.compile(
    rf"{_commands(glued=False)}(?P<sep>{BETWEEN}|=)?"
    # `-p'...'`, and not the end of '-p'
    rf"|{_commands(glued=True)}(?!\s|$|{QUOTE}(?:[\s,\])}}]|$))"
)
ARGUMENT = re.compile(
    rf"\b{_words(token_shapes.LOGIN_COMMANDS)}"
    rf"(?:{BETWEEN}(?:--?[\w-]{{1,40}}|https?://)(?:=?[^\s\"']{{1,100}})?){{0,4}}(?P<sep>{BETWEEN})(?!-)"
)
TOPIC = re.compile(rf"\b{_words(token_shapes.TOPIC_COMMANDS)}(?P<sep>{BETWEEN})(?!-)")
SPACE = r"(?:[ \t\r\n]|\\{1,7}n){1,20}"
NETRC = re.compile(  # netrc(5)
    rf"(?<![\w.-])(?:machine{SPACE}[\w.:-]{{1,100}}|default)"
    rf"(?:{SPACE}(?:login|user|account){SPACE}[^\s\"'\\]{{1,100}}){{1,2}}{SPACE}password{SPACE}"
)
# kaggle.json has two fields: {"username": ..., "key": ...}.
USERNAME = rf"username{QUOTE}[ \t]*:[ \t]*{QUOTE}[^\"'\\\n]{{1,64}}{QUOTE},[ \t\n]*{QUOTE}"
KEY = rf"key(?P<quote>{QUOTE})[ \t]*:[ \t]*"
USER_AND_KEY = re.compile(rf"(?<=[\"']){USERNAME}{KEY}")
KEY_AND_USER = re.compile(
    rf"(?<=[\"']){KEY}(?={QUOTE}[^\"'\\\n]{{1,100}}{QUOTE},[ \t\n]*{QUOTE}username{QUOTE})"
)
AFTER_PASSWORD = re.compile(
    r"(?=[chklmpswCHKLMPSW])(?<![\w.-])"
    rf"(?i:passwords?|passphrase|passcode|{FOREIGN_WORDS})(?P<sep>[ \t]+)(?=[^\s:=])"
)
AFTER_OPTION = re.compile(rf"(?<![\w-])(?:-p|login)(?P<sep>{BETWEEN})(?!-)")
# By what name the value after such a head is judged.
FIXED_NAMES = {
    **dict.fromkeys((COMMAND, NETRC), "password"),
    **dict.fromkeys((QUERY, TOPIC), "token"),
    **dict.fromkeys((USER_AND_KEY, KEY_AND_USER), "api_key"),
}
# Whose value is a secret if this function returns so.
GUESSES = {AFTER_PASSWORD: may_be_password, ARGUMENT: may_be_password, AFTER_OPTION: looks_random}
GUESSED_WORD = re.compile(r"\\*[\"']?([^\s\"'\\]{1,200})")
COMMAND_HEADS = (COMMAND, ARGUMENT, TOPIC, AFTER_OPTION, AFTER_PASSWORD)
MAX_BEFORE = 400  # characters before an option that may name its program
MAX_WORDS = 12  # of a command, before one that may be a password

BARE = re.compile(r"(?:[^\s\"'\\;&|]|\\+(?![\\\"'nr]))+")
BYTES_PREFIX = re.compile(rf"[bBfFrRuU]{{1,2}}(?=[\"']|{REDACTED})")
JSON_WORD = re.compile(r"[^\s,\"'\\}\]|>][^\s,\"'\\}\]]*")
ANY_QUOTE = re.compile(r"(?P<slashes>\\*)(?P<mark>[\"'])")
QUOTE_OR_END = re.compile(r"(?P<slashes>(?<!\\)\\*)(?P<mark>[\"'])|\n")
GLUED = re.compile(r"[\w+=@%.~$-]")  # after a quote: the shell reads "a"b as one word
HEADER_LINE = re.compile(r"(?:(?<==)\"[^\"\r\n]*\"|[^\r\n\"'\\]|\\+(?![\\\"'nr]))+")
WHOLE_LINE = re.compile(r"(?:[^\r\n\\]|\\+(?![\\nr]))+")
HEADER = re.compile(r"authorization|cookies?\d?$", re.IGNORECASE)
INDENT = 40  # characters searched for the spaces before a YAML key
LINE_START = re.compile(r"(?:^|[\n\r])[ \t]*(?:- )?$")
# Start of a string, or of a line inside one. There, the name may include the `n` of \n.
STRING_START = re.compile(r"(?:[\"']|\\[nr])[ \t]*(?:- )?$|\\$")
BLOCK = re.compile(  # of YAML, plain or inside a JSON string
    r"[|>][-+\d]*[ \t]*(?:\n(?P<indent>[ \t]+)[^\n]*(?:\n(?P=indent)[^\n]*)*"
    r"|(?P<new>\\+n)(?P<in>[ \t]+)(?:(?!(?P=new))[^\n\"'])*"
    r"(?:(?P=new)(?P=in)(?:(?!(?P=new))[^\n\"'])*)*)"
)
WORDS_BEFORE_KEY = re.compile(r"\b(?:api|access|secret|private|account|encryption|signing) $", re.I)
USER_OPTIONS = ("-u", "-U", "--user", "--proxy-user")


@lru_cache(maxsize=4096)  # names repeat; one cluster has fewer than 4096
def is_secret_name(name: str) -> bool:
    """Return whether a variable, field or header of this name is likely to hold a secret.

    `key`, `keys`, `tokens`, PASS and `signature` as complete names are ordinary words: of tables,
    text, verdicts and functions. A key id (KEY_ID) names a key and is not secret. The access key
    ids of clouds are secret: they are half of a login.
    """
    words = "_".join(word.lower() for word in NAME_WORD.findall(name[:1000]))
    words = NAME_TAIL.sub("", words)
    if words in ("pass", "sshpass"):  # not the verdict PASS, nor the program sshpass
        return name in ("pass", "SSHPASS")
    if words.endswith("access_key_id"):
        return True
    if PLAIN_END.search(words) or PLAIN_NAME.search(words):
        return False
    in_capitals = name.isupper() and "_token_" in words  # a variable: HF_TOKEN_OF_TEAM
    return in_capitals or bool(SECRET_END.search(words))


def redact(value: Any, name: str = "") -> Any:
    """Replace keys, tokens, passwords and similar secrets in nested facts and in field names.

    A URL keeps its host and loses its user and password.
    """
    if isinstance(value, Mapping):
        return _redact_mapping(value, name)
    if isinstance(value, list | tuple):
        return [_redact_item(value, at, name) for at in range(len(value))]
    if isinstance(value, str):
        return REDACTED if _must_hide(name, value) else redact_text(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return REDACTED if _must_hide(name, str(value)) else value
    return value


def redact_text(text: str) -> str:
    """Remove secrets from free text: a log, a traceback, a command, headers, JSON, YAML.

    One replacement can show where another value ends, so passes repeat until nothing changes.
    """
    for _ in range(MAX_PASSES):
        before, text = text, _redact_one_pass(text)
        if text == before:
            break
    return text


def _redact_one_pass(text: str) -> str:
    text = PEM.sub(lambda match: f"{match['begin']}{REDACTED}{match['end'] or ''}", text)
    text = WEBHOOK.sub(lambda match: match["kept"] + REDACTED, text)
    text = URL_USER.sub(lambda match: f"{match['slashes']}{REDACTED}@", text)
    for heads in (ASSIGNED, OPTION, PAIR, NAMED, USER_OPTION, *FIXED_NAMES, *GUESSES):
        text = "".join(_redact_secret_values(text, heads))
    text = PROXY_USER.sub(_redact_proxy, text)
    text = BEARER.sub(_redact_bearer, text)
    return SECRET_WORD.sub(REDACTED, text)


def _redact_mapping(facts: Mapping[Any, Any], name: str) -> dict[Any, Any]:
    """Redact a mapping. Fields below a secret name are secret unless PLAIN_END matches them."""
    hidden: dict[Any, Any] = {}
    named = next((facts[key] for key in ("name", "key", "variable") if key in facts), "")
    of_kaggle = "key" in facts and "username" in facts
    for key, value in facts.items():
        beside = named if key == "value" and isinstance(named, str) else ""
        below = name if is_secret_name(name) and not PLAIN_END.search(str(key).lower()) else ""
        name_of = "api_key" if key == "key" and of_kaggle else str(key)
        secret = next((n for n in (name_of, beside, below) if is_secret_name(n)), str(key))
        hidden[_free_key(hidden, key)] = redact(value, secret)
    return hidden


def _free_key(taken: Mapping[Any, Any], key: Any) -> Any:
    """Return the key without secrets, made different from the keys in `taken`."""
    if not isinstance(key, str):
        return key
    free = shown = redact_text(key)
    while free in taken:
        free = f"{shown} {len(taken)}" if free == shown else f"{free}'"
    return free


def _redact_item(items: Sequence[Any], at: int, name: str) -> Any:
    """Redact one item of a list. In a command, the words before it show if it is a secret."""
    item, before = items[at], items[at - 1] if at else ""
    if not isinstance(item, str) or not isinstance(before, str) or not before:
        return redact(item, name)
    is_option = before.startswith("-") and not item.startswith("-")
    is_pair = len(items) == 2 and before[0].isupper()
    if (is_option or is_pair) and _is_secret_option(before) and _must_hide(before, item):
        return REDACTED
    if before in USER_OPTIONS and ":" in item:
        return redact_text(f"-u '{item}'")[len("-u '") : -1]
    hidden = item if any(map(str.isspace, before)) else _redact_argument(items[:at], item)
    return redact(hidden, name)


def _redact_argument(words: Sequence[Any], item: str) -> str:
    """Redact a word of a command if the words before it make it a password."""
    near = [word for word in words[-MAX_WORDS:] if isinstance(word, str)]
    line = " ".join(near)[-MAX_BEFORE:] + " "
    command = line + (item if item.split() == [item] else f"'{item}'")
    for heads in COMMAND_HEADS:
        hidden = "".join(_redact_secret_values(command, heads))
        if hidden != command and hidden.startswith(line):
            return hidden.removeprefix(line).strip("'")
    return item


def _is_secret_option(name: str) -> bool:
    return is_secret_name(name) or (name.startswith("-") and name.lstrip("-") in OPTION_WORDS)


def _must_hide(name: str, value: str) -> bool:
    return bool(value) and _is_secret_option(name) and not _is_plain(name, value)


def _is_plain(name: str, value: str) -> bool:
    """Return whether a value stays visible in spite of its name: a switch, a number, a path."""
    plain = name.lower().strip("-_")
    if plain.endswith(("pin", "pw")) and SHORT_NUMBER.fullmatch(value):
        return True
    if PLAIN_VALUE.fullmatch(value) or (plain in PATH_NAMES and PATH.match(value)):
        return True
    may_be_number = not NUMBER_IS_SECRET.search(plain) or plain == "pass"
    return may_be_number and bool(NUMBER.fullmatch(value))


def _redact_secret_values(text: str, heads: re.Pattern[str]) -> Iterator[str]:
    """Yield the text in parts, with REDACTED for each secret value after a match of `heads`."""
    done = at = 0
    while head := heads.search(text, at):
        at = head.end()
        start, end = _value_of(text, head)
        if start < end:
            yield text[done:start]
            yield REDACTED
            done = at = end
    yield text[done:]


def _value_of(text: str, head: re.Match[str]) -> tuple[int, int]:
    """Return the start and end of the secret after a head; they are equal if it is no secret."""
    at, name, found = head.end(), _secret_name(text, head), head.groupdict("")
    if not name:  # checked first, so that no text is scanned repeatedly for nothing
        return at, at
    at = prefix.end() if (prefix := BYTES_PREFIX.match(text, at)) else at
    quote, key_quote, sep = ANY_QUOTE.match(text, at), found.get("quote"), found.get("sep", "")
    if sep.startswith("%") and (encoded := ENCODED.match(text, at)):
        end = encoded.end()
    elif head.re is USER_OPTION and key_quote:
        end = _quoted_end(text, at, key_quote)[0]
    elif quote and (key_quote or sep.startswith(("\\", '"', "'"))):
        at = quote.end()
        end = _quoted_end(text, at, quote[0])[0]
    elif key_quote and (word := JSON_WORD.match(text, at)):
        end = word.end()
    else:
        block = BLOCK.match(text, at) if ":" in sep else None
        end = block.end() if block else _word_end(text, at)
    value = text[at:end].strip("\\\"'")
    if not value or _is_plain(name, value):
        return at, at
    if not quote and not key_quote and ":" in sep:
        end = max(end, _line_end(text, head))
    if HEADER.search(name) and (scheme := SCHEME.match(text, at, end)):
        at = scheme.end()
    return at, end


def _secret_name(text: str, head: re.Match[str]) -> str:
    """Return the name by which the value of a head is judged; "" if the name is not secret."""
    if head.re in FIXED_NAMES:
        return FIXED_NAMES[head.re]
    if head.re in GUESSES:
        return "password" if _is_guessed(text, head) else ""
    name, start = head["name"], head.start("name")
    if head.re is USER_OPTION:  # `docker run --user 1000:1000` has no password
        return "token" if name.isdigit() else "password"
    is_prose = name.lstrip("-") == "pass" and ":" in head["sep"] and not head["quote"]
    is_list = head.re is PAIR and not name[:1].isupper()  # may be a list of names
    if is_prose or is_list:
        return ""
    if name.lower() in ("key", "keys") and WORDS_BEFORE_KEY.search(text, max(0, start - 12), start):
        return f"api_{name}"
    if _is_secret_option(name):
        return name
    is_escape = text[start - 1 : start] == "\\"  # \nNAME=value
    return name[1:] if is_escape and _is_secret_option(name[1:]) else ""


def _is_guessed(text: str, head: re.Match[str]) -> bool:
    """Return whether the word after a head seems to be a secret."""
    word = GUESSED_WORD.match(text, head.end())
    if not word or not GUESSES[head.re](word[1]):
        return False
    before = re.split(r"[\n;|&]", text[max(0, head.start() - MAX_BEFORE) : head.start()])[-1]
    return head.re is not AFTER_OPTION or not HARMLESS_P.search(before)


def _line_end(text: str, head: re.Match[str]) -> int:
    """Return the end of a header or of a YAML line; inside quotes, it ends at the quote."""
    at, start = head.end(), head.start("name")
    before = text[max(0, start - INDENT) : start]
    line = None
    if HEADER.search(head["name"]) or STRING_START.search(before):
        line = HEADER_LINE.match(text, at)
    elif head["sep"][-1:].isspace() and LINE_START.search(before):
        line = WHOLE_LINE.match(text, at)
    return line.end() if line else at


def _word_end(text: str, at: int) -> int:
    """Return the end of a shell word: adjacent parts, with or without quotes, form one word."""
    begin, closed = at, False
    if text.startswith(REDACTED, at):  # the text after it was not part of the value before
        return at + len(REDACTED)
    while True:
        quote = ANY_QUOTE.match(text, at)
        glued = at == begin or GLUED.match(text, quote.end() if quote else at)
        if quote and glued:
            at, closed = _quoted_end(text, quote.end(), quote[0], outer=True)
        elif (bare := BARE.match(text, at)) and (not closed or glued):
            at, closed = bare.end(), False
        else:
            return at


def _quoted_end(text: str, at: int, quote: str, outer: bool = False) -> tuple[int, bool]:
    """Return where a quoted value ends (after its quote if `outer`), and whether it was closed.

    A value that is not closed ends with its line. A quote inside the value has more backslashes.
    In JSON of depth n a quote has k = 2**n - 1. Each backslash of the value adds 2 * (k + 1).
    """
    slashes = len(quote) - 1
    for found in QUOTE_OR_END.finditer(text, at):
        if not found["mark"]:
            return found.start(), False
        if found["mark"] != quote[-1]:
            continue
        more = len(found["slashes"]) - slashes
        if more < 0:  # the enclosing string ends
            return found.start(), False
        if more % (2 * (slashes + 1)) == 0:
            return (found.end() if outer else found.start() + more), True
    return len(text), False


def _redact_proxy(match: re.Match[str]) -> str:
    """Redact the password only; e-mail addresses, image digests and rank locations stay."""
    user, password, host = match["user"], match["password"], match["host"]
    number_of_host = password.isdigit() and not re.search(r":\d+$", host)
    if number_of_host or NO_USER.fullmatch(user) or NO_PASSWORD.fullmatch(password):
        return match[0]
    return match[0] if IMAGE_DIGEST.match(host) else f"{user}:{REDACTED}@{host}"


def _redact_bearer(match: re.Match[str]) -> str:
    """Redact a value that looks random; prose such as "basic functionality" stays."""
    by_lot = re.search(r"\d|=|[a-z][A-Z]", match["value"])
    return f"{match['scheme']}{match['sep']}{REDACTED}" if by_lot else match[0]
