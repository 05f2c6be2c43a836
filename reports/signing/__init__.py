"""Signatures of the parties under a run folder, made and checked by `ssh-keygen -Y`."""
