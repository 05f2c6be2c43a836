"""Verbs that a function's docstring begins with, in the imperative or the third person."""

from __future__ import annotations

import re

VERBS = """
accept add admit aim allow analyse analyze announce answer append apply arm ask assert assign
attach average await begin bind block bound break bring build bump calculate call cancel cap check
choose claim classify clean clear clip close collect combine come compare compile complete
compute configure confirm connect consume contend convert copy count create cut decide declare
decode deliver demand derive describe detach detect determine digest discard divide do draw drop
dump emulate encode end ensure enter enumerate escape estimate evaluate exclude execute exit
expand expect explain export expose extract fail fetch fill filter find finish fit fix flag flush
fold follow forbid force format free gather generate get give go group guess halt handle hash
heal hold identify ignore import include index infer inject insert inspect install interpret
invoke iterate join judge keep kill label launch leave let limit link list listen load locate
lock log look make map mark match measure meet merge mix modify mount move multiply name narrow
normalise normalize note notice number observe offer open order pace pack pad parse part pass
patch pause pick pin place plan plant plot poll post predict prepare present preserve print
probe process produce prove provide publish pull push put query raise rank read rebuild receive
record redact reduce refuse register reject release reload remove rename render repeat replace
replay report request require rescale reserve reset resolve restore restrict resume retry return
reuse reverse rewrite rotate round run sample save scale scan schedule search seed select send
separate serialise serialize serve set settle shape share shift ship show shrink shut sign
simulate size skip sleep slice sort spawn split spread start state step stop store stream strip
subtract suggest sum summarise summarize supervise sweep switch sync synchronise synchronize
take tell test tie time touch trace track train transfer translate trim truncate try turn undo
unlock unpack update upload use validate verify visit wait walk warm warn watch weigh wrap write
yield
"""
# Of remedies, which are orders to a person.
ORDERS = """
plug
agree commit cool correct delete drain enlarge lift mount point power-cycle reboot relieve repair
reseat see shorten speed test treat unset
"""
IRREGULAR = """
applies carries copies denies identifies modifies multiplies queries replies retries tries
unifies verifies classifies is has does goes
"""
STEMS = "|".join(sorted([*VERBS.split(), *ORDERS.split()], key=len, reverse=True))
VERB = re.compile(rf"(?:{STEMS})(?:s|es)?\b|(?:{'|'.join(IRREGULAR.split())})\b", re.IGNORECASE)


def begins_with_verb(text: str) -> bool:
    """Return whether the first word is one of these verbs."""
    return VERB.match(text) is not None
