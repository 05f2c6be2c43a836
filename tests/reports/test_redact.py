"""The one redactor: every form of a secret goes, and what is evidence stays."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.cluster.variables import known_variables
from reports.record import RunRecord
from reports.redact import REDACTED, is_secret_name, redact, redact_text
from tests.support.paths import REPO

SECRET = "hunter2XQ"
RECORDINGS = REPO / "tests" / "recordings"
FORMS = {  # with %s for the secret
    "JSON": '{"password": "%s", "n": 8}',
    "JSON with a quote in it": r'{"password": "a\"%s", "n": 8}',
    "single quotes": "{'password': '%s'}",
    "bytes": "env={'AWS_SECRET_ACCESS_KEY': b'%s'}",
    "JSON in an environment": """TORCH_X='{"password":"%s"}'""",
    "YAML": "HF_TOKEN: %s",
    "YAML of many words": "a: 1\npassword: correct horse %s battery\nb: 2",
    "YAML block": "password: |\n  ab\n  %s\nnext: 1",
    "TOML": 'api_key = "%s"',
    "not closed": 'token = "%s',
    "environment": "HF_TOKEN=%s python train.py",
    "glued quotes": """HF_TOKEN="ab"'%s'cd""",
    "inside another": "cmd=TOKEN=%s",
    "beside a switch": "auth: none token=%s",
    "source": "os.environ['HF_TOKEN'] = '%s'",
    "Kubernetes": "- name: HF_TOKEN\n  value: %s",
    "Kubernetes as JSON": '{"name": "HF_TOKEN", "value": "%s"}',
    "pass": '{"user": "joe", "pass": "%s"}',
    "two words": "API key: %s",
    "apostrophe in JSON": '{"password": "it\'s %s"}',
    "arrow": "secret => '%s'",
    "connection string": "AccountName=x;AccountKey=%s==;Suffix=y",
    "header": "X-Api-Key: %s",
    "header of a command": "curl -H 'X-Auth-Token: %s' http://x",
    "cookie": "Cookie: a=b; sid=%s; x",
    "cookie set": "Set-Cookie: s=%s; HttpOnly",
    "authorization": "Authorization: token ghp_%s",
    "bearer": "curl -H 'Authorization: Bearer %s' x",
    "basic": "Authorization: Basic %s",
    "header as a pair": "[('Authorization', 'Bearer %s')]",
    "-u": "curl -u user:%s x",
    "--user": "curl --user 'user:a %s' x",
    "option": "run --token %s -v",
    "option over lines": "run --password \\\n  %s",
    "option, quoted": "['x', '--token', '%s']",
    "-u, quoted": "['curl', '-u', 'bob:%s']",
    "sshpass": "sshpass -p %s ssh h",
    "sshpass, glued": "sshpass -p'%s' ssh h",
    "sshpass, quoted": "['sshpass', '-p', '%s']",
    "sig": "https://h/?sig=%s&x=1",
    "amazon": "https://h/?a=1&X-Amz-Signature=%s",
    "query": "https://h/?a=1&token=%s",
    "proxy": "https_proxy=user:%s@proxy:3128",
    "proxy with a slash": "user:pa/%s@proxy",
    "URL": "https://u:%s@host/x",
    "URL with an @": "https://u:p@%s@host/x",
    "URL with a slash": "http://user:pa/%s@proxy",
    "URL with a question mark": "http://user:pa?%s@proxy",
    "URL with a quote": "http://user:pa'%s@proxy",
    "URL of escaped slashes": "https:\\/\\/u:%s@h",
    "Slack": "https://hooks.slack.com/services/T0/B0/%s",
    "Discord": "https://discord.com/api/webhooks/1/%s",
    "Teams": "https://x.webhook.office.com/webhookb2/%s",
    "PEM": "-----BEGIN RSA PRIVATE KEY-----\nMII\n%s\n-----END RSA PRIVATE KEY-----",
    "PEM, escaped": r"-----BEGIN PRIVATE KEY-----\nMII\n%s\n-----END PRIVATE KEY-----",
    "PEM, cut off": "-----BEGIN OPENSSH PRIVATE KEY-----\nMII\n%s",
    "hf": "got hf_%sabcdefghijkl here",
    "ghp": "got ghp_%sabcdefghijkl here",
    "ghs": r"line\nghs_%sabcdefghijkl",
    "github_pat": "github_pat_11AB_%sabcdefghijkl",
    "jwt": "got eyJhbGciOi%s.eyJzdWIi.c2ln here",
    "sk": "sk-proj-%sabcdefghijkl",
    "xoxb": "xoxb-123-%s",
    "glpat": "glpat-%sabcdef",
    "nvapi": "nvapi-%sabcdefghijkl",
}
PLAIN = """\
PASS=1
PASS: 6
pass: all limits hold
passed: 5, PASS_COUNT=3, pass_rate: 99%
bypass=1 pass_through: true first_pass: fast forward_pass: 12ms
tokens_per_s: 8000
tokens=4096, tokens: 4,096 per step, max_tokens: many
{"tokens": 512, "token": 4}
SCALE-TOKENS: too few tokens
tokens.weight: 0x1f token_embedding.weight: 0.1
key: fab0
{"key": "fab0", "value": "x", "keys": "a, b"}
sorted(x, key=lambda item: item[1], sort_keys=True)
public_key: ssh-ed25519, P_Key: 0xffff, NCCL_IB_PKEY=0x8001, key_id: ABC
monkey=1 keyboard=us compass: north author: x authors=3
signature: (a, b) -> c
RAY_AUTH_MODE=token auth_mode=token
RAY_AUTH_TOKEN_PATH=/home/joe/token PWD=/home/joe
--password-stdin docker.io --token-file /x --key /home/joe/id
node1:12345:12399 [0] NCCL INFO comm 0x55d0a0 rank 0 nranks 8 cudaDev 0 busId 1b000 - Init COMPLETE
NCCL INFO NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>
10.77.0.1:6379 -> 10.77.0.2:8265, 10.0.0.1:6379@5, mlx5_0:1@node3
fe80::1ff:fe23:4567:890a%eth0 [2001:db8::1]:8080
seatrial_busbw{criterion="FABRIC",subject="4 nodes"} 376.2
2026-11-20T22:17:03.120Z 12:30:11 user@host:/path
GPU-5a1b2c3d-1111-2222-3333-444455556666
sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
rayproject/ray:2.40@sha256:e3b0c44298fc1c149afbf4c8996fb924 commit 7b46e02f1cafe00e3b0c44298fc1c149
joe.doe@example.com mailto:joe@example.com contact:joe@example.com git@github.com:org/repo.git
git+https://github.com/org/repo@main http://host:8265/api/jobs/x@1 https://h/x?mail=a@b
libc.so.6:memcpy@GLIBC_2.14 nccl:2.27@cu12
probes/gang/test_gang.py::test_token[a-b] PASSED reports/token.py:12: in foo
KeyError: 'HF_TOKEN'
docker run -u 1000:1000 --user 0:0 img; python -u train.py
Basic functionality works, said the bearer certificates
bash: sshpass: command not found
task-abcdefghijklmnopqrstuvwxyz disk-0123456789abcdefghij
-----BEGIN CERTIFICATE-----
TOKENIZERS_PARALLELISM=false
def f(token: str, flag: bool) -> None
""".splitlines()


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_secret_goes_also_out_of_json_in_json(form: str) -> None:
    text = form.replace("%s", SECRET)
    for _ in range(4):  # as it is, and in strings of JSON up to three deep
        assert SECRET not in redact_text(text)
        assert SECRET not in json.dumps(redact({"a": [text]}))
        assert redact_text(redact_text(text)) == redact_text(text)
        text = json.dumps({"a": text, "b": 1})
        assert redact_text(text).endswith('"b": 1}')


@pytest.mark.parametrize("text", PLAIN)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact_text(text) == text
    assert redact({"a": [text], text: 1}) == {"a": [text], text: 1}


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('{"password": "x", "n": 8}', '{"password": "<redacted>", "n": 8}'),
        ("curl -u bob:x http://h", "curl -u bob:<redacted> http://h"),
        ("A=1 HF_TOKEN=x B=2", "A=1 HF_TOKEN=<redacted> B=2"),
        ("https://u:p@h:1/x?token=y&z=1", "https://<redacted>@h:1/x?token=<redacted>&z=1"),
        ("a: 1\nX-Api-Key: x y\nb: 2", "a: 1\nX-Api-Key: <redacted>\nb: 2"),
        ("proxy=joe:x@proxy:3128 n=1", "proxy=joe:<redacted>@proxy:3128 n=1"),
        (r"TOKEN=x\nNEXT=1", r"TOKEN=<redacted>\nNEXT=1"),
        ("sk-abcdefghijklmnop1 n7", "<redacted> n7"),
    ],
)
def test_what_stands_around_a_secret_stays(text: str, left: str) -> None:
    assert redact_text(text) == left


def test_lines_of_a_key_that_come_one_by_one_go_when_they_are_put_together() -> None:
    lines = ["-----BEGIN PRIVATE KEY-----", SECRET, "-----END PRIVATE KEY-----", "step 1"]
    text = redact_text("\n".join(map(redact_text, lines)))
    assert SECRET not in text
    assert text.endswith("step 1")


@pytest.mark.parametrize(
    "facts",
    [
        {"NCCL_PSK": SECRET},
        {"DB_PASS": SECRET, "n": 1},
        {"credentials": {"wandb": SECRET}},
        {"api_keys": [{"x": [SECRET]}]},
        {"name": "HF_TOKEN", "value": SECRET},
        {"variable": "NCCL_PSK", "value": SECRET},
        {f"HF_TOKEN={SECRET}": 1},
        ["run", "--token", SECRET],
        ["curl", "-u", f"bob:{SECRET}"],
        ["/usr/bin/sshpass", "-v", "-p", SECRET],
        [["Authorization", f"Bearer {SECRET}"]],
        ({"password": (SECRET,)},),
    ],
    ids=str,
)
def test_a_secret_is_known_by_its_place_in_nested_facts(facts: Any) -> None:
    hidden = redact(facts)
    assert SECRET not in json.dumps(hidden)
    assert redact(hidden) == hidden


def test_facts_keep_what_is_none() -> None:
    facts = {
        "credentials": {"path": "/x", "enabled": True, "none": None},
        "auth": {"mode": "token"},
        "pass": 6,
        "names": ["token", "bucket"],
        "limit": [{"name": "tokens_per_s", "value": 8000.5}],
    }
    assert redact(facts) == facts
    assert redact({"password": 1234, "PASSWORD_SET": True}) == {
        "password": REDACTED,
        "PASSWORD_SET": True,
    }


def test_two_fields_whose_names_become_equal_both_stay() -> None:
    names = [f"hf_{letter * 20}" for letter in "abc"]
    assert sorted(redact({name: at for at, name in enumerate(names)}).values()) == [0, 1, 2]


@pytest.mark.parametrize(
    ("secret", "names"),
    [
        (True, "HF_TOKEN_2 X-Amz-Security-Token authToken HFToken clientSecret SSHPASS REDIS_PWD"),
        (True, "secret_key_base storage_key AWS_ACCESS_KEY_ID auth cookie Set-Cookie api_keys"),
        (False, "key keys tokens PASS signature key_id primary_key sort_keys tokens_per_s"),
        (False, "token_count token_path AUTH_MODE password_file forward_pass author passed"),
    ],
)
def test_names(secret: bool, names: str) -> None:
    assert [name for name in names.split() if is_secret_name(name) is not secret] == []


def test_no_field_of_the_record_and_no_variable_of_nccl_but_its_key_has_a_secret_name() -> None:
    names = json.dumps(RunRecord.model_json_schema()["$defs"]).replace('"', " ").split()
    assert [name for name in names if is_secret_name(name)] == []
    secret = {name for name in known_variables().names if is_secret_name(name)}
    assert {name for name in secret if "PSK" not in name} == set()


def evidence_files() -> list[Path]:
    """The files of all recorded runs that a run itself wrote down."""
    runs = [path.parent for path in RECORDINGS.rglob("events.jsonl")]
    assert len(runs) > 20
    return [path for run in runs for path in [run / "events.jsonl", *run.glob("evidence/*")]]


@pytest.mark.parametrize("path", evidence_files(), ids=lambda path: str(path)[-60:])
def test_nothing_of_a_recorded_run_is_redacted_but_its_known_secret(path: Path) -> None:
    known = '"HF_TOKEN": "hf_abcdef"'
    text = path.read_text(encoding="utf-8", errors="replace")
    wanted = text.replace(known, known.replace("hf_abcdef", REDACTED))
    assert redact_text(text) == wanted
    if path.name == "events.jsonl":
        for line, left in zip(text.splitlines(), wanted.splitlines(), strict=True):
            if line.endswith("}"):  # not the torn line of a run that was killed
                assert redact(json.loads(line)) == json.loads(left)


def test_lines_of_nccl_stay() -> None:
    files = [RECORDINGS / "generate" / "nccl_logs.py", *RECORDINGS.glob("goldens/nccl-*.txt")]
    files += (REPO / "tests" / "probes" / "nccl").glob("test_*.py")
    lines = [line for path in files for line in path.read_text().splitlines() if "NCCL" in line]
    assert len(lines) > 100
    assert [line for line in lines if redact_text(line) != line] == []


LEAF = st.one_of(st.integers(), st.text(max_size=8), st.sampled_from(PLAIN))
KEYS = st.sampled_from(["a", "env", "key", "value", "lines", "pass", "name"])


@st.composite
def facts_with_a_secret(draw: st.DrawFn) -> Any:
    """Nested facts that hold one form of a secret, as a value, in a text, or in a key."""
    held: Any = draw(st.sampled_from(sorted(FORMS.values()))).replace("%s", SECRET)
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["dict", "list", "key", "text"]))
        if kind == "text":
            held = json.dumps(held)
        elif kind == "list":
            held = [draw(LEAF), held, draw(LEAF)]
        else:
            pair = (held, draw(LEAF)) if kind == "key" and isinstance(held, str) else None
            held = {draw(KEYS): draw(LEAF), **dict([pair or (draw(KEYS), held)])}
    return held


@settings(max_examples=300, deadline=None, derandomize=True)
@given(facts_with_a_secret())
def test_no_form_of_a_secret_survives_anywhere_in_nested_facts(facts: Any) -> None:
    hidden = redact(facts)
    assert SECRET not in json.dumps(hidden)
    assert redact(hidden) == hidden


SOUP = [*'"=: \\,{}[]()|@?&-', "\n", r"\n", "password", "token", "key", "u:p@h", "//", "http://",
        "--token", "-u ", "Cookie: ", "Authorization: ", "Bearer ", "<redacted>", "HF_TOKEN", "b'",
        "sshpass -p ", "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", "hf_" + "a1" * 9,
        "name: ", "value: ", "a1", "pass"]  # fmt: skip


@settings(max_examples=500, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(SOUP), max_size=14).map("".join))
def test_redacting_again_changes_nothing(text: str) -> None:
    assert redact_text(redact_text(text)) == redact_text(text)


UNITS = [
    "a:", "=", "-u ", "@", "a", " ", "\\", "a:b@", "=a:b", "a.", "://", "http://a:", "key=", "x:",
    "token", "token=", 'token="', "token='", "pass: ", "api key: ", "--token ", "-u a:", "sk-",
    "-----BEGIN PRIVATE KEY-----", "-", "sshpass -p ", "Bearer ", "?sig=", "key=x&", 'Cookie:="',
    "\npassword: |\n a", "name: token_key\\", "('Token', '", "hooks.slack.com/services/",
]  # fmt: skip
STARTS = ["token=", "Cookie: ", '"password": "', "-u a:", "http://a:", "x:", "token: |\\n "]


def seconds(text: str) -> float:
    """CPU seconds: another process on the machine must not decide."""
    start = time.process_time()
    redact_text(text)
    return time.process_time() - start


@pytest.mark.parametrize("unit", [*UNITS, *(start + "\0" for start in STARTS)], ids=repr)
def test_hostile_text_takes_time_in_proportion(unit: str) -> None:
    start, marked, _ = unit.partition("\0")
    units = ["\\", "\\n", "=", "@", "'"] if marked else [unit]
    for again in units:
        small, large = ((start if marked else "") + again * (size // len(again)) for size in SIZES)
        # 4 times the text: 4 times as long, and 16 times if it were squared; 10 is between.
        assert seconds(large) < max(10 * seconds(small), 0.3), repr(again)


SIZES = (2**14, 2**16)
