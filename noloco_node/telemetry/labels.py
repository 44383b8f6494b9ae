"""Label values are bounded: a stranger's words never become time series."""

from __future__ import annotations

import re

from noloco_node.core.exchange_reason import Reason, partners_reason
from noloco_node.core.types import OfferAnswer, Outcome, Phase

OTHER = "other"
PHASES = tuple(str(phase) for phase in Phase)
OUTCOMES = tuple(str(outcome) for outcome in Outcome)
OFFER_ANSWERS = (*(str(answer) for answer in OfferAnswer), "lost")
BOOTSTRAP_STATES = ("alone", "waiting", "joined")
SOURCES = ("seed", "checkpoint", "kept", "peer")
SERVICES = ("node", "exchange", "prefetch", "pipeline", "state", "dht")
DIRECTIONS = ("sent", "received")
REFUSALS = (
    *("banned", "denied", "not_allowed", "no_lease", "joining", "leaving", "outranked", "expired", "forged"),
    *("wrong_run", "bad_record", "busy", "too_many"),
)
STRIKES = ("damaged", "not_finite", "mismatch", "malformed", "expired", "forged", "wrong_run", "bad_record")

_TELLING_WORDS = (
    # found in a free sentence -> label; the first that is known to the metric wins
    ("expired", "expired"),
    ("sign", "forged"),
    ("another peer", "forged"),
    ("another run", "wrong_run"),
    ("record", "bad_record"),
    ("finite", "not_finite"),
    ("digest", "damaged"),
    ("checksum", "damaged"),
    ("chunk", "damaged"),
    ("ended after", "damaged"),
    ("dtype", "mismatch"),
    ("shape", "mismatch"),
    ("bytes", "mismatch"),
    ("size", "mismatch"),
    ("message", "malformed"),
    ("must be", "malformed"),
    ("outside", "malformed"),
)


def label(text: str) -> str:
    """Words as one label value: "partner: other shapes" is partner_other_shapes."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")


CLOSE_REASONS = (
    *(label(reason) for reason in Reason),
    *(label(partners_reason(reason)) for reason in Reason),
    "partner_other",
)


def bounded(text: str, known: tuple[str, ...]) -> str:
    """`text` as one of `known`, or "other". Exact names first, then telling words of a free sentence."""
    name = label(text[:200])
    if name in known:
        return name
    lowered = text[:200].lower()
    return next((value for word, value in _TELLING_WORDS if word in lowered and value in known), OTHER)
