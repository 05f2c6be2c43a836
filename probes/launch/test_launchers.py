"""Tests that other launchers give each rank what it needs: torchrun's agents and Ray Train."""

from pathlib import Path

import pytest

from probes.acceptance.fixtures import shared_folder
from probes.acceptance.stash import RUN
from probes.cluster.shared_folder import find_folder_problem
from probes.launch.job.coordinator import removed_coordinator
from probes.launch.job.ranks import all_lack, wrong_ranks
from probes.launch.judge import explain_wrong_ranks, judge_job, keep_transcript, read_job
from probes.launch.prepare import prepare_path

# Megatron-LM does not start without it where tensors or sequences are parallel, up to Hopper
# (megatron/training/arguments.py). What DeepSpeed and Accelerate read is in REQUIRED_VARIABLES.
MEGATRON = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
NOT_INSTALLED = "Ray Train cannot be used"
ONCE = ["--restarts", "0"]


@pytest.mark.criterion("LAUNCH")
@pytest.mark.tier("soak")
def test_other_launchers_give_each_rank_what_it_needs(cluster, terms, measure, request):
    """torchrun and Ray Train start the same job: each rank has all variables that it needs.

    DeepSpeed, Accelerate and Megatron read them.  A variable of Megatron's that the job forgets
    must be found on each rank.
    """
    with (
        shared_folder(request.config.stash[RUN]) as folder,
        prepare_path(cluster, terms, measure) as path,
    ):
        open_folder(cluster, folder)
        settings = [word for pair in MEGATRON.items() for word in ("--set", "=".join(pair))]
        shown = path.show_options(MEGATRON)
        for launcher in terms.launch.launchers:
            measure.progress(f"launch: the same job, started by {launcher}")
            out = ["--launcher", launcher, "--out", str(folder / launcher)]
            with removed_coordinator(cluster):
                said = path.follow([*out, *ONCE, *settings, *shown])
            file = f"transcript-{launcher}.txt"
            keep_transcript(said, measure, file, f"the guide's job, started by {launcher}")
            judge_launcher(path, launcher, said, measure)
        measure.progress("launch: the same job with a forgotten variable")
        unset = [word for name in MEGATRON for word in ("--unset", name)]
        forgotten = path.follow([*ONCE, *unset, *shown])
    control_forgotten(path, forgotten, measure)
    measure.covered(f"jobs of {', '.join(terms.launch.launchers)}")


def open_folder(cluster, folder):
    """Let the job's user write into the folder; fail the probe unless each node sees it."""
    cause, _ = find_folder_problem(cluster, folder or Path())
    if cause:
        pytest.fail(f"other launchers need a folder that every node sees: {cause}", pytrace=False)
    folder.parent.chmod(0o711)
    folder.chmod(0o1777)


def judge_launcher(path, launcher, said, measure):
    """Judge a launcher's job; one that is not installed is not judged."""
    if NOT_INSTALLED in said.text:
        note = f"{launcher} is not installed in the ranks' environment"
        for name in ("wrong_ranks", "exit_code", "ranks"):
            measure(name, None, on=launcher, note=note)
        return
    judge_job(path, said, measure, on=launcher, more=MEGATRON)


def control_forgotten(path, forgotten, measure):
    """Check that every rank is found which lacks the variable that the job forgot."""
    trial, job = measure.trial(), read_job(path, forgotten, more=MEGATRON)
    wrong = wrong_ranks(job)
    trial("wrong_ranks", len(wrong) if job.rows else None, samples=len(job.rows))
    explain_wrong_ranks(wrong, trial)
    lacking = all(all_lack(wrong, name, job.size) for name in MEGATRON)
    fault = "the job forgets a variable that Megatron reads"
    measure.control("forgotten variable", fault, trial, located=lacking)
