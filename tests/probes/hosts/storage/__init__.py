"""Tests of HOSTS' probe of the shared folder."""
