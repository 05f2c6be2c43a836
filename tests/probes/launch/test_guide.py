"""The commands of a guide, and what is wrong with them."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from probes.check.recorder import Recorder
from probes.contract.contract import ContractError, parse
from probes.contract.terms import ClusterTerms, LaunchTerms
from probes.launch import guide
from probes.launch.controls import _find_guide
from probes.launch.guide import Command, GuideError, lint_guide, own_guide, parse_guide, read_guide
from probes.launch.judge import judge_guide
from reports.measurement import Verdict
from tests.support.controls import recorder as recorder_of
from tests.support.served import serving

GUIDE = """
# Our cluster

```sh
echo other
```

## Run a job

Some words.

```python
print("no command")
```

<!-- seatrial: skip -->

```bash
ray status
```

1. In a list:

   ```console
   $ module load ray
   Loaded ray
   $ ray job submit \\
   >   -- python train.py
   Job 'raysubmit_1' submitted successfully
   ```

### Its log

~~~shell
# a comment
ray job list
~~~

## Something else

```sh
false
```
"""


def typed(text: str, **more: str) -> list[str]:
    return [command.text for command in parse_guide("ours.md", text, **more).commands]


def test_the_shell_blocks_of_a_section_are_typed_in_their_order() -> None:
    assert typed(GUIDE, section="run a job") == [
        *("module load ray", "ray job submit \\", "  -- python train.py"),
        *("# a comment", "ray job list"),
    ]
    assert typed(GUIDE)[0] == "echo other"
    assert typed(GUIDE)[-1] == "false"


def test_each_command_knows_its_line() -> None:
    for command in parse_guide("ours.md", GUIDE).commands:
        assert GUIDE.splitlines()[command.line - 1].strip().endswith(command.text.strip())


def test_blocks_without_a_language_count_where_none_is_marked() -> None:
    assert typed("```\nray status\n```\n") == ["ray status"]
    assert typed("```\noutput\n```\n```sh\nray status\n```\n") == ["ray status"]
    assert typed("```{.sh}\na\n```\n````bash title=x\n```\nb\n````\n") == ["a", "```", "b"]


@pytest.mark.parametrize(
    ("text", "section", "says"),
    [
        ("# Nothing\n", None, "the guide ours.md has no commands: put them into a fenced block"),
        ("```python\nx\n```\n", None, "no commands"),
        ("# A\n```sh\n\n```\n", "A", "no commands under the heading 'A'"),
        ("```sh\n# B\ntrue\n```\n", "B", "has no heading 'B'"),
    ],
)
def test_a_guide_without_commands_is_refused(text: str, section: str | None, says: str) -> None:
    with pytest.raises(GuideError, match=says):
        parse_guide("ours.md", text, section=section)


def test_a_guide_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for name, content, says in (
        ("binary.md", b"\xff\xfe", "is not UTF-8 text: save it as UTF-8"),
        ("large.md", b"x" * ((1 << 20) + 1), "is too large: at most 1 MiB is read"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(GuideError, match=says):
            read_guide(str(tmp_path / name))
    for source in (str(tmp_path), str(tmp_path / "none.md"), "http://127.0.0.1:1/guide.md"):
        with pytest.raises(GuideError, match="cannot be read"):
            read_guide(source)


def test_a_guide_is_known_by_its_hash(tmp_path: Path) -> None:
    (tmp_path / "g.md").write_text(GUIDE)
    found = read_guide(str(tmp_path / "g.md"), "Run a job")
    assert (found.own, len(found.sha256)) == (False, 64)
    assert own_guide().own


# Its lint.


def found(line: str, *hosts: str) -> list[str]:
    return [found for _, found, _ in lint_guide([Command(1, line)], hosts)]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("sudo ray start", "runs a command as root (sudo)"),
        ("cd x && sudo -u ray ls", "runs a command as root (sudo)"),
        ("x=$(su root -c id)", "runs a command as root (su)"),
        ("apt-get install -y python3", "changes the system (apt-get)"),
        ("if true; then systemctl restart ray; fi", "changes the system (systemctl)"),
        ("/sbin/modprobe ib_core", "changes the system (/sbin/modprobe)"),
        ("sysctl -w net.core.rmem_max=1", "changes the system (sysctl -w)"),
        ("echo x > /etc/hosts", "writes to a system folder (> /etc/hosts)"),
        ("echo x >> /usr/local/x", "writes to a system folder (>> /usr/local/x)"),
        ("ssh gpu-login", "logs in to another machine (ssh)"),
        ("for n in a b; do pdsh -w $n ls; done", "logs in to another machine (pdsh)"),
        ("cd /home/alice/job", "names one user's home (/home/alice)"),
        ("export P=/root/x", "names one user's home (/root)"),
        ("ls ~bob/job", "names one user's home (~bob)"),
        ("export A=http://10.1.2.3:8265", "names a fixed address (10.1.2.3)"),
        ("ray job submit --address http://node0:8265", "names a node (node0)"),
        ("curl node0.cluster.example:80", "names a node (node0.cluster.example)"),
    ],
)
def test_a_line_that_is_not_for_every_user_is_found(line: str, says: str) -> None:
    assert found(line, "node0", "node1") == [says]


RIGHT = [
    *("# sudo is not needed", "ray job submit --working-dir . -- python train.py --ssh no"),
    *("export RAY_API_SERVER_ADDRESS=http://127.0.0.1:8265", "ray start --host 0.0.0.0"),
    *("cd $HOME/job", "cd ~/job", "cat /home", "pip install torch==2.13.0.1", "mkdir mounts"),
    *("python -m mount.x", "echo node01 node0-x my-node0 /node0", "cat ~/.ssh/config"),
    *("python3 x.py > /tmp/log", "echo /etc/hosts", "srun --nodes 4 ray symmetric-run"),
    *("kubectl apply -f job.yaml", "docker run --rm img:1.2.3", "echo 1.2.3.4.5 1.2.3.400"),
]


@pytest.mark.parametrize("line", RIGHT)
def test_a_line_for_every_user_is_right(line: str) -> None:
    assert found(line, "node0", "") == []


@pytest.mark.parametrize("hosts", [(), ("10.0.0.1",), ("alpha",)])
def test_without_a_name_that_is_surely_a_node_no_line_names_one(hosts: tuple[str, ...]) -> None:
    assert found("ray job submit --address http://alpha:8265", *hosts) == []


def test_a_text_of_the_guide_within_another_one_is_not_replaced() -> None:
    guide = parse_guide("ours.md", "```sh\nsubmit JOB_NAME JOB\n```\n")
    assert guide.script({"JOB": "train.py", "JOB_NAME": "mine"}) == "submit mine train.py\n"


@pytest.mark.near_miss("LAUNCH.guide_faults")
def test_a_guide_for_every_user_passes(recorder: Recorder) -> None:
    lines = "\n".join(RIGHT)
    judge_guide(parse_guide("ours.md", f"```sh\n{lines}\n```\n"), ["node0"], recorder)
    [measured] = recorder.finish("finished", 1.0).measurements
    assert (measured.value, measured.verdict) == (0, Verdict.PASS)


def test_our_own_guide_is_right() -> None:
    assert lint_guide(own_guide().commands, ["n0"]) == []


# Where it comes from.

FIRST = b"```sh\necho first\n```\n"
HASH = hashlib.sha256(FIRST).hexdigest()


class Changing(BaseHTTPRequestHandler):
    """Gives another guide each time, or leads elsewhere, or takes its time."""

    fetched = 0

    def do_GET(self) -> None:
        if self.path == "/slow":
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):
                for _ in range(20):
                    self.wfile.write(b"x")
                    time.sleep(0.1)  # between two bytes
        elif self.path == "/slow-header":
            with suppress(OSError):
                self.wfile.write(b"HTTP/1.0 200 OK\r\nX: ")
                for _ in range(20):
                    self.wfile.write(b"x")
                    time.sleep(0.1)  # between two bytes
        elif self.path == "/cut":
            self.send_response(200)
            self.send_header("Content-Length", str(2 * len(FIRST)))
            self.end_headers()
            self.wfile.write(FIRST)
        elif self.path == "/large":
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(b"x" * (2 << 20))
        elif self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/to/"))
            self.end_headers()
        else:
            type(self).fetched += 1
            text = FIRST if self.fetched == 1 else FIRST.replace(b"first", b"another")
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def server() -> Iterator[str]:
    Changing.fetched = 0
    with serving(Changing) as address:
        yield address


def test_a_guide_with_another_hash_is_not_followed(server: str, tmp_path: Path) -> None:
    (tmp_path / "g.md").write_bytes(FIRST)
    for source in (str(tmp_path / "g.md"), f"{server}/g.md"):
        assert read_guide(source, sha256=HASH).sha256 == HASH
    with pytest.raises(GuideError, match=rf"has sha256 .*\. Expected: {HASH} "):
        read_guide(f"{server}/g.md", sha256=HASH)


@pytest.mark.parametrize(
    "place", ["http://127.0.0.1:1/x", "ftp://127.0.0.1/x", "file:///etc/hosts"]
)
def test_a_guide_that_leads_to_another_way_is_not_followed(server: str, place: str) -> None:
    with pytest.raises(
        GuideError, match=r"it redirects to .* an https URL|to url 'file:.*not allowed"
    ):
        read_guide(f"{server}/to/{place}")


@pytest.mark.parametrize("path", ["slow", "slow-header"])
def test_a_guide_that_trickles_is_waited_for_until_one_deadline(
    server: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guide, "FETCH_SECONDS", 0.5)
    started = time.monotonic()
    with pytest.raises(GuideError, match=r"cannot be read: no complete answer within 0.5 s"):
        read_guide(f"{server}/{path}")
    assert time.monotonic() - started < 3


@pytest.mark.parametrize("rule", guide.read_rules().rule, ids=lambda rule: rule.found)
def test_each_rule_finds_its_example_and_not_the_harmless_line(rule: guide.LintRule) -> None:
    commands = [guide.Command(1, rule.example), guide.Command(2, rule.harmless)]
    [(command, does, why)] = guide.lint_guide(commands)
    assert (command.line, why) == (1, rule.why)
    assert does.startswith(rule.found)


@pytest.mark.parametrize(
    ("path", "says"),
    [("cut", "cannot be read: IncompleteRead"), ("large", "is too large: at most 1 MiB is read")],
)
def test_a_part_of_a_guide_is_no_guide(server: str, path: str, says: str) -> None:
    with pytest.raises(GuideError, match=says):
        read_guide(f"{server}/{path}")


def test_a_guide_that_drips_on_to_the_deadline_is_not_taken_for_whole(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread's deadline may come first: what it has by then is torn."""
    monkeypatch.setattr(guide, "FETCH_SECONDS", 0.3)
    content: Future[bytes] = Future()
    guide._read_url(f"{server}/slow", content)
    assert isinstance(content.exception(timeout=0), TimeoutError)


def test_a_guide_is_fetched_once_a_run_and_its_hash_is_recorded(server: str) -> None:
    launch = LaunchTerms(document=f"{server}/g.md", values={"x": "{command}"}, sha256=HASH)
    terms, one, other = ClusterTerms(launch=launch), recorder_of("LAUNCH"), recorder_of("LAUNCH")
    assert [_find_guide(terms, one).sha256 for _ in range(3)] == [HASH] * 3
    assert Changing.fetched == 1
    noted = one.finish("finished", 1.0).measurements
    assert {(each.name, each.value, each.judged) for each in noted} == {
        ("sha256_of_guide", HASH, False)
    }
    with pytest.raises(GuideError, match="has sha256"):  # another run
        _find_guide(terms, other)


def launch_terms(text: str) -> LaunchTerms:
    """The terms of a contract's [launch]."""
    table = f'schema = 1\n[launch]\n{text}\n[launch.values]\nx = "{{command}}"\n'
    return parse(table.encode(), "c.toml").cluster.launch


def test_a_contract_names_where_a_guide_comes_from() -> None:
    for document in ("ours.md", "/srv/ours.md", "https://x.example/ours.md"):
        assert launch_terms(f'document = "{document}"').sha256 is None
        assert launch_terms(f'document = "{document}"\nsha256 = "{HASH}"').sha256 == HASH
    plain = f'document = "http://x.example/ours.md"\nsha256 = "{HASH}"'
    assert launch_terms(plain).document == "http://x.example/ours.md"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('document = "http://x.example/g.md"', "expected sha256 with 'http://x.example/g.md'"),
        ('document = "ftp://x.example/g.md"', "'document': expected a path, or an https URL"),
        (
            'document = "https://x/\\u001b[31m"',
            "of printable characters, found 'https://x/\\x1b[31m'",
        ),
        ('document = "file:///g.md"', "'document': expected a path, or an https URL"),
        ('document = "HTTPS://x.example/g.md"', "'document': expected a path, or an https URL"),
        ('document = "g.md"\nsha256 = "abc"', "'sha256': expected 64 hex digits"),
        ('document = "g.md"\nlaunchers = "torchrun"', "'launchers': expected a list, found"),
        ('document = "g.md"\nlaunchers = ["mpirun"]', "'launchers.0': expected 'torchrun' or"),
        ('document = "g.md"\nlaunchers = []', "'launchers': expected 1 or more"),
    ],
)
def test_a_contract_with_another_way_to_a_guide_is_refused(text: str, says: str) -> None:
    with pytest.raises(ContractError) as refused:
        launch_terms(text)
    assert says in str(refused.value)


def test_a_hash_without_a_guide_is_refused() -> None:
    with pytest.raises(ContractError, match="expected `document` \\(the guide\\) with sha256"):
        parse(f'schema = 1\n[launch]\nsha256 = "{HASH}"\n'.encode(), "c.toml")


def test_a_contract_names_the_launchers_that_jobs_may_use() -> None:
    terms = parse(b'schema = 1\n[launch]\nlaunchers = ["torchrun"]\n', "c.toml").cluster.launch
    assert terms.launchers == ("torchrun",)
