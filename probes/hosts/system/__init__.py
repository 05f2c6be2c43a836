"""HOSTS: the limits, the room and the clock that a job finds on each node."""
