"""A cluster of AMD's GPUs is refused in one sentence, and no other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from probes.cluster.address import ClusterUnreachable
from probes.cluster.cluster import refuse_amd

pytest_plugins = ["pytester"]
NO_NVML = {"library": False, "error": None}
MI300X: dict[str, Any] = {
    "software": {"torch": "2.9.0+rocm6.4", "driver": ""},
    "nvml": NO_NVML,
    "gpus": [],
    "amd_driver": True,
}
H100: dict[str, Any] = {
    "software": {"torch": "2.9.0+cu128", "driver": "570.86.15"},
    "nvml": {"library": True, "error": None},
    "gpus": [{"name": "NVIDIA H100 80GB HBM3"}],
    "amd_driver": False,
}
INTEGRATED = H100 | {"amd_driver": True}  # a graphics chip of AMD in the processor
CPU_TORCH = {"torch": "2.9.0", "driver": ""}


def cluster(*nodes: dict[str, Any], resource: str = "GPU", emulated: bool = False) -> Any:
    facts = [{"name": f"n{at}", **node} for at, node in enumerate(nodes)]
    return SimpleNamespace(facts=facts, resource=resource, emulated=emulated)


@pytest.mark.parametrize(
    "node",
    [
        MI300X,
        MI300X | {"amd_driver": False},  # the container lacks /dev/kfd
        MI300X | {"software": CPU_TORCH},
    ],
)
def test_amds_gpus_are_refused_in_one_sentence(node: dict[str, Any]) -> None:
    with pytest.raises(ClusterUnreachable) as caught:
        refuse_amd(cluster(node, node))
    assert str(caught.value) == (
        "the GPUs of n0, n1 are AMD's, and seatrial tests NVIDIA GPUs only. `seatrial nccl-log` "
        "can read the logs of RCCL"
    )


@pytest.mark.parametrize(
    "tested",
    [
        cluster(H100),
        cluster(INTEGRATED, INTEGRATED),
        cluster(INTEGRATED | {"gpus": [], "nvml": NO_NVML}),  # NVIDIA's driver is loaded
        cluster(INTEGRATED | {"software": CPU_TORCH, "gpus": []}),  # NVIDIA's library is there
        cluster(
            MI300X | {"amd_driver": False, "software": CPU_TORCH}
        ),  # HOSTS says what is missing
        cluster(MI300X, H100),  # HOSTS judges that node
        cluster(),  # no node answers
        cluster(MI300X, resource="CPU"),
        cluster(MI300X, emulated=True),
    ],
)
def test_no_other_cluster_is_refused(tested: Any) -> None:
    refuse_amd(tested)


def test_a_run_on_amds_gpus_ends_at_its_start_with_4(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        "from types import SimpleNamespace\nimport probes.session.session as session\n"
        f"FACT = {dict(MI300X, name='mi0')!r}\n"
        "joined = SimpleNamespace(emulated=False, resource='GPU', facts=[FACT],\n"
        "    claim=lambda *_: None, close=lambda: print('left the cluster'))\n"
        "session.connect = lambda spec: joined\n"
    )
    pytester.makepyfile(
        test_probe="import pytest\n@pytest.mark.criterion('GANG')\ndef test_it(measure): pass\n"
    )
    result = pytester.runpytest_subprocess(
        "-p", "probes.plugin", "--cluster", "auto", "-s", timeout=60
    )
    assert result.ret == 4
    assert "the GPUs of mi0 are AMD's" in result.stderr.str()
    assert "left the cluster" in result.stdout.str()
    assert not (pytester.path / "runs").is_dir() or not [*(pytester.path / "runs").glob("*-*")]
