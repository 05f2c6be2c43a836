"""Reads further facts of one node; `probes/cluster/node_facts.py` puts them together."""
