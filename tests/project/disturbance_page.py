"""Writes docs/use/disturbance.md: what each criterion needs and disturbs, and for how long."""

from __future__ import annotations

from probes.check.owed import GPUS_FREE, LAB, RUN_S, disturbances_of
from probes.check.registry import CRITERIA, run_order
from probes.cli.run import describe_time
from reports.record import TIERS
from tests.support.paths import REPO

DISTURBANCE_PAGE = REPO / "docs" / "use" / "disturbance.md"
HEAD = """# What a run does to your cluster

`seatrial plan` prints the facts of this page for your contract and tier.

- **Needs:** {needs}. `seatrial doctor` shows what would prevent an acceptance, and disturbs nothing. `--wait-for-room 30m`
  waits for other jobs, and names those that hold GPUs.
- **One run at a time.** A second run waits if it has `--wait-for-room`. Otherwise it ends with exit code 4.
- **A run removes what it made** on the cluster, also after Ctrl-C, SIGTERM, and SIGKILL of the driver. The run folder stays. If
  the cleanup is killed too, for example by a reboot, `seatrial cleanup` lists what remains, and changes nothing.
  `seatrial cleanup --remove` removes it, but no file that changed within the last hour.
- **Other jobs** are never stopped, and none of their files is touched. A job that asks for
  GPUs while a probe has them waits until the probe ends.

## Time and cost

{times}. On GPUs, only one run was timed: tier quick took 4 min on one node with one H200. Eight
nodes with 8 H100 are expected to take about 7 min ([why](../develop/measurements.md#the-same-work-in-less-time)).
`seatrial run` prints the time of each probe.

| tier | complete run | for |
|---|---|---|
| quick | {quick} | a first look; [CI](ci.md#examples), with a contract of this tier |
| standard | {standard} | a handover |
| soak | 46 min in one run | rare faults |

A run holds all GPUs for its whole time, so it costs GPU hours: 64 GPUs for 15 minutes are 16 GPU hours. A run with `--only`
tests a part, and accepts nothing.

## Permissions

| what | where | needed for |
|---|---|---|
| to join Ray as a driver, with the token if Ray asks for one | the head, or the machine that submits | everything |
| to write a folder `runs/` | the machine that runs seatrial | the run folder |
| root | the machine that runs seatrial | LAUNCH, which types the guide as another user. Without root, set `user = "own"` in the contract's `[launch]`: LAUNCH then types the guide as the user that runs seatrial. |
| to read NVML | workers | HOSTS and GANG on GPUs |
| to open RDMA devices, and to lock memory | workers | FABRIC, if RDMA is agreed |
| to write the contract's `shared` folder | workers | RESTART, SCALING and HOSTS |
| to use all TCP and UDP ports above 1024 between nodes | all nodes | Ray and jobs of ranks: the kernel chooses [their ports](security.md#ports) |

Workers do not need root, except that RDMA in a container can need root with `IPC_LOCK`. No existing account and no setting of a
node is changed, no link is shaped and no disk is filled. As root, LAUNCH creates one user on the host that runs seatrial, and
removes it.

## What another job feels

[Measurements](../develop/measurements.md#what-another-job-feels) shows how much slower another job became during each test.
`seatrial plan` lists each test, with its usual time.
"""


def describe_tier(shortest: str) -> str:
    """Say which tiers do something, where not all do."""
    if shortest == TIERS[-1]:
        return f" (only in tier {shortest})"
    return "" if shortest == TIERS[0] else f" (from tier {shortest} on)"


def write_disturbance() -> str:
    """Return the page: a list for each criterion."""
    times = f"The times are of {LAB} on one machine with two cores"
    quick, standard = (describe_time(RUN_S[tier]) for tier in ("quick", "standard"))
    parts = [HEAD.format(needs=GPUS_FREE, times=times, quick=quick, standard=standard)]
    for id in run_order():
        where, needs = CRITERIA[id].where, CRITERIA[id].needs
        parts.append(f"## {id}: {CRITERIA[id].title}\n")
        parts.append(f"Runs {where}. Needs {'; '.join(needs)}.\n")
        said: dict[str, str] = {}  # what it does -> the shortest tier that does it
        for duty in sorted(CRITERIA[id].duties, key=lambda duty: TIERS.index(duty.tier)):
            for text in disturbances_of(duty.probe):
                said.setdefault(text, duty.tier)
        parts += [f"- {text}{describe_tier(tier)}" for text, tier in said.items()]
        parts.append("")
    return "\n".join(parts)
