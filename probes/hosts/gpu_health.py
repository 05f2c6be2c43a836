"""Judges the health of each GPU by what its driver reports."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from probes.acceptance.measure import Recorder
from probes.cluster.nvml import UNKNOWN
from probes.findings import finding, join_names, name_gpu
from probes.hosts.gpu_checks import CHECKS, Board, Facts, Fleet, HealthCheck
from reports.numbers import percent
from reports.record import Finding

SHOWN = 4  # boards with one fault in a sentence; the facts that are kept have all of them


def judge_gpu_health(facts: Sequence[Facts], measure: Recorder) -> None:
    """Judge each node's GPUs by what their driver reports."""
    fleet = Fleet.of(facts)
    for fact in facts:
        judge_node_health(fact, fleet, measure)


def judge_node_health(fact: Facts, fleet: Fleet, measure: Recorder) -> None:
    """Judge the GPUs of one node, compared with the fleet's."""
    node, boards = fact["name"], [*fact["gpu_health"]["boards"], *_missing_boards(fact)]
    for check in CHECKS:
        _judge_check(check, node, boards, fleet, measure)
    _judge_power(node, boards, measure)
    _judge_queries(node, boards, measure)
    _note_state(node, boards, measure)


def _missing_boards(fact: Facts) -> list[Board]:
    """List the GPUs of a node whose health was not read; each counts as one that fails."""
    read = {board["index"] for board in fact["gpu_health"]["boards"]}
    error = fact["gpu_health"]["error"] or {"code": UNKNOWN, "text": "NVML did not list it again"}
    missing = {"uuid": "", "slot": "", "unsupported": [], "failed": {"GPU": error}}
    indices = sorted({gpu["index"] for gpu in fact["gpus"]} - read)
    return [{"index": index, **missing} for index in indices]


def _judge_check(
    check: HealthCheck, node: str, boards: Sequence[Board], fleet: Fleet, measure: Recorder
) -> None:
    known = [board for board in boards if any(need in board for need in check.needs)]
    texts = [check.describe(board, len(boards), fleet) for board in known]
    sick = [(board, text) for board, text in zip(known, texts, strict=True) if text]
    sound = texts.count("") + sum(
        check.is_sound_without(board, len(boards), fleet) for board in boards
    )
    proven = boards and sound + len(sick) == len(boards)
    measure(
        check.measure,
        len(sick) if sick or proven else None,
        on=node,
        note="NVML does not answer for each GPU, or does not support the query here",
    )
    measure.explain(explain_boards(check.code, node, sick, check.expected))


def explain_boards(
    code: str, node: str, sick: Sequence[tuple[Board, str]], expected: str
) -> list[Finding]:
    """Make one finding that names the sick boards of a node, those with one fault together."""
    boards: dict[str, list[str]] = defaultdict(list)
    for board, text in sick:
        boards[text].append(board_name(board))
    texts = [f"{join_names(names, SHOWN)} on {node}: {text}" for text, names in boards.items()]
    if not sick:
        return []
    first = sick[0][0]
    names = name_gpu(first["uuid"], first["index"], first["slot"])
    return [finding(code, f"{'; '.join(texts)}. Expected: {expected}", [node], names=names)]


def board_name(board: Board) -> str:
    """Name a GPU: `GPU 3 (GPU-uuid, slot 00000000:9B:00.0)`."""
    known = [board["uuid"], f"slot {board['slot']}" if board["slot"] else ""]
    where = ", ".join(filter(None, known))
    return f"GPU {board['index']} ({where})" if where else f"GPU {board['index']}"


def _judge_power(node: str, boards: Sequence[Board], measure: Recorder) -> None:
    """Judge the lowest power limit of a node's GPUs, as a share of the model's default."""
    shares = [_power_share(board) for board in boards]
    known = [share for share in shares if share is not None]
    lowest = min(known) if known else None
    low = lowest is not None and measure.would_fail("power_limit", lowest)
    complete = len(known) == len(boards) or low
    note = "NVML does not answer, or does not support the query here"
    measure("power_limit", lowest if complete else None, on=node, note=note)
    sick = [
        (board, f"power limit is {percent(share)} of the default")
        for board, share in zip(boards, shares, strict=True)
        if share is not None and measure.would_fail("power_limit", share)
    ]
    measure.explain(explain_boards("HOST-POWER-LIMIT", node, sick, "the default power limit"))


def _power_share(board: Board) -> float | None:
    limit, default = board.get("power_limit_mw"), board.get("power_default_mw")
    return limit / default if limit and default else None


def _judge_queries(node: str, boards: Sequence[Board], measure: Recorder) -> None:
    """Judge that NVML answered: an error other than "not supported" hides what it was asked."""
    failed = [board for board in boards if board["failed"]]
    note = "NVML does not answer"
    measure("health_errors", len(failed) if boards else None, on=node, note=note)
    sick = [
        (board, f"NVML does not answer for {query}: error {error['code']}, {error['text']}")
        for board in failed
        for query, error in list(board["failed"].items())[:1]
        if query != "GPU"  # a board that does not answer at all is a finding of its own
    ]
    measure.explain(explain_boards("HOST-NVML-ERROR", node, sick, "an answer"))


def _note_state(node: str, boards: Sequence[Board], measure: Recorder) -> None:
    """Note what is worth knowing and no fault: persistence mode, errors of earlier times."""
    off = sum(board.get("persistence") is False for board in boards)
    measure.note("GPUs without persistence mode", off, "GPUs", on=node)
    errors = sum(board.get("lifetime_errors") or 0 for board in boards)
    measure.note("uncorrected errors in the GPUs' lifetime", errors, "errors", on=node)
