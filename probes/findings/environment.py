"""Findings of the environment lint."""

from __future__ import annotations

from probes.findings.entry import RAY_ENVIRONMENT, Entry
from reports.record import Cause, Severity

ENVIRONMENT: dict[str, Entry] = {
    "ENV-HARMFUL": Entry(
        "A variable or conf file makes NCCL or gloo use settings that break or slow this fabric.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Correct {variable} on {nodes}",
        {
            RAY_ENVIRONMENT
            + '"{variable}"': "A line: correct or unset it before `ray start`. None: go on.",
            "grep -s {variable} /etc/nccl.conf": "A line: correct or delete it.",
        },
        "{variable} no longer has the value that this finding names.",
        "Set or unset the variable as this finding says, in the environment or conf file that it names. Then restart Ray on the named nodes.",
    ),
    "ENV-DOUBTFUL": Entry(
        "A variable is set that is meant for debugging, is misspelt, or overrides a better choice of NCCL.",
        Cause.INFRASTRUCTURE,
        Severity.DEGRADES,
        "Unset {variable} on {nodes}, unless there is a reason",
        {
            RAY_ENVIRONMENT
            + '"{variable}"': "A line: unset it before `ray start`, or write its reason down.",
            "grep -s {variable} /etc/nccl.conf": "A line: delete it, or write its reason down.",
        },
        "No doubtful setting is left, or its reason is documented.",
        "Unset it unless its reason is known and documented. Restart Ray on the named nodes.",
    ),
    "ENV-NOTE": Entry(
        "A variable has no effect here, fits one fabric only, or is an old name.",
        Cause.INFRASTRUCTURE,
        Severity.NOTES,
        "Delete or rename {variable} when convenient",
        {
            "grep -s {variable} /etc/nccl.conf": "A line: delete it. None: it stands in the environment of Ray.",
        },
        "{variable} is gone, or has its present name.",
        "Delete or rename it when convenient. Compare it with what the fabric's operator recommends.",
    ),
    "ENV-DIFFERS": Entry(
        "A variable, from the environment or a conf file, is not the same on every node.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Set {variable} to one value on all nodes",
        {
            RAY_ENVIRONMENT
            + '"{variable}"': "Compare with another node. Different: use one value, then restart Ray.",
            "grep -s {variable} /etc/nccl.conf": "Compare with another node. Different: use one file.",
        },
        "{variable} has the same value on every node.",
        "Set one value everywhere (one image, one runtime environment, one /etc/nccl.conf), then restart Ray.",
    ),
    "ENV-TWO-LIBS": Entry(
        "One process can find two versions of libnccl, or nodes would load different ones.",
        Cause.INFRASTRUCTURE,
        Severity.BLOCKS,
        "Keep one libnccl on {nodes}",
        {
            "ldconfig -p | grep libnccl": "More than one file: remove the others.",
            RAY_ENVIRONMENT + '"LD_PRELOAD|LD_LIBRARY"': "A path of another libnccl: remove it.",
            "python3 -m torch.utils.collect_env": "The version that torch brings. It must be that of the other nodes.",
        },
        "Each process finds one libnccl, the same on all nodes.",
        "Keep one libnccl. Remove others from LD_PRELOAD and LD_LIBRARY_PATH, and use one image. See /proc/PID/maps of a rank.",
    ),
}
