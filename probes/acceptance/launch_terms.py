"""The [launch] table of a contract: whose guide a user follows, and how."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from probes.acceptance.validation import check_text
from reports.redact import is_secret_name

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
COMMAND = "{command}"  # in [launch.values]


class LaunchTerms(BaseModel):
    """Terms of LAUNCH: whose guide a user follows, and how."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    document: str | None = Field(
        default=None,
        description="The operator's guide: a path from the contract's folder, or a URL. Without "
        "it, seatrial's own guide is followed.",
    )
    section: str | None = Field(
        default=None,
        description="Heading above the commands, if not all fenced blocks of the guide are meant.",
    )
    user: Literal["own"] | None = Field(
        default=None,
        description='"own" where the parties agree that the user who runs the suite is an ordinary '
        "one.",
    )
    launchers: tuple[Literal["torchrun", "ray-train"], ...] = Field(
        default=("torchrun", "ray-train"),
        min_length=1,
        description="Launchers, in addition to seatrial's own, that jobs may use (tier soak).",
    )
    values: dict[str, str] = Field(
        default={},
        description="Texts of the guide, and what a user types instead. One value must have "
        "`{command}`, the command that starts the user's job on Ray. `{folder}` is the folder with "
        "the job's code, `{name}` a name of its own. `{dashboard}`, `{nodes}`, `{ranks}` and "
        "`{shared}` are the cluster's.",
    )
    variables: dict[str, str] = Field(
        default={},
        description="Variables that the guide gives to the job, and that each rank must have.",
    )

    @field_validator("document", "section")
    @classmethod
    def _check_words(cls, value: str | None) -> str | None:
        if value is not None:
            check_text(value, "text")
        return value

    @field_validator("variables")
    @classmethod
    def _check_variables(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if not VARIABLE.fullmatch(name):
                raise ValueError(f"expected the name of a variable, found {name!r}")
            if is_secret_name(name):
                raise ValueError(
                    f"{name} may be a secret, and the report shows the ranks' values: leave it out"
                )
        return value

    @model_validator(mode="after")
    def _check_guide(self) -> LaunchTerms:
        if self.document is None:
            given = [key for key in ("section", "values", "variables") if getattr(self, key)]
            if given:
                raise ValueError(f"expected document, the guide that {given[0]} belongs to")
            return self
        if any(not text.strip() for text in self.values):
            raise ValueError("values: expected texts of the guide, found an empty one")
        if not any(COMMAND in value for value in self.values.values()):
            raise ValueError(
                f'values: expected one with {COMMAND}, as "python train.py" = "{COMMAND}": the '
                "user's job, whose ranks are judged, takes the place of the guide's own"
            )
        return self
