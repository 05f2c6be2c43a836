"""A copy of a run for other parties: names are replaced by aliases, the decision is the same."""

from __future__ import annotations

from reports.share.shared_copy import ShareRefused, share_record, write_shared

__all__ = ["ShareRefused", "share_record", "write_shared"]
