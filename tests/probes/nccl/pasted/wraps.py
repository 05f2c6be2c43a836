"""Lines that a terminal or a mail broke, and lines that only look so."""

from __future__ import annotations

import textwrap

from tests.probes.nccl.pasted.lines import BEGIN, Case, info, start, warn
from tests.probes.nccl.pasted.watchdog import caught
from tests.recordings.generate.nccl_logs import Job

REFUSED = warn(
    "misc/socket.cc:484 socketStartConnect: Connect to 10.1.0.2<45763> failed : Connection refused"
)
EDGE = info("Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA")
OFF = info("NCCL_IB_DISABLE set by environment to 0.", host="gpu-node-01")


def broken(text: str, width: int) -> str:
    """As a terminal shows it: within words."""
    lines = text.splitlines()
    return "".join(
        f"{line[at : at + width]}\n" for line in lines for at in range(0, max(len(line), 1), width)
    )


def mailed(text: str, width: int, quote: str = "") -> str:
    """As a mail has it: at blanks."""
    lines = text.splitlines()
    short = (part for line in lines for part in textwrap.wrap(line, width, break_on_hyphens=False))
    return "".join(f"{quote}{part}\n" for part in short)


WRAPS = {
    "a terminal of 80 columns": Case(
        broken(REFUSED, 80),
        {"INIT-BOOTSTRAP"},
        "the address is cut in two",
        "cannot connect to 10.1.0.2 by TCP (refused)",
    ),
    "a terminal of 120 columns": Case(
        broken(caught(0, 96117) + caught(7, 64088), 120),
        {"NCCL-ERROR"},
        "a line of torch is broken twice",
        "rank 7 is behind",
    ),
    "a whole job in 80 columns": Case(
        broken(Job("2.28.9").text(), 80), set(), "nothing is lost", "no fault found", "rdma"
    ),
    "a mail": Case(
        mailed(REFUSED, 72),
        {"INIT-BOOTSTRAP"},
        "broken at a blank",
        "cannot connect to 10.1.0.2 by TCP (refused)",
    ),
    "a mail that is quoted": Case(
        mailed(REFUSED, 70, "> "),
        {"INIT-BOOTSTRAP"},
        "the mark of the quotation is no text",
        "cannot connect to 10.1.0.2 by TCP (refused)",
    ),
    "a mail of a watchdog": Case(
        mailed(caught(0, 96117) + caught(7, 64088), 78),
        {"NCCL-ERROR"},
        "five lines are one",
        "rank 7 is behind",
    ),
    "a line number behind a joined line": Case(
        broken(REFUSED, 80) + "\n" + warn("enqueue.cc:9 Cuda failure 2 'out of memory'"),
        {"INIT-BOOTSTRAP", "NCCL-ERROR"},
        "places are those of the file",
        "nccl.log:4",
    ),
    # Near misses: nothing is joined.
    "edges between lines of a program": Case(
        info(*BEGIN) + "".join(f"{EDGE}step {n} loss 2.3\nmemory 7 GB\n" for n in range(4)),
        set(),
        "an edge that ends with its network is whole",
        "transport  rdma, GPUDirect RDMA",
    ),
    "a setting before a line of a program": Case(
        f"{OFF}\n{OFF}nothing else was set on this host\n",
        set(),
        "0. does not turn RDMA off",
        "networks   none named",
    ),
    "a line that is as long as a terminal": Case(
        warn("x.cc:9 Something new".ljust(80 - 30, "w")) + info(*BEGIN, start(0, 2)),
        set(),
        "another line of NCCL follows",
        "not proven",
    ),
    "a longer line": Case(
        warn("x.cc:9 Something new".ljust(80 - 30, "w")) + "a program\n" + "y" * 130 + "\n",
        set(),
        "this terminal is wider",
        "w\n",
    ),
    "a rule of a program": Case(
        "=" * 80 + "\nrank 0 is ready, and no error was seen\n" + "=" * 80 + "\n",
        set(),
        "no line of NCCL's",
        "no line of NCCL's",
    ),
    "a paragraph below": Case(
        warn("x.cc:9 Something new".ljust(80 - 30, "w")) + "\nI use two nodes of 8 GPUs each.\n",
        set(),
        "a blank line ends it",
        "w\n",
    ),
}
