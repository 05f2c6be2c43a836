"""`seatrial submit` as a process: its exit code is what a shell sees, whatever a head sends."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from reports.run_folder.event_log import write_checksums
from reports.run_folder.times import utc_time
from tests.support.hostile_head import ENDED, NAME, Client, Pack, pack_files, pack_folder, sending
from tests.support.run_edits import Edit
from tests.support.sound_run import write_sound_run


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(tmp_path / "client")


def sound(folder: Path, edit: Edit | None = None, **facts: Any) -> Pack:
    """Pack a sound run of each submission; with `edit` it is changed, and its sums are made new."""

    def pack(id: str) -> bytes:
        started = {"nonce": id, "submission": id, "started": utc_time()}
        run = write_sound_run(folder / id / NAME, **{**started, **facts})
        if edit:
            edit(run)
            write_checksums(run)
        return pack_folder(run)

    return pack


def metrics_alone(id: str) -> bytes:
    return pack_files({"metrics.prom": b"seatrial_exit_code{} 256\n"})


@pytest.mark.parametrize(
    ("code", "pack", "words"),
    [
        (256, None, ("--contract", "lab")),
        (-512, None, ("--attach", "seatrial-submit-0123456789ab")),
        (2**31, None, ("--contract", "lab")),
        (True, None, ("--contract", "lab")),
        (0, None, ("--contract", "lab")),
        (256, metrics_alone, ("--contract", "lab")),
    ],
)
def test_no_exit_code_of_a_head_is_0_without_a_run(
    code: object, pack: Pack | None, words: tuple[str, ...], client: Client
) -> None:
    """sys.exit(256) is 0 for a shell: only the suite's own codes are passed on."""
    with sending(pack, {"status": "FAILED", "driver_exit_code": code}) as (address, _):
        found, said = client.submit(address, *words)
    assert found == 3, said


def test_a_sound_run_is_0_on_a_machine_with_click_alone(client: Client, tmp_path: Path) -> None:
    with sending(sound(tmp_path), ENDED) as (address, _):
        found, said = client.submit(address, "--contract", "lab")
    assert found == 0, said
    assert "verified: files, events, nonce seatrial-submit-" in said


def say_0(run: Path) -> None:
    path = run / "metrics.prom"
    text = re.sub(r"(?m)^(seatrial_exit_code\{.*\}) \d+$", r"\1 0", path.read_text())
    assert text != path.read_text()
    path.write_text(text)


def other_contract(run: Path) -> None:
    (run / "contract.toml").write_text("x = 1\n")


@pytest.mark.parametrize(
    ("edit", "facts", "sentence"),
    [
        (say_0, {"partially_held": 1}, "partially_held on cluster: 1. Expected: <= 0"),
        (say_0, {"values": {"busbw": (math.nan, math.nan)}}, "busbw on cluster: missing"),
        (other_contract, {}, "contract.toml is not the contract that was submitted"),
    ],
)
def test_a_machine_with_click_alone_refuses_what_the_events_refuse(
    edit: Edit, facts: dict[str, Any], sentence: str, client: Client, tmp_path: Path
) -> None:
    with sending(sound(tmp_path, edit, **facts), ENDED) as (address, _):
        found, said = client.submit(address, "--contract", "lab")
    assert found == 4, said
    assert sentence in said


def raise_busbw(run: Path) -> None:
    path = run / "record.json"
    record = json.loads(path.read_text())
    for result in record["results"]:
        for one in result["measurements"]:
            one["value"] = 99999.0 if one["name"] == "busbw" else one["value"]
    path.write_text(json.dumps(record, indent=1) + "\n")


def other_page(run: Path) -> None:
    (run / "report.html").write_text("<h1>ACCEPTED</h1>")


@pytest.mark.parametrize(
    ("edit", "code", "sentence"),
    [
        (None, 0, "verified: files, events, nonce"),
        (raise_busbw, 4, "record.json does not match events.jsonl"),
        (other_page, 4, "report.html does not match events.jsonl"),
    ],
)
def test_a_machine_with_all_of_it_compares_record_and_page_with_the_events(
    edit: Edit | None, code: int, sentence: str, tmp_path: Path
) -> None:
    with sending(sound(tmp_path, edit), ENDED) as (address, _):
        client = Client(tmp_path / "client", alone=False)
        found, said = client.submit(address, "--contract", "lab")
    assert found == code, said
    assert sentence in said


@pytest.mark.parametrize(
    ("pack", "name", "sentence"),
    [
        (lambda id: pack_files({"a": b"", "a/b": b""}), NAME, "cannot be unpacked"),
        (lambda id: pack_files({"a": b"x"})[:-20], NAME, "cannot be unpacked"),
        (lambda id: pack_files({"a" * 300: b""}), NAME, "not a file of a run"),
        (lambda id: pack_files({"a": b""}), "../x", "has a name that no folder can have"),
    ],
)
def test_what_is_no_run_is_refused(pack: Pack, name: str, sentence: str, client: Client) -> None:
    with sending(pack, ENDED, name) as (address, _):
        found, said = client.submit(address, "--contract", "lab")
    assert found == 4, said
    assert sentence in said
    assert "internal" not in said
    assert not (client.folder / "work" / "runs" / NAME).exists()
