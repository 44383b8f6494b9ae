"""The audit of histories: what is trained, dropped, skipped, drawn again, and what nobody answers for."""

from __future__ import annotations

from typing import Any

from micro_batch_audit import Audit, audit, tokens

Line = dict[str, Any]


def loaded(at_s: float, data_next: int, source: str = "seed", seat: str = "0.0") -> Line:
    return {"kind": "loaded", "unix_s": at_s, "data_next": data_next, "source": source, "seat": seat}


def account(data_next: int | None, trained: list[list[int]], dropped: Any = (), open_: Any = (), late: int = 0) -> Line:
    return {
        "kind": "micro_batches",
        "data_next": data_next,
        "trained": trained,
        "dropped": list(dropped),
        "open": list(open_),
        "resent": 0,
        "late": late,
        "replayed": 0,
    }


def inner(count: int) -> Line:
    return {"kind": "inner", "tokens": count, "applied": True}


def figures(found: Audit) -> dict[str, int]:
    named = ("trained", "dropped", "skipped", "redrawn", "repeated", "lost_with_process", "unaccounted")
    return {name: getattr(found, name) for name in named if getattr(found, name)}


def test_a_clean_life_leaves_nothing_open() -> None:
    lines = [loaded(0, 0), account(5, [[0, 4]]), account(None, [[5, 8]], dropped=[[9, 9]])]
    assert figures(audit({"n0": lines})) == {"trained": 9, "dropped": 1}


def test_after_a_kill_the_checkpoint_is_gone_on_from_and_what_came_after_it_is_drawn_again() -> None:
    lines = [loaded(0, 0), account(5, [[0, 4], [6, 6]]), loaded(9, 5, "checkpoint"), account(None, [[5, 9]])]
    assert figures(audit({"n0": lines})) == {"trained": 10, "redrawn": 1}


def test_a_hole_below_a_checkpoint_is_unaccounted() -> None:
    lines = [loaded(0, 0), account(5, [[0, 1], [3, 4]]), loaded(9, 5, "checkpoint"), account(None, [[5, 9]])]
    assert figures(audit({"n0": lines})) == {"trained": 9, "unaccounted": 1}


def test_what_is_open_when_a_node_leaves_is_unaccounted() -> None:
    lines = [loaded(0, 0), account(None, [[0, 4]], open_=[[5, 5]])]
    assert figures(audit({"n0": lines})) == {"trained": 5, "unaccounted": 1}


def test_a_seat_that_nobody_took_up_again_lost_what_was_open_with_the_process() -> None:
    lines = [loaded(0, 0), account(4, [[0, 3]], open_=[[4, 5]])]
    assert figures(audit({"n0": lines})) == {"trained": 4, "lost_with_process": 2}


def test_what_a_killed_holder_had_open_is_lost_with_it_when_a_successor_begins_beyond() -> None:
    killed = [loaded(0, 0), account(4, [[0, 3]], open_=[[4, 5]])]
    new = [loaded(20, 10, "peer"), account(None, [[10, 12]])]
    assert figures(audit({"n0": killed, "new": new})) == {"trained": 7, "skipped": 4, "lost_with_process": 2}


def test_what_a_restart_from_the_checkpoint_does_not_draw_again_is_unaccounted() -> None:
    lines = [loaded(0, 0), account(4, [[0, 3]], open_=[[4, 5]]), loaded(9, 4, "checkpoint"), account(None, [[6, 7]])]
    assert figures(audit({"n0": lines})) == {"trained": 6, "unaccounted": 2}


def test_a_successor_skips_to_the_promise_of_the_record() -> None:
    left = [loaded(0, 0), account(5, [[0, 4]])]
    new = [loaded(20, 3, "peer"), account(None, [[100, 103]])]
    assert figures(audit({"n0": left, "new": new})) == {"trained": 9, "skipped": 95}


def test_a_successor_that_begins_too_early_repeats() -> None:
    left = [loaded(0, 0), account(5, [[0, 4]])]
    new = [loaded(20, 3, "peer"), account(None, [[3, 7]])]
    assert figures(audit({"n0": left, "new": new})) == {"trained": 8, "repeated": 2}


def test_later_stages_have_no_numbers_of_their_own_but_count_what_was_late() -> None:
    lines = [loaded(0, 0, seat="1.2"), account(7, [], late=2)]
    found = audit({"n4": lines})
    assert (figures(found), found.late) == ({}, 2)


def test_tokens_after_the_last_checkpoint_are_rolled_back_by_a_restart() -> None:
    lines = [loaded(0, 0), inner(10), account(1, [[0, 0]]), inner(5), loaded(9, 1, "checkpoint"), inner(7)]
    found = tokens({"n0": lines})
    assert (found.trained, found.rolled_back) == (22, 5)
