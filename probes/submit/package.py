"""Packs what the remote suite needs: our packages, the contract, its guide, a baseline, wheels."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from probes.requirements import DISTRIBUTION
from probes.submit.follow import MAX_PACKAGE, SubmitError
from probes.submit.recount import table
from reports.run_folder.event_log import FILE, RECORD, find_runs
from reports.version import PACKAGES, SOURCES, find_commit

ACCEPTED, UNPROVEN = 0, 20  # exit codes: of runs that may be a baseline, too
MAX_CLUSTERS = 4  # of which runs of a folder go along


def choose_runs(folder: Path) -> list[Path]:
    """Choose the runs below a folder that may be the baseline: the cluster chooses among them.

    Of each cluster these are the first and the newest that were accepted, and the newest that did
    not fail: no number of failed runs pushes them out.  The newest run of all goes along: the
    cluster says why it is no baseline.
    """
    found = filter(_is_run, find_runs(folder))
    runs = sorted(map(_look_at, found), key=lambda run: run.started, reverse=True)
    chosen: dict[Path, None] = {}
    for cluster in list(dict.fromkeys(run.cluster for run in runs))[:MAX_CLUSTERS]:
        own = [run for run in runs if run.cluster == cluster]
        accepted = [run for run in own if run.code == ACCEPTED]
        sound = [run for run in own if run.code in (ACCEPTED, UNPROVEN) and run.is_whole]
        chosen |= {run.path: None for run in (*accepted[:1], *accepted[-1:], *sound[:1])}
    return sorted({**chosen, **{run.path: None for run in runs[:1]}})


class _Look(NamedTuple):
    """What a run says of itself; the cluster verifies it."""

    path: Path
    started: str
    cluster: str
    code: int | None
    is_whole: bool = False  # finished, and not PARTIAL


def _look_at(run: Path) -> _Look:
    try:
        record = json.loads((run / RECORD).read_bytes())
        started, facts = str(record["started"]), record["cluster"]
        kind = bool(record.get("rehearsal"))
        cluster = json.dumps([facts.get("name"), len(facts.get("nodes") or ()), kind])
        is_whole = record.get("state") == "finished" and not record.get("partial")
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        started, cluster, is_whole = "", "", False
    return _Look(run, started, cluster, recorded_code(run), is_whole)


def recorded_code(run: Path) -> int | None:
    """Read the exit code that a run recorded in metrics.prom; None if it has none."""
    with suppress(OSError, ValueError):
        text = (run / "metrics.prom").read_text()
        if found := re.search(r"^seatrial_exit_code(?:\{.*\})? (\d+)$", text, re.MULTILINE):
            return int(found[1])
    return None


PLAN = "submission/plan.json"  # what to run, read by `entry`
FILES = "submission/files/"  # the user's files: the remote run is started among them
WHEELS = "submission/wheels/"
INFO = "submission/seatrial.dist-info/"  # so that the remote installation knows its version
CONTRACT = "seatrial.toml"  # of the current folder: used where no contract is named
CONTRACTS = SOURCES / "probes" / "contract" / "contracts"  # the shipped ones
URLS = ("http://", "https://")  # of a guide that is no file of the contract's folder
MAX_BASELINE = 400 << 20  # bytes, before they are packed
TOO_LARGE = f"expected at most {MAX_BASELINE >> 20} MiB: give one run, or fewer runs"
EPOCH = (1980, 1, 1, 0, 0, 0)  # one content gives one package, whatever the files' times


def make_package(
    options: Mapping[str, str], to_pytest: Sequence[str], wheels: Path | None, github: bool = False
) -> bytes:
    """Make the package as a zip file; with `github` the suite reports to GitHub Actions, too.

    `options` are those of `seatrial run`, by key.  The files that they name go with it, and are
    named as they are found there.  Raises SubmitError.
    """
    files = dict(_our_files())
    options = dict(options)
    if contract := options.get("contract"):
        options["contract"] = _add_contract(files, contract)
    for key in ("baseline", "paths_from"):
        if options.get(key):
            options[key] = _add_folder(files, Path(options[key]), key)
    found = sorted(wheels.glob("*.whl")) if wheels else []
    if wheels and not found:
        raise SubmitError(f"--wheels {wheels}: expected files *.whl, found none")
    for wheel in found:
        files[f"{WHEELS}{wheel.name}"] = wheel.read_bytes()
    plan = {"options": options, "to_pytest": list(to_pytest), "github": github}
    # Not what only its developers need.
    requires = [line for line in _distribution().requires or () if "extra ==" not in line]
    files[PLAN] = json.dumps({**plan, "requires": requires}).encode()
    return zip_files(files)


def zip_files(files: Mapping[str, bytes]) -> bytes:
    """Make a zip file of these contents, by name.  Raises SubmitError where Ray takes no such."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            info = zipfile.ZipInfo(name, EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            archive.writestr(info, files[name])
    content = buffer.getvalue()
    if len(content) >= MAX_PACKAGE:
        raise SubmitError(
            f"the upload is {len(content) / 2**20:.0f} MiB. Expected: less than"
            f" {MAX_PACKAGE // 2**20} MiB (Ray's limit). Use fewer wheels, or a smaller baseline"
        )
    return content


def package_name(content: bytes) -> str:
    """Name a package by its content, as Ray names its own."""
    return f"_ray_pkg_{hashlib.sha256(content).hexdigest()[:32]}.zip"


def _our_files() -> Iterable[tuple[str, bytes]]:
    """Each file of our packages, and of the metadata of this installation."""
    for package in PACKAGES:
        for path in sorted((SOURCES / package).rglob("*")):
            is_ours = path.is_file() and not path.is_symlink() and not path.name.startswith(".")
            if is_ours and path.suffix not in (".pyc", ".pyo"):
                yield path.relative_to(SOURCES).as_posix(), path.read_bytes()
    found = _distribution()
    text = found.read_text("METADATA") or found.read_text("PKG-INFO")  # of a checkout's egg-info
    yield f"{INFO}METADATA", (text or "").encode()
    if commit := find_commit():
        origin = {"url": DISTRIBUTION, "vcs_info": {"vcs": "git", "commit_id": commit}}
        yield f"{INFO}direct_url.json", json.dumps(origin).encode()


def _distribution() -> metadata.Distribution:
    try:
        return metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        do = "run `pip install --no-deps . click` in its checkout"
        raise SubmitError(f"seatrial is not installed here: {do}") from None


def _add_contract(files: dict[str, bytes], name: str) -> str:
    """Add a contract's file and its guide; return how the remote run names the contract."""
    if "/" not in name and not name.endswith(".toml"):
        return name  # a shipped one
    path, content = Path(name), read_contract(name)
    files[FILES + path.name] = content
    document = table(parse_toml(content), "launch").get("document")
    if isinstance(document, str) and document and not document.startswith(URLS):
        relative = Path(document)
        if relative.is_absolute() or ".." in relative.parts:
            raise SubmitError(
                f"contract {name}: [launch] document is {document}. Expected: a file in the folder"
                " of the contract (only such a file is sent to the cluster)"
            )
        guide = path.parent / relative
        if not guide.resolve().is_relative_to(path.parent.resolve()):
            raise SubmitError(
                f"[launch] document {document} is a link out of the contract's folder. "
                "Expected: a file in this folder"
            )
        try:
            files[FILES + relative.as_posix()] = guide.read_bytes()
        except OSError as error:
            raise SubmitError(f"[launch] document {document}: {error.strerror}") from None
    return path.name if path.name.endswith(".toml") else f"./{path.name}"


def read_contract(name: str) -> bytes:
    """Read a contract, shipped or a file.  Raises SubmitError."""
    path = Path(name) if "/" in name or name.endswith(".toml") else CONTRACTS / f"{name}.toml"
    try:
        return path.read_bytes()
    except OSError as error:
        if path.parent != CONTRACTS:
            raise SubmitError(f"contract {name}: {error.strerror}") from None
    shipped = ", ".join(sorted(path.stem for path in CONTRACTS.glob("*.toml")))
    raise SubmitError(f"seatrial has no contract {name!r}. Give a file, or one of {shipped}")


def parse_toml(content: bytes) -> dict[str, Any]:
    """Parse a contract; {} where that fails: the suite refuses it, and says why.

    Raises SubmitError where this Python cannot.
    """
    if not (name := next(filter(find_spec, ("tomllib", "tomli")), "")):
        do = "run `pip install tomli`"
        raise SubmitError(f"Python 3.10 cannot read a contract by itself: {do}")
    with suppress(ValueError):
        return dict(import_module(name).loads(content.decode()))
    return {}


def _add_folder(files: dict[str, bytes], folder: Path, key: str) -> str:
    """Add the files of a run, or of the newest runs of a folder, that the option `key` names."""
    option = f"--{key.replace('_', '-')} {folder}"
    if not folder.is_dir():
        found = "a file" if folder.exists() else "nothing"
        raise SubmitError(f"{option}: expected a run folder or a folder of runs, found {found}")
    if (folder / RECORD).is_file() and not _is_run(folder):
        raise SubmitError(f"{option}: it cannot be verified, because {FILE} is missing")
    target, size = f"{key}/{folder.resolve().name}", 0
    files[f"{FILES}{target}/.keep"] = b""  # a folder without runs yet is there, too
    for run in [folder] if _is_run(folder) else choose_runs(folder):
        for path in sorted(run.rglob("*")):
            if path.is_file() and not path.is_symlink():
                content = path.read_bytes()
                files[f"{FILES}{target}/{path.relative_to(folder).as_posix()}"] = content
                size += len(content)
                if size > MAX_BASELINE:
                    raise SubmitError(f"{option}: {TOO_LARGE}")
    return target


def _is_run(folder: Path) -> bool:
    return os.path.isfile(folder / FILE)
