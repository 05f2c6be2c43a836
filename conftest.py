"""Registers the plugin for a checkout; an installed seatrial registers it by itself."""

pytest_plugins = ["probes.plugin"]
