"""Where a claim of a seat stands, and what keeps one alive. The words only; `core.membership` acts on them."""

from __future__ import annotations

from enum import StrEnum

from noloco_node.core import events as ev


class Claiming(StrEnum):
    """Where a claim stands. Named after what is waited for."""

    IDLE = "idle"  # not started
    LOOKING = "looking"  # for a vacant seat
    PAUSING = "pausing"  # a drawn share of lease_s / 4, so that newcomers do not claim at once
    CHECKING = "checking"  # that the seat is still vacant
    PUBLISHING = "publishing"  # our `joining` record
    SETTLING = "settling"  # settle_s, for rivals to show up
    CONFIRMING = "confirming"  # that no better claim did
    HOLDING = "holding"
    RECHECKING = "rechecking"  # nobody took our record for lease_s: is the seat still ours to have?
    RECLAIMING = "reclaiming"  # it is free: a new claim of it
    SPARE = "spare"  # no seat for us now
    LEFT = "left"


ANSWERED_CALLS = (ev.HopAdmitted, ev.HopRefused, ev.GradientArrived, ev.OfferAnswered, ev.PeerAnswered)
"""Answers to our calls: the peer took the record that the call carried."""

SEATED = (Claiming.HOLDING, Claiming.RECHECKING, Claiming.RECLAIMING)
OCCUPYING = (Claiming.SETTLING, Claiming.CONFIRMING, *SEATED)
