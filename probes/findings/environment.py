"""Findings of the environment lint."""

from __future__ import annotations

from probes.findings.entry import Entry
from reports.record import Cause

ENVIRONMENT: dict[str, Entry] = {
    "ENV-HARMFUL": Entry(
        "A variable or conf file makes NCCL or gloo use settings that break or slow this fabric.",
        Cause.INFRASTRUCTURE,
        "Set or unset the variable as this finding says, in the environment or conf file that it names. Then restart Ray on the named nodes.",
    ),
    "ENV-DOUBTFUL": Entry(
        "A variable is set that is meant for debugging, is misspelt, or overrides a better choice of NCCL.",
        Cause.INFRASTRUCTURE,
        "Unset it unless its reason is known and documented. Restart Ray on the named nodes.",
    ),
    "ENV-NOTE": Entry(
        "A variable has no effect here, fits one fabric only, or is an old name.",
        Cause.INFRASTRUCTURE,
        "Delete or rename it when convenient. Compare it with what the fabric's operator recommends.",
    ),
    "ENV-DIFFERS": Entry(
        "A variable, from the environment or a conf file, is not the same on every node.",
        Cause.INFRASTRUCTURE,
        "Set one value everywhere (one image, one runtime environment, one /etc/nccl.conf), then restart Ray.",
    ),
    "ENV-TWO-LIBS": Entry(
        "One process can find two versions of libnccl, or nodes would load different ones.",
        Cause.INFRASTRUCTURE,
        "Keep one libnccl. Remove others from LD_PRELOAD and LD_LIBRARY_PATH, and use one image. See /proc/PID/maps of a rank.",
    ),
}
