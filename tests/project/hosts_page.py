"""Writes docs/use/hosts.md: what HOSTS judges, by which limit, and what shows that it can fail."""

from __future__ import annotations

from probes.check.declarations import Check, Circumstances, CriterionRow, Probe
from probes.check.registry import CRITERIA
from probes.contract.terms import ClusterTerms
from probes.findings import CATALOGUE
from probes.hosts.conditions import read_table
from tests.faults.table import Row, make_rows, read_reasons
from tests.project.measures_page import describe_failure
from tests.support.paths import REPO
from tests.support.seen import Sights, read_sights

HOSTS_PAGE = REPO / "docs" / "use" / "hosts.md"
COLUMNS = ("measure", "if it fails", "limit", "only with", "self-test", "finding")
HEAD = """# HOSTS: what is judged of each machine

HOSTS compares each machine with the contract, and with the other machines. Each section below is one test. The columns of its
table:

- *if it fails*: what a report then says. `<value>` is the measured value, `<place>` its node or GPU.
- *limit*: the limit, with its reason. A name such as `cpus_per_node` is a key in `[cluster]` of your contract: its value is the
  limit. [Measures](../reference/measures.md#hosts-the-machines-are-what-was-ordered-and-healthy) says which limits a contract
  may change.
- *only with*: what the row needs: a key in `[cluster]`, a limit such as `[HOSTS.write_rate]`, a number of nodes, or a tier.
  Without it, the row is not judged, which does not prevent an acceptance.
- *self-test*: the fault that each run plants to prove that the check works. Most faults change the values of one node, before they
  are judged. [Measures](../reference/measures.md#hosts-the-machines-are-what-was-ordered-and-healthy) describes each fault.
- *finding*: the codes of the findings that the report then shows. [Findings](findings.md) says what to do for each code.

Always write `nodes` and `gpus_per_node` into the contract: without these limits, HOSTS is UNPROVEN.
(The option `--nodes` can give the number of nodes instead.)
A rehearsal without GPUs does not judge the state of GPUs.
Run one test by the name below its heading: `seatrial run --contract cluster.toml -k NAME`.
"""
# Terms that turn on every conditional row, and how a reader writes those that need one value.
ALL_TERMS = ClusterTerms(
    gpu_model="H100", gpu_memory_gib=1, cpus_per_node=1, ram_gib=1, disk_gib=1,
    versions={"torch": "2"}, shared="/s", egress=["a:1"], model_files=["/m"], dcgm_diag=True,
    ray_client_port=1, host_names=True, authentication="token", fabric="rdma", save_gb=1,
)  # fmt: skip
WRITTEN = {
    "dcgm_diag": "`dcgm_diag = true`",
    "host_names": "`host_names = true`",
    "authentication": '`authentication = "token"`',
    "fabric": '`fabric = "rdma"`',
}
# Findings of measures that no test sees fail alone.
AMONG_OTHERS = {
    "gpu_memory": "HOST-BELOW-ORDER",
    "lost_lines": "HOST-STORAGE-APPEND",
    "lost_updates": "HOST-STORAGE-LOCK",
}


def write_hosts() -> str:
    """Return the page: a table for each probe, a row for each measure."""
    row, sights = CRITERIA["HOSTS"], read_sights()
    cells = {one.name: one for one in make_rows("HOSTS", sights, read_reasons())}
    parts, shown = [HEAD], set[Check]()
    for duty in row.duties:
        parts.append(_probe_table(duty, row, cells, sights, shown))
        shown |= {*duty.checks}
    return "\n".join([*parts, _conditions()])


def _conditions() -> str:
    """Write the conditions that `breaking_conditions` counts, and those that are only noted."""
    lines = [CONDITIONS_HEAD]
    for title, row in read_table().rows.items():
        text = row.text.format(value="VALUE")
        threads = ", ".join(f"[{number}]({url})" for number, url in enumerate(row.threads, 1))
        effect = "note" if row.noted else f"`{row.code}`"
        lines.append(f"| {title} | {text} | {row.limit} | {row.because} | {effect} | {threads} |")
    return "\n".join(lines) + "\n"


CONDITIONS_HEAD = """## Conditions that break jobs

`breaking_conditions` counts these on each node, as a worker there meets them. VALUE is what was read. Clusters that run well
may have what is a *note*. A difference between nodes of one kind is a note as well: of limits, rights, kernel settings, variables,
folders and files of the system. The file `conditions.json` of a run has all that was read: of most nodes once, and of each node what it has instead.

| condition | a worker that fails | expected | because | finding | reported |
|---|---|---|---|---|---|"""


def _probe_table(
    duty: Probe, row: CriterionRow, rows: dict[str, Row], sights: Sights, shown: set[Check]
) -> str:
    name = duty.probe.partition("::test_")[2]
    text = f"## {name.replace('_', ' ').capitalize()}\n\nTier {duty.tier}. Name: `{name}`.\n"
    if again := [check for check in duty.checks if check in shown]:
        names = ", ".join(f"`{check}`" for check in again)
        text += f"\nThis test judges again, with the limits above: {names}.\n"
    text += f"\n| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|\n"
    for check in duty.checks:
        if check not in shown:
            columns = [
                f"`{check}`",
                describe_failure(row, check),
                limit_text(check),
                ", ".join(find_needs(check)),
                row.describe_control(check).replace("; ", "<br>"),
                "<br>".join(f"`{code}`" for code in find_codes(check, rows[check], sights)),
            ]
            text += f"| {' | '.join(columns)} |\n"
    return text


def limit_text(measure: Check) -> str:
    """Describe a measure's limit and why it holds."""
    limit = measure.fixed or measure.default
    if limit is not None:
        return f"{limit}: {limit.because}"
    if measure.ordered_by:
        relation = {"at least": ">=", "chosen": "as in"}.get(measure.order, measure.order)
        return f"{relation} `{measure.ordered_by}`"
    return measure.from_run or "as agreed"


def find_needs(measure: Check) -> list[str]:
    """List what turns a measure on: keys of the contract, its limit, nodes, a tier."""
    keys = sorted(measure.when.terms) if measure.when else []
    needs = [WRITTEN.get(key, f"`{key}`") for key in keys]
    needs += [f"`[HOSTS.{measure}]`"] * measure.only_agreed
    if measure.when:
        for nodes in (1, 2):
            if not measure.when(Circumstances("soak", ALL_TERMS, nodes, on_gpu=True)):
                needs = [*(one for one in needs if "nodes or more" not in one)]
                needs.append(f"{nodes + 1} nodes or more")
        if not measure.when(Circumstances("quick", ALL_TERMS, 3, on_gpu=True)):
            needs.append("tier standard or soak")
    return needs


def find_codes(measure: Check, row: Row, sights: Sights) -> list[str]:
    """Find the codes that stood alone with the measure, else those of the test with the least."""
    alone = set()
    for sight in sights.values():
        codes = [one for one in sight.red if one in CATALOGUE]
        if len(codes) == 1 and [one for one in sight.red if one not in codes] == [
            f"HOSTS.{measure}"
        ]:
            alone.add(codes[0])
    known = {AMONG_OTHERS[measure]} if measure in AMONG_OTHERS else alone
    return sorted(known) or [code.strip("`") for code in row.cells["finding"]]
