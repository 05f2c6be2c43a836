"""Says in one sentence what pytest's parser refuses: its own message also prints its usage."""

from __future__ import annotations

import re
from collections.abc import Generator

import pytest

from probes.spelling import closest_name
from probes.terminal.options import OPTIONS


class OwnVoice:
    """Plugin for `pytest.main`: one sentence for arguments that pytest does not know."""

    @pytest.hookimpl(wrapper=True)
    def pytest_cmdline_parse(self) -> Generator[None, object, object]:
        """Shorten a usage error of pytest's parser."""
        try:
            return (yield)
        except pytest.UsageError as error:
            raise pytest.UsageError(shorten_usage_error(str(error))) from None


def shorten_usage_error(message: str) -> str:
    """Return what the parser refuses; for an option of the suite, that it stands before `--`."""
    found = re.search(r"^.*: error: (.*)$", message, re.MULTILINE)
    if found is None:
        return message
    text = f"pytest refuses what stands after `--`: {found[1]}"
    names = [option.name for option in OPTIONS]
    unknown = re.findall(r"(--[\w-]+)", found[1]) if "unrecognized" in found[1] else []
    close = list(filter(None, (closest_name(name, names) for name in unknown)))
    return text + (f"; did you mean {close[0]}, before the `--`?" if close else "")
