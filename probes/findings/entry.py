"""One entry of the catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from reports.record import Cause, RepairStep, Severity

# Prompt of a step -> where it is run.  Without a prompt: on the named node.
PLACES = {
    "driver": "the driver's machine",
    "head": "the head",
    "other": "another node",
    "outside": "a machine outside the cluster",
    "peer": "{peer}",
}
NAMED_NODE = "{node}"
# Shows variables of the environment that workers of Ray inherit; a pattern for grep follows.
RAY_ENVIRONMENT = 'pgrep -o raylet | xargs -I % cat /proc/%/environ | tr "\\0" "\\n" | grep -E '


@dataclass(frozen=True)
class Entry:
    """Meaning, cause, severity, and what to do about one code.

    `steps` maps a command to what its answers mean.  A command of another machine than the named
    node begins with a prompt, as `head$ ray status`.  `remedy` is the whole advice in sentences.
    """

    meaning: str
    cause: Cause
    severity: Severity
    order: str
    steps: Mapping[str, str]
    mended: str
    remedy: str

    def list_steps(self) -> list[RepairStep]:
        """List the steps, with the place of each."""
        return [make_step(text, means) for text, means in self.steps.items()]


def make_step(text: str, means: str) -> RepairStep:
    """Make a step of `prompt$ command`, or of a command for the named node."""
    prompt, _, command = text.rpartition("$ ")
    return RepairStep(command=command, means=means, on=PLACES[prompt] if prompt else NAMED_NODE)
