"""Writes docs/use/contracts.md: every key of a contract, and what each means."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from probes.cluster.node_facts import software_versions
from probes.contract.contract import TOP_KEYS, AcceptTerms, load, shipped_contracts
from probes.contract.limits import MARGINAL_SHARE, MIN_SHARE, LimitTerms
from probes.contract.terms import ClusterTerms, LaunchTerms
from reports.numbers import percent
from reports.record import Waiver
from tests.support.paths import REPO

CONTRACTS_PAGE = REPO / "docs" / "use" / "contracts.md"
KINDS = {int: "whole number", float: "number", str: "text", bool: "true or false"}
WRITTEN = {"fabric": "text or list of texts"}  # where a file may have another type than the model
TOP = {
    "schema": ("whole number", "Version of the format: 1."),
    "name": (
        "text",
        "Name of the cluster, at most 60 characters. The name of each run folder contains it.",
    ),
    "title": ("text", "One line for the report."),
    "tier": (
        "`quick`, `standard` or `soak`",
        "Default: `quick`. A run needs this tier, or a longer one, to be accepted.",
    ),
    "draft": (
        "true or false",
        "Default: false. True in a contract of `contract new --from`: no run takes it. Remove this line "
        "when both parties agreed.",
    ),
    "cluster": ("table", "What was ordered: [below](#cluster)."),
    "launch": ("table", "The operator's own guide: [below](#launch)."),
    "accept": ("table", "What an acceptance allows: [below](#accept)."),
    "baseline": ("table", "Limits against an earlier run: [below](#baseline)."),
    "waivers": ("list of tables", "A FAIL that the parties tolerate: [below](#waivers)."),
}
EXAMPLE = """schema = 1
name = "atlas"
title = "8 x H100 per node, 8 x 400 Gbit/s NDR InfiniBand"
tier = "standard"

[cluster]
nodes = 16
gpus_per_node = 8
gpu_model = "NVIDIA H100 80GB HBM3"
fabric = "rdma"
rails = 8
line_rate_gbps = 400.0
shared = "/data"

[FABRIC.busbw]
at_least = 320
marginal = 345
unit = "GB/s"
because = "80 % of 8 x 400 Gbit/s; the provider measured 355 on this cluster"

[SCALING.efficiency]
at_least = 0.90
unit = "ratio"
because = "the training team planned its budget with it"
"""
HEAD = """# Contracts

A contract says what was ordered, and which limits apply. Both parties agree on it before the run. The report shows the
contract's hash.

| command | what it does |
|---|---|
| `seatrial contract new FILE` | asks what was ordered, and writes the contract with the reason of each limit |
| `seatrial contract new --template NAME --set KEY=ANSWER --yes FILE` | for scripts: asks nothing. If an answer is missing, an error names it, and the option for it. |
| `seatrial contract new --from RUN FILE` | writes a draft with what a run found. Change the values to what was ordered, then remove `draft = true`. |
| `seatrial contract list` | lists the shipped contracts |
| `seatrial contract show NAME` | prints a shipped contract |
| `seatrial contract check FILE` | checks FILE, and shows what is ordered and what would be UNPROVEN; with `--limits` also the limit of each measure. A line CHECK names a value that no usual node of this GPU has. |

Pass the file with `--contract FILE`. Without this option, `seatrial.toml` in the current folder is used. If this file is
missing too, limits are derived from what the cluster reports, and the run accepts nothing (at best exit code 20).

A contract is a TOML file:

```toml
{example}```

## Keys at the top

{top}

## cluster

What was ordered, and the names that the parties agreed on. An acceptance needs `nodes`, `gpus_per_node`, `fabric`,
`line_rate_gbps` and the table `[SCALING.efficiency]`. If `fabric` is "rdma", it also needs `rails`, otherwise `management`. With
`queue`, from tier `standard` on, it also needs the limit `[GANG.large_gang_wait]`. For GPUs other than an A100, H100 or H200 on
NVLink, it also needs `[SCALING.mfu]` or `[SCALING.tokens_per_s]`. `seatrial contract check FILE` names what is missing. All other
keys are optional. Without `gpu_model`, for example, HOSTS only compares the GPUs of the nodes with each other.

If nodes with different GPUs were ordered, write `gpu_model` as a table: model = number of nodes. The sum must be `nodes`. HOSTS then
requires as many nodes of each model, and nodes are compared with those of their own model. A list does not order a mix.

{cluster}

An order of one node has `nodes = 1`, here or with `--nodes 1`. It needs no network between nodes, and no
`[SCALING.efficiency]`. Instead it needs `[FABRIC.all_reduce_inside_node]`: the all-reduce inside the node stands for FABRIC. The
report lists what one node does not show. More than one GPU must be in the node.

Parts of `versions`: {versions}. [How to make the folder of `shards`](training.md#let-scaling-read-your-data).

An example without RDMA, for a job of three parts on 64 GPUs. `components` and `parallel` need `tier = "standard"` or longer.

```toml
[cluster]
nodes = 8
gpus_per_node = 8
fabric = ["eth1", "eth2"]
management = "eth0"
line_rate_gbps = 200.0   # of each interface
shards = "/data/shards"
components = {{ "actor,rollout" = "0-31", critic = "32-63" }}
parallel = {{ tp = 8, pp = 2, dp = 4 }}   # 8 x 2 x 4 = 64
```

## launch

Without this table, LAUNCH follows seatrial's own guide. [LAUNCH](launch.md) has an example.

{launch}

## Limits

A limit is a table with the names of its criterion and measure, such as `[FABRIC.busbw]`. [Measures](../reference/measures.md)
lists all measures, with their units and the limits that apply if none is agreed. Write a ratio as a number: 90 % is `0.90`.

{limits}

seatrial refuses the following, and says what to write instead:

- a limit in the wrong direction (`at_most` for a bandwidth), or with a different unit
- a limit that every value meets, or that no value meets
- a limit of a measure that no probe (test) of the tier measures
- a limit that contradicts `[cluster]`
- a limit of a measure that [Measures](../reference/measures.md) marks as *fixed*, such as `wrong_elements`, `link_changes`
  or `xids`

If the contract does not set them, three limits follow from `[cluster]`. `[FABRIC.network]` is the `fabric`.
`[FABRIC.busbw]` is {share} of the total rate of a node's rails (`line_rate_gbps` each), MARGINAL below {marginal}. Over RDMA,
`[FABRIC.alltoall_busbw]` follows from the limit of busbw and the number of nodes. [How limits are derived](../reference/limits.md)
gives the reasons.

If a site lowers the power limit of its GPUs, agree on that too. Otherwise HOSTS fails each GPU whose limit is below the default of
its model. Such GPUs compute more slowly: `[SCALING.mfu]` may need another limit.

```toml
[HOSTS.power_limit]
at_least = 0.71
unit = "ratio"
because = "our H100 run at 500 of 700 W"
```

A rehearsal (`accelerators = "emulated"`) may leave out a criterion that it cannot prove. Write the reason:

```toml
[FABRIC]
not_provable = "all raylets share one host's network, so no byte crosses a link"
```

Some devices do not count `FABRIC.lost_packets` or `FABRIC.link_changes`, such as EFA with a driver before 2.17.0. Both parties can
agree on that, with the reason. The report then lists the measure as not tested. If a node does count it, the agreement has no
effect, and the value is judged. No other measure can be left out in this way.

```toml
[FABRIC.lost_packets]
not_countable = "efa 2.13 has no counters of the network"
```

## accept

MARGINAL means close to the limit, and is accepted. A run with more MARGINAL measures than `max_marginal` ends with exit code 20, and
lists them. A measure of several nodes counts once. Shipped contracts for hardware allow 3. Without this key any number is accepted,
and the report says that no maximum was agreed.

{accept}

## baseline

Each key is a measure. If several criteria have this measure, write the criterion before it. The value is how much worse the
measure may be than in the run of `--baseline`: [a gate for CI](ci.md#a-gate-against-an-earlier-run).

```toml
[baseline]
busbw = "2 %"
GANG.placement_delay = "20 %"
```

## waivers

A waiver does not make a cluster accepted: the criterion stays FAIL, and the exit code 1. With the FAIL, the report prints
who tolerates it, why, and until when. To accept the cluster all the same, [sign](security.md#sign-and-verify) with
`--decision conditions`. If the criterion passes, the report says that the waiver is no longer needed.

{waivers}

```toml
[[waivers]]
id = "W-1"
criterion = "SCALING"
reason = "the second switch arrives in May"
name = "Jane Doe"
until = 2027-05-31
```

## Shipped contracts

These are templates. Copy one with `seatrial contract show`, or let `seatrial contract new` fill in one for a real cluster. If
none is for your hardware, answer `other`: `contract new` then asks for everything, and proposes limits.

{shipped}

`lab` and `local` are rehearsals: they accept no cluster. If no published figure supports a
limit, the limit's reason says that the limit is not yet calibrated on hardware.
"""


def write_contracts() -> str:
    """Return the page."""
    top = [f"| `{key}` | {kind} | {text} |" for key, (kind, text) in TOP.items()]
    assert TOP.keys() == {*TOP_KEYS}
    shipped = [_shipped(name) for name in shipped_contracts()]
    return HEAD.format(
        example=EXAMPLE,
        top=_table(("key", "value", "meaning"), top),
        cluster=_keys(ClusterTerms, but=("launch",)),
        versions=", ".join(f"`{part}`" for part in software_versions()),
        launch=_keys(LaunchTerms),
        limits=_keys(LimitTerms),
        share=percent(MIN_SHARE),
        marginal=percent(MARGINAL_SHARE),
        accept=_keys(AcceptTerms),
        waivers=_keys(Waiver),
        shipped=_table(("name", "for", "line rate of a node", "busbw at least"), shipped),
    )


def _shipped(name: str) -> str:
    """Return the row of one shipped contract, with the share of the line rate that it asks for."""
    contract = load(name)
    rate, limit = contract.cluster.line_gbytes_per_s, contract.limit("FABRIC", "busbw")
    cells = [f"`{name}`", contract.title, "-", "-"]
    if rate and limit and limit.low:
        cells[2:] = [f"{rate:g} GB/s", f"{limit.low:g} GB/s ({percent(limit.low / rate)})"]
    return f"| {' | '.join(cells)} |"


def _keys(model: type[BaseModel], but: tuple[str, ...] = ()) -> str:
    rows = [
        f"| `{name}` | {WRITTEN.get(name) or _kind(field)} | {_default(field)}{field.description} |"
        for name, field in model.model_fields.items()
        if name not in but
    ]
    return _table(("key", "value", "meaning"), rows)


def _table(head: tuple[str, ...], rows: list[str]) -> str:
    return "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *rows])


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "Required. "
    default = field.default
    if default in (None, {}, "", False) or isinstance(default, BaseModel | tuple):
        return ""
    return f"Default: `{default:g}`. " if isinstance(default, float) else f"Default: `{default}`. "


def _kind(field: FieldInfo) -> str:
    return " or ".join(dict.fromkeys(_kinds(field.annotation)))


def _kinds(annotation: Any) -> Iterator[str]:
    """Yield the types that a value may have, in words."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        for one in inner:
            yield from _kinds(one)
    elif origin is Annotated:
        yield from _kinds(inner[0])
    elif origin is Literal:
        yield " or ".join(f'`"{value}"`' for value in inner)
    elif origin in (list, tuple):
        words = " or ".join(_kinds(inner[0]))
        yield f"list of {words}" + ("" if words.endswith("`") else "s")
    elif origin is dict:
        yield f"table of {'s or '.join(dict.fromkeys(_kinds(inner[1])))}s"
    elif annotation is not type(None):
        yield KINDS.get(annotation, "date")
