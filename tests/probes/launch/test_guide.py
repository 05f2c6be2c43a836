"""The commands of a guide, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from probes.check.recorder import Recorder
from probes.launch.guide import Command, GuideError, lint_guide, own_guide, parse_guide, read_guide
from probes.launch.judge import judge_guide
from reports.measurement import Verdict

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
        ("# Nothing\n", None, "the guide ours.md has no commands: expected a fenced block"),
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
        ("binary.md", b"\xff\xfe", "expected text in UTF-8"),
        ("large.md", b"x" * ((1 << 20) + 1), "expected at most 1 MiB"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(GuideError, match=says):
            read_guide(str(tmp_path / name))
    for source in (str(tmp_path), str(tmp_path / "none.md"), "http://127.0.0.1:1/guide.md"):
        with pytest.raises(GuideError, match="cannot be read"):
            read_guide(source)


def test_a_guide_is_known_by_its_hash(tmp_path: Path) -> None:
    (tmp_path / "g.md").write_text(GUIDE)
    guide = read_guide(str(tmp_path / "g.md"), "Run a job")
    assert (guide.own, len(guide.sha256)) == (False, 64)
    assert own_guide().own


# Its lint.


def found(line: str, *hosts: str) -> list[str]:
    return [fault.found for fault in lint_guide([Command(1, line)], hosts)]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("sudo ray start", "runs a command as root (sudo)"),
        ("cd x && sudo -u ray ls", "runs a command as root (sudo)"),
        ("x=$(su root -c id)", "runs a command as root (su)"),
        ("apt-get install -y python3", "changes the machine (apt-get)"),
        ("if true; then systemctl restart ray; fi", "changes the machine (systemctl)"),
        ("/sbin/modprobe ib_core", "changes the machine (/sbin/modprobe)"),
        ("sysctl -w net.core.rmem_max=1", "changes the machine (sysctl -w)"),
        ("echo x > /etc/hosts", "writes into the system (> /etc/hosts)"),
        ("echo x >> /usr/local/x", "writes into the system (>> /usr/local/x)"),
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


@pytest.mark.near_miss("LAUNCH.guide_faults")
def test_a_guide_for_every_user_passes(recorder: Recorder) -> None:
    lines = "\n".join(RIGHT)
    judge_guide(parse_guide("ours.md", f"```sh\n{lines}\n```\n"), ["node0"], recorder)
    [measured] = recorder.finish("finished", 1.0).measurements
    assert (measured.value, measured.verdict) == (0, Verdict.PASS)


def test_our_own_guide_is_right() -> None:
    assert lint_guide(own_guide().commands, ["n0"]) == []
