"""Registers the plugin for a checkout.  Elsewhere `seatrial run` or `-p probes.plugin` does."""

pytest_plugins = ["probes.plugin"]
