"""Plugin of pytest: random kills of tier soak last half an hour, so a driver lives for over one."""

from __future__ import annotations

from probes.restart import random_kills

random_kills.SOAK_SECONDS = 1800
