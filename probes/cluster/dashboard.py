"""Finds the dashboard of the joined cluster, where its jobs are submitted."""

from __future__ import annotations

import json
import os
import urllib.error
from urllib.parse import urlsplit

from probes.cluster.cleanup import request_dashboard
from reports.redact import redact_text

ADDRESS_VARIABLE = "RAY_API_SERVER_ADDRESS"  # Ray's own commands prefer this address
ANSWER_SECONDS = 10  # bounds an address that drops packets; a dashboard answers in well under one


def find_dashboard(host: str = "") -> str:
    """Ask the joined cluster for the address of its dashboard; "" if it has none.

    `host` replaces the host that the cluster names, which a remote client may not reach.  The
    shell's own address (a tunnel, an ingress) is used only if it leads to the same cluster.
    """
    named = os.environ.get(ADDRESS_VARIABLE, "").rstrip("/")
    if named and leads_to_session(named, _session_name()):
        return named
    own = own_dashboard()
    port = urlsplit(own).port
    return f"http://{host}:{port}" if host and port else own


def own_dashboard() -> str:
    """Read the address that the joined cluster gives its dashboard; "" if it has none."""
    from ray._private.services import get_webui_url_from_internal_kv

    # Not ray.get_dashboard_url(): there another shell variable would override the result.
    url = get_webui_url_from_internal_kv()
    return f"http://{urlsplit(url if '://' in url else f'http://{url}').netloc}" if url else ""


def _session_name() -> str:
    """Read the name that Ray gave the joined cluster when it was started."""
    from ray.experimental.internal_kv import _internal_kv_get

    return bytes(_internal_kv_get(b"session_name", namespace=b"session") or b"").decode()


def leads_to_session(address: str, session: str) -> bool:
    """Return whether the dashboard at this address is that of the session with this name."""
    if not session or not address.startswith(("http://", "https://")):
        return False
    try:
        reply = request_dashboard(address, "/api/version", seconds=ANSWER_SECONDS)
        return bool(json.loads(reply)["session_name"] == session)
    except urllib.error.HTTPError as error:
        error.close()
    except (OSError, ValueError, LookupError, TypeError):  # no dashboard, or not of this Ray
        pass
    return False


def ignored_address(dashboard: str) -> str:
    """Describe the dashboard address of the shell that was ignored; "" if none was."""
    named = os.environ.get(ADDRESS_VARIABLE, "").rstrip("/")
    if named in ("", dashboard):
        return ""
    return redact_text(
        f"{ADDRESS_VARIABLE} is {named}, which is not known to lead to the cluster"
        f" under test: it was ignored, and the job went to {dashboard}"
    )
