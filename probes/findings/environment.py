"""Findings of the environment lint."""

from __future__ import annotations

from probes.findings.entry import Entry
from reports.record import Cause

ENVIRONMENT: dict[str, Entry] = {
    "ENV-HARMFUL": Entry(
        "A variable or conf file tells NCCL or gloo something that breaks or cripples this fabric.",
        Cause.INFRASTRUCTURE,
        "do what the statement says at the place it names (environment or conf file), then restart Ray on those nodes",
    ),
    "ENV-DOUBTFUL": Entry(
        "A variable is set that is meant for debugging, is written wrongly, or overrides what NCCL would choose better.",
        Cause.INFRASTRUCTURE,
        "unset it unless its reason is known and written down; restart Ray on the named nodes",
    ),
    "ENV-NOTE": Entry(
        "A variable has no effect here, fits one fabric only, or is an old name.",
        Cause.INFRASTRUCTURE,
        "delete or rename it when convenient; compare it with what the fabric's operator recommends",
    ),
    "ENV-DIFFERS": Entry(
        "A variable, from the environment or a conf file, is not the same on every node.",
        Cause.INFRASTRUCTURE,
        "set one value everywhere (one image, one runtime environment, one /etc/nccl.conf), then restart Ray",
    ),
    "ENV-TWO-LIBS": Entry(
        "Two versions of libnccl are within reach of one process, or nodes would load different ones.",
        Cause.INFRASTRUCTURE,
        "keep one libnccl: clear LD_PRELOAD and LD_LIBRARY_PATH of others and use one image; see /proc/PID/maps of a rank",
    ),
}
