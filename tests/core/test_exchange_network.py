"""Two desks over a bad network: the invariants 1 to 5 of DESIGN 5a under schedules that hypothesis draws."""

from __future__ import annotations

from fractions import Fraction

import pytest
from exchange_world import EXCHANGE_MAX_S, GRACE_S, PHASE_S, Faults, World
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from noloco_node.core.exchange_table import ExchangeState
from noloco_node.core.types import Begin, Commit, ExchangeMessage, Have, Outcome, PeerId, Ready, Seat

STEPS = 3
A, B = PeerId("p0"), PeerId("p1")
quickly = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def dues(late: float = 0.0, steps: int = STEPS) -> list[float]:
    return [PHASE_S * (k + 1) + late for k in range(steps)]


def run(faults: Faults | None = None, late: float = 0.0, steps: int = STEPS) -> World:
    world = World([dues(0.0, steps), dues(late, steps)], faults)
    return world.run(PHASE_S * (steps + 2))


def outcomes(world: World, peer: PeerId) -> list[tuple[Outcome | None, str]]:
    return [(step.outcome, step.reason) for _, step in sorted(world.sides[peer].steps.items())]


def lose(world: World, unwanted: type[ExchangeMessage], sender: PeerId, from_s: float = 0.0, to_s: float = 1e9) -> None:
    """Every message of that kind by that sender is lost between the two times."""
    say = world.say

    def lossy(side, peer, message):  # type: ignore[no-untyped-def]
        if not (isinstance(message, unwanted) and side.peer == sender and from_s <= world.now < to_s):
            say(side, peer, message)

    world.say = lossy  # type: ignore[method-assign]


spans = st.tuples(st.floats(0, PHASE_S * STEPS), st.floats(0.1, 25)).map(lambda s: (s[0], s[0] + s[1]))
near_boundary = st.tuples(st.sampled_from(dues()), st.floats(-1, 20), st.floats(0.05, 40)).map(
    lambda s: (s[0] + s[1], s[0] + s[1] + s[2])
)
fault_plans = st.builds(
    Faults,
    seed=st.integers(0, 2**32),
    latency_s=st.floats(0.001, 1.0),
    jitter_s=st.floats(0, 0.5),
    loss=st.sampled_from([0.0, 0.2, 0.6]),
    double=st.sampled_from([0.0, 0.3]),
    cuts=st.lists(st.one_of(spans, near_boundary), max_size=4).map(tuple),
    chunk_s=st.floats(0.01, 4),
    verify_s=st.floats(0.0, 3),
)


def test_a_quiet_network_pairs_every_step_and_keeps_the_sum() -> None:
    world = run()
    assert world.check_pairs() == []
    for peer in (A, B):
        assert outcomes(world, peer) == [(Outcome.PAIRED, "committed")] * STEPS
        assert [step.added for step in world.sides[peer].steps.values()] == [1] * STEPS
    local = sum(
        (s.x / 5 for side in world.sides.values() for s in side.steps.values()), Fraction(1, 3) + Fraction(2, 3)
    )
    assert sum(side.phi for side in world.sides.values()) == local


@given(faults=fault_plans, late=st.floats(-4, 4))
@quickly
def test_invariants_hold_whatever_the_network_does(faults: Faults, late: float) -> None:
    world = run(faults, late=late)
    unlike = world.check_pairs()
    for k in unlike:
        decider, follower = world.pair(k)
        assert follower.ready_s is not None
        assert follower.reason == "doubt"
        assert decider.outcome is Outcome.PAIRED
        end_s = follower.next_boundary_s or world.now
        heard = [
            s for s, peer, step in world.verdicts if (peer, step) == (B, k) and follower.ready_s <= s < end_s - 0.02
        ]
        assert not heard, "a follower that hears the verdict in time is never alone"


@given(
    faults=st.builds(
        Faults,
        seed=st.integers(0, 2**32),
        latency_s=st.floats(0.001, 0.5),
        jitter_s=st.floats(0, 0.5),
        cuts=st.lists(st.tuples(st.floats(25, 95), st.floats(0.05, 4)), max_size=4).map(
            lambda cuts: tuple((start, start + length) for start, length in cuts)
        ),
        chunk_s=st.floats(0.01, 2),
        verify_s=st.floats(0, 1),
    ),
    late=st.floats(-2, 2),
)
@quickly
def test_short_cuts_never_split_a_pair(faults: Faults, late: float) -> None:
    """The link comes back long before the follower's next boundary: both paired or both solo, without exception."""
    assert run(faults, late=late).check_pairs() == []


@given(faults=fault_plans, late=st.floats(0, GRACE_S - 1.0))
@quickly
def test_pairs_end_alike_when_messages_may_only_be_doubled_or_late(faults: Faults, late: float) -> None:
    faults.loss, faults.cuts = 0.0, ()
    assert run(faults, late=late).check_pairs() == []


@given(
    faults=fault_plans,
    victim=st.sampled_from([A, B]),
    killed_s=st.floats(28, 70),
    away_s=st.floats(0.2, 20),
    back=st.integers(0, 1),
)
@quickly
def test_a_killed_side_stops_nobody(faults: Faults, victim: PeerId, killed_s: float, away_s: float, back: int) -> None:
    world = World([dues(), dues()], faults)
    side = world.sides[victim]
    world.at(killed_s, side.kill)
    world.at(killed_s + away_s, lambda: side.restart(max(0, side.step - back)))
    world.run(PHASE_S * (STEPS + 2))
    survivor = world.sides[B if victim == A else A]
    assert sorted(survivor.steps) == list(range(STEPS))
    assert all(step.outcome is not None for step in survivor.steps.values())
    assert sorted(side.steps) == list(range(STEPS))
    world.check_pairs(is_crash_free=False)


@pytest.mark.parametrize("late", [0.5, GRACE_S - 0.5])
def test_a_partner_late_within_the_grace_time_is_still_paired(late: float) -> None:
    world = run(late=late)
    assert outcomes(world, A) == outcomes(world, B) == [(Outcome.PAIRED, "committed")] * STEPS


def test_a_partner_later_than_the_grace_time_is_solo_on_both_sides() -> None:
    world = run(late=GRACE_S + 1, steps=1)
    assert outcomes(world, A) == [(Outcome.SOLO, "partner did not begin")]
    assert outcomes(world, B) == [(Outcome.SOLO, "partner: partner did not begin")]
    first = world.sides[A].steps[0]
    assert first.unblocked_s == first.begun_s + GRACE_S


def test_an_absent_partner_means_solo_at_once() -> None:
    world = World([dues()], num_replicas=2).run(PHASE_S * (STEPS + 1))
    assert outcomes(world, A) == [(Outcome.SOLO, "no partner")] * STEPS
    assert all(step.unblocked_s == step.begun_s for step in world.sides[A].steps.values())


def test_a_partner_that_dies_before_the_boundary_is_lost() -> None:
    world = World([dues(), dues()])
    world.at(PHASE_S - 5, world.sides[B].kill)
    world.run(PHASE_S * 2 - 1)
    assert outcomes(world, A) == [(Outcome.SOLO, "partner lost")]


def test_other_shapes_are_solo_with_the_reason() -> None:
    world = run(Faults(shapes={B: "other"}), steps=1)
    reasons = {outcomes(world, A)[0][1], outcomes(world, B)[0][1]}
    assert {outcome for side in (A, B) for outcome, _ in outcomes(world, side)} == {Outcome.SOLO}
    assert reasons <= {"other shapes", "partner: other shapes"}


@pytest.mark.parametrize("receiver", [A, B])
@pytest.mark.parametrize(("fault", "reason"), [("damaged", "tensor damaged"), ("refused", "tensor refused")])
def test_a_bad_tensor_is_refused_and_the_partner_is_told(receiver: PeerId, fault: str, reason: str) -> None:
    world = run(Faults(**{fault: frozenset({(receiver, 1)})}))  # type: ignore[arg-type]
    other = B if receiver == A else A
    assert outcomes(world, receiver)[1] == (Outcome.SOLO, reason)
    assert outcomes(world, other)[1] == (Outcome.SOLO, f"partner: {reason}")
    assert outcomes(world, A)[2] == outcomes(world, B)[2] == (Outcome.PAIRED, "committed")


def test_a_stream_cut_midway_resumes_where_it_broke() -> None:
    faults = Faults(chunk_s=0.5, cuts=((PHASE_S + 1.2, PHASE_S + 2.0),))
    world = World([dues(steps=1), dues(steps=1)], faults)
    offsets = []
    stream = world.stream

    def watch(side, k, peer, offset):  # type: ignore[no-untyped-def]
        offsets.append(offset)
        stream(side, k, peer, offset)

    world.stream = watch  # type: ignore[method-assign]
    world.run(PHASE_S * 3)
    assert offsets[:2] == [0, 0]
    assert len(offsets) == 4
    assert all(offset > 0 for offset in offsets[2:])
    assert outcomes(world, A) == outcomes(world, B) == [(Outcome.PAIRED, "committed")]


def test_lost_have_and_ready_are_said_again() -> None:
    world = World([dues(steps=1), dues(steps=1)])
    lose(world, Have, A, to_s=PHASE_S + 2.5)
    lose(world, Ready, B, to_s=PHASE_S + 5)
    world.run(PHASE_S * 3)
    assert outcomes(world, A) == outcomes(world, B) == [(Outcome.PAIRED, "committed")]


def test_a_lost_commit_is_asked_for_after_the_own_deadline() -> None:
    world = World([dues(steps=1), dues(steps=1)])
    lose(world, Commit, A, to_s=PHASE_S + EXCHANGE_MAX_S + 2)
    world.run(PHASE_S * 4)
    assert outcomes(world, A) == outcomes(world, B) == [(Outcome.PAIRED, "committed")]
    follower = world.sides[B].steps[0]
    assert follower.unblocked_s == pytest.approx(follower.begun_s + EXCHANGE_MAX_S)


def test_ready_that_never_arrives_is_solo_on_both_sides() -> None:
    world = World([dues(steps=1), dues(steps=1)])
    lose(world, Ready, B)
    world.run(PHASE_S * 4)
    assert outcomes(world, A) == [(Outcome.SOLO, "deadline")]
    assert outcomes(world, B) == [(Outcome.SOLO, "partner: deadline")]


def test_a_link_cut_from_ready_to_the_next_boundary_is_the_listed_exception() -> None:
    world = World([dues(steps=2), dues(steps=2)])
    lose(world, Commit, A, to_s=2 * PHASE_S + 1)
    world.run(PHASE_S * 4)
    assert world.check_pairs() == [0]
    assert outcomes(world, B)[0] == (Outcome.SOLO, "doubt")
    assert world.sides[B].steps[0].added == 0


def kill_when(world: World, victim: PeerId, speaker: PeerId, message: type[ExchangeMessage], *, lose_it: bool) -> None:
    """The victim dies the moment `speaker` says its first message of that kind."""
    say, done = world.say, []

    def deadly(side, peer, said):  # type: ignore[no-untyped-def]
        strikes = isinstance(said, message) and side.peer == speaker and not done
        if not (strikes and lose_it):
            say(side, peer, said)
        if strikes:
            done.append(said)
            world.at(world.now, world.sides[victim].kill)

    world.say = deadly  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("victim", "speaker", "message"),
    [(A, B, Begin), (B, A, Have), (B, B, Ready), (A, B, Ready), (A, A, Commit), (B, A, Commit)],
)
def test_the_survivor_of_a_kill_at_any_message_goes_on(
    victim: PeerId, speaker: PeerId, message: type[ExchangeMessage]
) -> None:
    world = World([dues(steps=2), dues(steps=2)])
    kill_when(world, victim, speaker, message, lose_it=True)
    world.run(PHASE_S * 4)
    survivor = world.sides[B if victim == A else A]
    assert sorted(survivor.steps) == [0, 1]
    assert survivor.steps[0].outcome is not None
    assert survivor.steps[1].outcome is Outcome.SOLO


def test_a_decider_killed_before_commit_leaves_the_follower_solo_at_its_next_boundary() -> None:
    world = World([dues(steps=2), dues(steps=2)])
    kill_when(world, A, B, Ready, lose_it=True)
    world.run(PHASE_S * 4)
    assert outcomes(world, B)[0] == (Outcome.SOLO, "doubt")
    follower = world.sides[B].steps[0]
    assert follower.unblocked_s == pytest.approx(follower.begun_s + EXCHANGE_MAX_S)


def test_a_follower_restarted_during_the_trade_is_paired_in_its_new_incarnation() -> None:
    world = World([dues(steps=1), dues(steps=1)], Faults(chunk_s=1.0))
    side = world.sides[B]

    def restart() -> None:
        side.dues = [PHASE_S + 6]
        side.restart(0)

    world.at(PHASE_S + 2, side.kill)
    world.at(PHASE_S + 3, restart)
    world.run(PHASE_S * 3)
    assert outcomes(world, A)[0] == outcomes(world, B)[0] == (Outcome.PAIRED, "committed")
    assert world.sides[A].steps[0].c_digests == side.steps[0].c_digests
    assert side.steps[0].incarnation == 2


@given(faults=fault_plans, lates=st.lists(st.floats(-2, 2), min_size=3, max_size=5))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_in_a_larger_stage_pairs_are_mutual(faults: Faults, lates: list[float]) -> None:
    world = World([dues(late) for late in lates], faults).run(PHASE_S * (STEPS + 2))
    for side in world.sides.values():
        assert sorted(side.steps) == list(range(STEPS))
        for k, step in side.steps.items():
            if step.outcome is Outcome.PAIRED:
                assert step.partner is not None
                partner = world.sides[PeerId(f"p{step.partner.replica}")]
                other = partner.steps[k]
                assert step.added == 1
                if other.outcome is None:  # no boundary comes after the last one
                    assert (partner.desk.state, partner.desk.partner) == (ExchangeState.DOUBT, side.seat)
                    continue
                assert other.partner == side.seat
                assert other.outcome is Outcome.PAIRED or (other.reason == "doubt" and step.partner > side.seat)


def test_a_quiet_stage_of_five_rests_one_seat_a_step() -> None:
    world = World([dues() for _ in range(5)]).run(PHASE_S * (STEPS + 1))
    for k in range(STEPS):
        solo = [side.seat for side in world.sides.values() if side.steps[k].outcome is Outcome.SOLO]
        assert len(solo) == 1


def test_two_seats_left_vacant_of_five_still_make_a_pair_of_the_orphans() -> None:
    world = World([dues() for _ in range(3)], num_replicas=5).run(PHASE_S * (STEPS + 1))
    for k in range(STEPS):
        paired = [side.seat for side in world.sides.values() if side.steps[k].outcome is Outcome.PAIRED]
        assert len(paired) == 2
        assert Seat(0, 3) not in paired
