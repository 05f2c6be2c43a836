"""Makes the driver send Ray's token where the cluster asks for one, before it joins."""

from __future__ import annotations

import os

from probes.cluster.access.entrances import CLIENT, GCS, REFUSED, TAKEN, Entrance, try_request
from probes.cluster.cleanup import find_token, token_path
from reports.sanitize import one_line

MODE = "RAY_AUTH_MODE"
SILENT = ("DEADLINE_EXCEEDED", "UNAVAILABLE")  # of gRPC: nothing that speaks it is there
HINT = "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH (or RAY_AUTH_TOKEN) to the cluster's token"


class TokenProblem(RuntimeError):
    """Raised if the driver cannot authenticate, or no Ray answers: one sentence and a hint."""


def follow_auth_mode(address: str) -> None:
    """Turn on token authentication in this process, and in its children, if the cluster asks.

    Ray does this only where it finds the cluster by itself.  Raises TokenProblem if the token is
    missing or wrong, if no Ray answers, or if the driver insists on tokens and there are none.
    """
    is_client = address.startswith("ray://")
    door = Entrance(CLIENT if is_client else GCS, "", address.removeprefix("ray://"))
    without = try_request(door, "")
    if without == TAKEN and os.environ.get(MODE, "").lower() == "token":
        raise TokenProblem(
            f"{MODE} is token, but the cluster at {address} asks for no token: "
            f"set {MODE}=disabled, or start the cluster with token authentication"
        )
    if without.startswith(SILENT):  # Ray would wait for ever
        raise TokenProblem(
            f"no Ray answers at {address} ({one_line(without)}): is this the head's own port "
            "(6379, or 10001 with ray://), and the head up?"
        )
    if without != REFUSED:  # no token is asked for; or nothing is known, and Ray will say why
        return
    token = find_token()
    if not token:
        raise TokenProblem(f"the cluster at {address} asks for a token, and {_lack()}: {HINT}")
    if try_request(door, token) == REFUSED:
        raise TokenProblem(
            f"the cluster at {address} refuses the token of {_source()}: {HINT}, "
            "which `ray get-auth-token` prints on its head"
        )
    if os.environ.get(MODE, "").lower() != "token":
        turn_on_tokens()


def turn_on_tokens() -> None:
    """Set the variable for this process and its children, and make Ray read it again."""
    from ray._raylet import Config  # type: ignore[attr-defined]  # compiled, without types

    os.environ[MODE] = "token"
    Config.initialize("")  # as ray._private.authentication does: Ray has read the variable before


def _lack() -> str:
    if os.environ.get(MODE, "").lower() == "disabled":
        return f"{MODE} is disabled here"
    return f"none was found in RAY_AUTH_TOKEN or {token_path()}"


def _source() -> str:
    return "RAY_AUTH_TOKEN" if os.environ.get("RAY_AUTH_TOKEN", "").strip() else str(token_path())
