"""Plugin of pytest: random kills of tier soak last half an hour, so a driver lives for over one."""

from __future__ import annotations

from probes.restart import other_ranks

other_ranks.SOAK_SECONDS = 1800
