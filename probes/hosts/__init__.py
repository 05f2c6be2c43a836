"""HOSTS: the machines are what was ordered."""
