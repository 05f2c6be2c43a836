"""A cluster that is not one, and probes for it: what pytest does with them needs no Ray."""

STAND_IN = """
import probes.acceptance.session

class Keeper:
    def register(self, *a): pass
    def unregister(self, *a): pass

class StandIn:
    kind, rehearsal, emulated, resource, size = "ray", "a stand-in", False, "GPU", 2
    on_gpu = True
    address = "127.0.0.1:9"
    facts = [{"name": "n0", "node": "1", "rdma": [], "environment": {}, "interfaces": {}}]
    nodes = [{"id": "1", "name": "n0", "alive": True}]
    errors = {}
    cleanup, embedded_nodes = Keeper(), None
    def on_each_node(self, *a, **k): return {}
    def close(self): pass

probes.acceptance.session.connect = lambda spec: StandIn()
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

CAUGHT = 'measure.control("c", "a fault", caught=True, saw="it")'
GOOD = 'measure("partially_held", 0)'
