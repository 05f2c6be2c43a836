"""Signatures of the parties for a run folder, made and checked by `ssh-keygen -Y`."""
