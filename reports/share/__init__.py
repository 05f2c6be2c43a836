"""A copy of a run that can be handed over: names are aliases, all else is the same."""

from __future__ import annotations

from reports.share.shared_copy import ShareRefused, share_record, write_shared

__all__ = ["ShareRefused", "share_record", "write_shared"]
