"""Provides a stand-in for a cluster, and probes for it: tests of pytest's part need no Ray."""

from __future__ import annotations

from probes.check.registry import CRITERIA

STAND_IN = """
import probes.session.session

pytest_plugins = ["probes.plugin"]

class Keeper:
    problems = []
    def register(self, *a): pass
    def unregister(self, *a): pass

class KeptGang:
    def release(self): pass

class StandIn:
    kind, rehearsal, emulated, resource, size = "ray", "a stand-in", False, "GPU", 2
    on_gpu = True
    address = "127.0.0.1:9"
    facts = [{"name": "n0", "node": "1", "rdma": [], "environment": {}, "interfaces": {}}]
    nodes = [{"id": "1", "name": "n0", "alive": True}]
    errors, expected_losses = {}, set()
    cleanup, embedded_nodes, kept_gang = Keeper(), None, KeptGang()
    paths_before = None
    def on_each_node(self, *a, **k): return {}
    def claim(self, *a): pass
    def describe_busy(self, seconds): return ""
    def release(self): pass
    def node_states(self): return []
    def close(self): pass

probes.session.session.connect = lambda spec: StandIn()
"""

PROBE = '''
import pytest

@pytest.mark.criterion("{criterion}")
def test_it(cluster, measure, tier):
    """It holds.

    More words.
    """
    {body}
'''

CONTROL = (
    'measure._record("control", __import__("reports.record").record.Control('
    'name="c", fault="a fault", caught={caught}, saw="{saw}"))'
)
CAUGHT = CONTROL.format(caught=True, saw="it")
GOOD = 'measure("partially_held", 0)'
BROKEN = 'measure("partially_held", 3)'


def owes(criterion: str, measure: str) -> str:
    """Return the source of a suite that owes two probes, in two files, for one criterion."""
    return f"""
import pathlib
import probes.check.owed
from reports.record import OwedProbe

probes.check.owed.owed_by = lambda here: [
    OwedProbe(probe=f"{{pathlib.Path.cwd()}}/test_{{name}}.py::test_it", criterion="{criterion}",
              tier=here.tier, measures=["{measure}"], controls=["c"])
    for name in ("sound", "broken")
]
"""


def agreed_for(criterion: str, more: str = "") -> str:
    """Return a contract that requires this criterion only, with `more` agreed for it."""
    others = "\n".join(
        f'[{other}]\nnot_provable = "the cluster of this test is a stand-in"'
        for other in CRITERIA
        if other != criterion
    )
    return f'\nschema = 1\n[cluster]\naccelerators = "emulated"\n{others}\n{more}\n'


OWES, CONTRACT = owes("GANG", "partially_held"), agreed_for("GANG")
