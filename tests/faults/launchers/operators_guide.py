"""Writes an operator's own guide for a lab, and the contract that names it."""

from __future__ import annotations

import sys

from tests.lab.lab import Lab
from tests.support.trial import agreed

GUIDE = """# Our cluster

## Before

```sh
exit 9
```

## Run a job

```sh
export PATH=RAY-BIN:$PATH
cd YOUR-CODE
ray job submit --working-dir . --runtime-env-json '{"env_vars": {"STAGE": "one"}}' \\
  -- YOUR-COMMAND
```
"""


def operators(lab: Lab, guide: str) -> str:
    """Write the operator's guide, and the contract that names it; return the contract's path."""
    (lab.home / "shared" / "guide.md").write_text(guide)
    programs = lab.home / "shared" / "programs"  # a guide with a path below /home has a fault
    programs.unlink(missing_ok=True)
    programs.symlink_to(sys.executable.rpartition("/")[0])
    terms = [
        "[launch]",
        'document = "guide.md"',
        'section = "Run a job"',
        "[launch.values]",
        'RAY-BIN = "/shared/programs"',
        'YOUR-CODE = "{folder}"',
        'YOUR-COMMAND = "{command}"',
        "[launch.variables]",
        'STAGE = "one"',
    ]
    return agreed(lab, {}, "\n".join(terms))
