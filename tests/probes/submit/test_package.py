"""The package of a submission: what goes to the cluster, and what is refused."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import click
import pytest

from probes.submit import package
from probes.submit.follow import SubmitError
from probes.submit.package import FILES, PLAN, choose_runs, make_package, package_name, zip_files
from reports.version import PACKAGES, SOURCES


def contents(packed: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def plan_of(packed: bytes) -> dict[str, object]:
    return dict(json.loads(contents(packed)[PLAN]))


def test_the_package_holds_our_packages_and_what_they_require() -> None:
    files = contents(make_package({"contract": "lab", "tier": "quick"}, ["-k", "ib"], None))
    ours = {
        path.relative_to(SOURCES).as_posix(): path.read_bytes()
        for name in PACKAGES
        for path in (SOURCES / name).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert {name: files.get(name) for name in ours} == ours
    assert [name for name in files if name.endswith(".pyc")] == []
    plan = json.loads(files[PLAN])
    assert plan["options"] == {"contract": "lab", "tier": "quick"}
    assert plan["to_pytest"] == ["-k", "ib"]
    assert any(line.startswith("pytest") for line in plan["requires"])
    assert not any("ruff" in line for line in plan["requires"])
    info = files["submission/seatrial.dist-info/METADATA"].decode()
    assert f"Version: {metadata.version('seatrial')}" in info


def test_one_content_has_one_name(tmp_path: Path) -> None:
    first, second = (make_package({"contract": "lab"}, [], None) for _ in range(2))
    assert package_name(first) == package_name(second)
    assert package_name(make_package({"contract": "local"}, [], None)) != package_name(first)


def test_a_contract_goes_with_its_guide(tmp_path: Path) -> None:
    contract = tmp_path / "mine.toml"
    contract.write_text('[launch]\ndocument = "docs/guide.md"\n')
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "guide.md").write_text("guide")
    packed = make_package({"contract": str(contract)}, [], None)
    files = contents(packed)
    assert files[f"{FILES}mine.toml"] == contract.read_bytes()
    assert files[f"{FILES}docs/guide.md"] == b"guide"
    assert plan_of(packed)["options"] == {"contract": "mine.toml"}


def test_a_guide_that_is_a_link_to_elsewhere_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "..data").mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    (folder / "..data" / "guide.md").write_text("guide")
    (folder / "mine.toml").write_text('[launch]\ndocument = "guide.md"\n')
    (folder / "guide.md").symlink_to("..data/guide.md")  # as Kubernetes mounts a ConfigMap
    files = contents(make_package({"contract": str(folder / "mine.toml")}, [], None))
    assert files[f"{FILES}guide.md"] == b"guide"
    (folder / "guide.md").unlink()
    (folder / "guide.md").symlink_to(tmp_path / "secret")
    with pytest.raises(SubmitError, match="is a link out of the contract's folder"):
        make_package({"contract": str(folder / "mine.toml")}, [], None)


def test_only_our_files_of_our_folders_go_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "probes" / ".env").write_text("AWS_SECRET_ACCESS_KEY=x")
    (tmp_path / "probes" / "link.py").symlink_to("/etc/hosts")
    monkeypatch.setattr("probes.submit.package.SOURCES", tmp_path)
    names = {name for name in contents(make_package({}, [], None)) if name.startswith(PACKAGES)}
    assert names == {f"{name}/__init__.py" for name in PACKAGES}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("../guide.md", "Expected: a file in the folder of the contract"),
        ("/etc/hosts", "Expected: a file in the folder of the contract"),
        ("a/../../guide.md", "Expected: a file in the folder of the contract"),
        ("none.md", "document none.md: No such file"),
    ],
)
def test_a_guide_elsewhere_is_refused(tmp_path: Path, document: str, words: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "guide.md").write_text("guide")
    (folder / "mine.toml").write_text(f'[launch]\ndocument = "{document}"\n')
    with pytest.raises(SubmitError, match=words):
        make_package({"contract": str(folder / "mine.toml")}, [], None)


@pytest.mark.parametrize(
    "text", ["", 'launch = "no table"', "[launch]\ndocument = 7", "no toml", '[launch]\ndocument = "https://a/b.md"']
)  # fmt: skip
def test_a_contract_that_the_suite_judges_goes_as_it_is(tmp_path: Path, text: str) -> None:
    (tmp_path / "mine.toml").write_text(text)
    files = contents(make_package({"contract": str(tmp_path / "mine.toml")}, [], None))
    assert [name for name in files if name.startswith(FILES)] == [f"{FILES}mine.toml"]


def test_a_baseline_and_wheels_go_along(tmp_path: Path) -> None:
    (tmp_path / "old" / "evidence").mkdir(parents=True)
    (tmp_path / "old" / "evidence" / "a.log").write_text("a")
    (tmp_path / "old" / "events.jsonl").write_text("e")
    (tmp_path / "old" / "link").symlink_to("/etc/hosts")
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "a-1-py3-none-any.whl").write_bytes(b"wheel")
    alone = contents(make_package({"paths_from": str(tmp_path / "old")}, [], None))
    assert alone[f"{FILES}paths_from/old/evidence/a.log"] == b"a"
    packed = make_package({"baseline": str(tmp_path / "old")}, [], tmp_path / "wheels")
    files = contents(packed)
    assert plan_of(packed)["options"] == {"baseline": "baseline/old"}
    assert files[f"{FILES}baseline/old/evidence/a.log"] == b"a"
    assert files["submission/wheels/a-1-py3-none-any.whl"] == b"wheel"
    assert sorted(name for name in files if name.startswith(FILES)) == [
        f"{FILES}baseline/old/.keep",
        f"{FILES}baseline/old/events.jsonl",
        f"{FILES}baseline/old/evidence/a.log",
    ]


def test_what_cannot_be_sent_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SubmitError, match=r"expected files \*\.whl, found none"):
        make_package({}, [], tmp_path)
    with pytest.raises(SubmitError, match="a folder of runs, found nothing"):
        make_package({"baseline": str(tmp_path / "none")}, [], None)
    (tmp_path / "record.json").write_text("{}")
    with pytest.raises(SubmitError, match="a folder of runs, found a file"):
        make_package({"baseline": str(tmp_path / "record.json")}, [], None)
    with pytest.raises(SubmitError, match=r"cannot be verified, because events\.jsonl is missing"):
        make_package({"baseline": str(tmp_path)}, [], None)
    with pytest.raises(SubmitError, match=r"none\.toml: No such file"):
        make_package({"contract": str(tmp_path / "none.toml")}, [], None)
    monkeypatch.setattr(package, "MAX_PACKAGE", 1000)
    with pytest.raises(SubmitError, match="Use fewer wheels"):
        make_package({}, [], None)


def test_a_package_is_smaller_than_what_ray_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(zip_files({"a": b"x"}))
    monkeypatch.setattr(package, "MAX_PACKAGE", size)
    with pytest.raises(SubmitError, match="Expected: less than"):
        zip_files({"a": b"x"})
    monkeypatch.setattr(package, "MAX_PACKAGE", size + 1)
    zip_files({"a": b"x"})


def test_a_contract_of_the_current_folder_goes_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").touch()
    (tmp_path / "mine").touch()
    for given, name in (("mine.toml", "mine.toml"), ("./mine", "./mine")):
        packed = make_package({"contract": given}, [], None)
        assert plan_of(packed)["options"] == {"contract": name}
        assert f"{FILES}{Path(name).name}" in contents(packed)


def test_the_client_needs_click_alone(tmp_path: Path) -> None:
    """A Python without site-packages makes a package, and prints the command's help."""
    for name in PACKAGES:
        (tmp_path / name).symlink_to(SOURCES / name)
    (tmp_path / "click").symlink_to(Path(str(click.__file__)).parent)
    info = tmp_path / "seatrial-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: seatrial\nVersion: 0.1.0\n")
    code = (
        "import sys\n"
        "from probes.submit.package import make_package\n"
        "make_package({'contract': 'lab'}, [], None)\n"
        "from probes.cli.main import main\n"
        "main(['submit', '--address', 'http://127.0.0.1:9'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 4, done.stderr
    lost = "error: the dashboard cannot be used: http://127.0.0.1:9: [Errno 111]"
    assert done.stderr.startswith(lost)


def past_run(
    folder: Path, name: str, code: int | None, cluster: str = "atlas", **more: str
) -> None:
    """A run as it says of itself; its name is when it began."""
    run = folder / name
    run.mkdir(parents=True)
    (run / "events.jsonl").write_text("e")
    facts = {"name": cluster, "nodes": [{}, {}]}
    record = {"started": name, "cluster": facts, "state": "finished", "partial": "", **more}
    (run / "record.json").write_text(json.dumps(record))
    if code is not None:
        (run / "metrics.prom").write_text(f'seatrial_exit_code{{run="x"}} {code}\n')


def test_failed_runs_never_push_the_accepted_one_out(tmp_path: Path) -> None:
    """Five bad nights: the accepted run goes along, so that the sixth is compared with it."""
    for number, code in enumerate([0, 20, 0, *[1] * 8]):
        past_run(tmp_path, f"2026-01-{number + 10}", code)
    chosen = [run.name for run in choose_runs(tmp_path)]
    assert chosen == ["2026-01-10", "2026-01-12", "2026-01-20"]  # the first accepted one, too


def test_of_each_cluster_the_newest_that_may_be_a_baseline_go_along(tmp_path: Path) -> None:
    past_run(tmp_path / "a" / "deep", "2026-01-01", 0)
    past_run(tmp_path / "a", "2026-01-02", 20)
    past_run(tmp_path / "b", "2026-01-03", 0, "borea")
    past_run(tmp_path / "b", "2026-01-04", 2, "borea")
    past_run(tmp_path, "2026-01-05", None, "ceres")
    past_run(tmp_path / ".seatrial-torn", "2026-01-06", 0)
    os.utime(tmp_path / "b" / "2026-01-03" / "events.jsonl", (2**31, 2**31))  # copied since
    (tmp_path / "link").symlink_to(tmp_path / "a" / "deep")
    chosen = [run.relative_to(tmp_path).as_posix() for run in choose_runs(tmp_path)]
    assert chosen == ["2026-01-05", "a/2026-01-02", "a/deep/2026-01-01", "b/2026-01-03"]


def test_what_can_be_no_baseline_does_not_take_the_place_of_one(tmp_path: Path) -> None:
    past_run(tmp_path, "2026-01-01", 20)
    past_run(tmp_path, "2026-01-02", 20, partial="--only FABRIC")
    past_run(tmp_path, "2026-01-03", 20, state="interrupted")
    past_run(tmp_path / "other", "2026-01-04", 0)
    past_run(tmp_path / "other", "2026-01-05", 0, rehearsal="of 2 raylets")
    names = [run.name for run in choose_runs(tmp_path)]
    assert names == ["2026-01-04", "2026-01-05"]


def test_a_partial_run_does_not_push_the_first_whole_one_out(tmp_path: Path) -> None:
    past_run(tmp_path, "2026-01-01", 20)
    past_run(tmp_path, "2026-01-02", 20, partial="--only FABRIC")
    assert [run.name for run in choose_runs(tmp_path)] == ["2026-01-01", "2026-01-02"]


def test_runs_of_many_clusters_are_bounded(tmp_path: Path) -> None:
    for number in range(9):
        past_run(tmp_path, f"2026-01-0{number}", 0, f"cluster{number}")
    names = [run.name for run in choose_runs(tmp_path)]
    assert names == [f"2026-01-0{number}" for number in range(5, 9)]


@pytest.mark.parametrize("record", ["{}", "[]", "no json", '{"started": 1, "cluster": null}'])
def test_a_run_that_says_nothing_of_itself_goes_along_where_it_is_the_only_one(
    record: str, tmp_path: Path
) -> None:
    past_run(tmp_path, "old", 0)
    (tmp_path / "old" / "record.json").write_text(record)
    assert [run.name for run in choose_runs(tmp_path)] == ["old"]
    assert choose_runs(tmp_path / "nothing") == []


def test_only_runs_of_a_folder_go_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    past_run(tmp_path / "runs", "2026-01-01", 0)
    (tmp_path / "runs" / "secret").mkdir()
    (tmp_path / "runs" / "secret" / "key").write_text("k")
    files = contents(make_package({"baseline": str(tmp_path / "runs")}, [], None))
    sent = [name.split("/")[-2] for name in files if name.endswith("events.jsonl")]
    assert sent == ["2026-01-01"]
    assert not any("secret" in name for name in files)
    monkeypatch.setattr(package, "MAX_BASELINE", 3)
    with pytest.raises(SubmitError, match="expected at most 400 MiB"):
        make_package({"baseline": str(tmp_path / "runs")}, [], None)


def test_a_python_that_reads_no_toml_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    assert package.parse_toml(b"draft = true") == {"draft": True}
    assert package.parse_toml(b"draft = ") == {}
    monkeypatch.setattr(package, "find_spec", lambda _: None)
    with pytest.raises(SubmitError, match="run `pip install tomli`"):
        package.parse_toml(b"draft = true")
