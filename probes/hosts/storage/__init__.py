"""HOSTS: the shared folder, as the jobs of all nodes use it at once."""
