"""Tables of the redactor: forms of tokens, commands that take passwords, words for "password".

A new form is a line here, and one in tests/reports/test_redact.py.
"""

from __future__ import annotations

import re
from math import log2

# What a token looks like, by its vendor.  Lengths are lower bounds where a vendor has changed them.
# Sources: the vendor's own page where one is named, otherwise the rule of that name in
# gitleaks' config/gitleaks.toml.
TOKENS = {
    "Hugging Face": r"hf_[A-Za-z0-9]{16,}",
    "GitHub": r"gh[oprsu]_[A-Za-z0-9]{16,}|github_pat_\w{16,}",  # docs.github.com
    "GitLab": r"glpat-[\w-]{12,}",
    "AWS": r"A[KS]IA[A-Z0-9]{12,}",  # IAM's reference of identifiers
    "Google": r"AIza[\w-]{30,}|ya29\.[\w-]{16,}",
    "JWT": r"eyJ[\w.+/=-]{12,}",  # RFC 7519: base64 of {"
    "OpenAI, Anthropic": r"sk-[\w-]{16,}",
    "Slack": r"xox[abeprs]-[\w-]{10,}",
    "NVIDIA": r"nvapi-[\w-]{16,}",
    "Docker": r"dckr_(?:pat|oat)_[\w-]{16,}",
    "Vault": r"hv[sbr]\.[\w-]{16,}",
    "npm": r"npm_[A-Za-z0-9]{30,}",
    "PyPI": r"pypi-AgE[\w-]{16,}",
    "Databricks": r"dapi[a-f0-9]{32}(?:-\d)?",
    "Stripe": r"[rs]k_(?:live|test|prod)_[A-Za-z0-9]{10,}|whsec_[A-Za-z0-9]{24,}",
    "Twilio": r"SK[0-9a-fA-F]{32}(?![0-9a-zA-Z])",
    "Telegram": r"(?:bot)?\d{5,16}:A[\w-]{34}(?![\w-])",  # core.telegram.org/bots/api
    "Tailscale": r"tskey-[\w-]{16,}",  # tailscale.com/kb: prefixes of keys
    "age": r"AGE-SECRET-KEY-(?:PQ-)?1[0-9A-Z]{20,}",  # age(1): Bech32 in capitals
    "SendGrid": r"SG\.[\w-]{16,64}\.[\w-]{16,}",
    "DigitalOcean": r"do[opr]_v1_[a-f0-9]{64}",
    "Groq": r"gsk_[A-Za-z0-9]{32,}",
    "Replicate": r"r8_[A-Za-z0-9]{32,}",
    "Grafana": r"gl(?:sa|c)_[A-Za-z0-9+/=]{32,}(?:_[A-Fa-f0-9]{8})?",
    "Pulumi": r"pul-[a-f0-9]{40}",
    "Linear": r"lin_api_[A-Za-z0-9]{32,}",
    "Supabase": r"sbp_[a-f0-9]{40}",
    "New Relic": r"NRAK-[A-Za-z0-9]{27}",
    "Shopify": r"shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}",
    "PlanetScale": r"pscale_(?:pw|tkn|oauth)_[\w=.-]{32,}",
    "Alibaba": r"LTAI[A-Za-z0-9]{20}",
    "Azure": r"[\w~.]{3}\dQ~[\w~.-]{31,34}",
    "Perplexity": r"pplx-[A-Za-z0-9]{40,}",
    "wandb": r"wandb_v1_[\w-]{20,}",
}

# Programs whose option takes a password: name, options; where "glued", only without a blank
# (`mysql -p db` asks for the password, and names a database).  Sources: their manuals.
PASSWORD_OPTIONS = (
    (r"sshpass", "-p", ""),
    (r"(?:mysql|mariadb)[\w-]*", "-p", "glued"),
    (r"(?:docker|podman|nerdctl|buildah|skopeo|oras|regctl|helm|oc|az|crane)\b[^\n;|&]{0,40}?"
     r"[ \"']login", "-p", ""),
    (r"mongo(?:sh|dump|restore|export|import|stat|top)?", "-p", ""),
    (r"cqlsh|racadm|redfishtool", "-p", ""),
    (r"ipmitool|sqlcmd|mosquitto_(?:pub|sub)", "-P", ""),
    (r"redis-cli", "-a", ""),
    (r"ldap(?:search|add|modify|delete|passwd|whoami|modrdn|compare)", "-w", ""),
    (r"7z[arz]?", "-p", "glued"),
    (r"(?:un)?zip", "-P", ""),
)  # fmt: skip
# Commands whose argument is a secret if it looks random: `wandb login failed` has none.
LOGIN_COMMANDS = r"(?:wandb|weave|huggingface-cli|hf auth|comet|neptune|clearml) login"
TOPIC_COMMANDS = r"ntfy (?:pub(?:lish)?|sub(?:scribe)?|send|trigger)"

# "Password" in other languages, as names spell it: German, Italian and Turkish, Spanish, French,
# Portuguese, Dutch, Swedish, Polish, Czech, Finnish.
FOREIGN_WORDS = (
    r"passwort|kennwort|losungswort|parola|contrase(?:n|_|\u00f1)a|mot_?de_?passe|senha|wachtwoord"
    r"|losenord|haslo|heslo|salasana"
)

# Programs whose -p is a folder's parents, a port, a partition, a plugin, a time stamp, a process.
HARMLESS_P = re.compile(
    r"\b(?:mkdir|install|s?cp|ssh|sftp|rsync|tar|touch|patch|pytest|python[\d.]*|nmap|ps|pgrep|pstree"
    r"|top|nc|ncat|psql|redis-cli|srun|sbatch|salloc|squeue|sinfo|sacct|scontrol|lsof|perf|strace|git"
    r"|cargo|make|(?:docker|podman|nerdctl)\b.{0,40}\b(?:run|create|compose))\b"
)

MIN_LOOSE, MIN_STRICT = 7, 12  # characters of a word that may be a secret
MIN_CHANGES = 4  # between letters and digits, or large and small: a time stamp has three
MIN_ENTROPY = 3.0  # bits a character: words, numbers and names of hosts have less, or no digit
HEXADECIMAL = re.compile(r"(?:0x)?[0-9a-fA-F]+")  # of a commit, a digest, an id
# How a path, a URL, an option or a variable begins.
NO_SECRET = re.compile(r"[/~$<{%]|\.{1,2}/|[a-z+]+://|--?[a-z]|[A-Z_]+=")
CHANGE = re.compile(r"(?<=[a-z])(?=[A-Z0-9])|(?<=[A-Z])(?=[0-9])|(?<=[0-9])(?=[A-Za-z])")


def may_be_password(word: str) -> bool:
    """Return whether a word after "password" or `login` is none of a sentence: it has a digit.

    A sign other than a mark of punctuation counts as a digit does.
    """
    word = word.rstrip(".,;:!?)]}\"'")
    has_letter, has_sign = re.search("[A-Za-z]", word), re.search(r"[0-9!@#$%^&*+=]", word)
    return len(word) >= MIN_LOOSE and bool(has_letter and has_sign) and not NO_SECRET.match(word)


def looks_random(word: str) -> bool:
    """Return whether a word after an unknown `-p` or `login` was made by chance.

    Names of files, hosts, partitions, commits and times are not.
    """
    if NO_SECRET.match(word) or "/" in word:
        return False
    return any(
        len(part) >= MIN_STRICT
        and not HEXADECIMAL.fullmatch(part)
        and len(CHANGE.findall(part)) >= MIN_CHANGES
        and _entropy(part) >= MIN_ENTROPY
        for part in re.split(r"[._:,@-]", word)
    )


def _entropy(word: str) -> float:
    """Return Shannon's entropy of a word, bits a character."""
    shares = [word.count(sign) / len(word) for sign in set(word)]
    return -sum(share * log2(share) for share in shares)
