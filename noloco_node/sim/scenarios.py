"""What goes wrong in a simulated run, as small named data. `docs/simulation.md` lists them.

Owns the names and the numbers. Shares are of the seats, so a scenario fits swarms of every size. Must not know how a
fault is carried out (`sim.faults`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from noloco_node.core.types import Clock, Mode
from noloco_node.sim.weather import Rates

CALM: Final = Rates()


@dataclass(frozen=True, slots=True)
class Scenario:
    """Faults happen between `first` and `last`, counted in outer intervals; what follows is quiet.

    Shares of the seats: `crashes` come back after `down_s`, `losses` never do, `stops` end by request and start again,
    `pauses` (SIGSTOP) last `pause_s`, `spares` are nodes without a seat, `newcomers` join in mid-run. Pairs of numbers
    are bounds of a uniform draw. `isolated`: share of the seats on the small side of a cut network.
    """

    name: str
    says: str
    outer_steps: int = 8
    first: float = 1.0
    last: float = 3.5
    clock: Clock = Clock.TIME
    mode: Mode = Mode.JOINT
    fragments: int = 1
    rates: Rates = CALM  # at all times
    faulty: Rates | None = None  # between first and last
    speeds: tuple[float, float] = (1.0, 1.0)  # of the time for one micro-batch
    skew_s: float = 0.0  # of wall clocks, either way
    is_seated: bool = True  # nodes know their seats from the start
    crashes: float = 0.0
    down_s: tuple[float, float] = (1.0, 40.0)
    losses: float = 0.0
    stops: float = 0.0
    pauses: float = 0.0
    pause_s: tuple[float, float] = (1.0, 40.0)
    cuts: int = 0
    cut_s: tuple[float, float] = (1.0, 60.0)
    isolated: tuple[float, float] = (0.05, 0.5)
    spares: float = 0.0
    newcomers: float = 0.0
    dht_down: int = 0  # times
    dht_split: int = 0
    dht_s: tuple[float, float] = (5.0, 70.0)
    vacant: float = 0.0  # seats nobody begins with


_ALL = (
    Scenario("calm", "nothing goes wrong", outer_steps=6, first=0.0, last=0.0),
    Scenario("steps", "nothing goes wrong; outer steps go by inner steps", 6, 0.0, 0.0, clock=Clock.STEPS),
    Scenario(
        "lossy",
        "messages are lost, doubled and late, tensors damaged and refused",
        faulty=Rates(delay_s=0.05, jitter_s=0.8, loss=0.05, double=0.1, damaged=0.05, refused=0.05, dht_delay_s=1.0),
    ),
    Scenario("crashes", "processes die at any moment and come back from their checkpoints", crashes=0.4),
    Scenario(
        "churn",
        "nodes die, some for good; stop, start again and join; spares take their seats over",
        crashes=0.25,
        losses=0.15,
        stops=0.15,
        spares=0.15,
        newcomers=0.15,
    ),
    Scenario("partition", "the network falls apart into two, twice", cuts=2),
    Scenario("stopped", "processes are stopped and go on later (SIGSTOP, SIGCONT)", pauses=0.4),
    Scenario(
        "dht_down",
        "the DHT is gone for longer than a lease, and slow for the rest",
        dht_down=2,
        dht_s=(30.0, 80.0),
        faulty=Rates(dht_delay_s=3.0),
    ),
    Scenario(
        "dht_split",
        "nodes see different parts of the DHT while seats change hands",
        dht_split=2,
        crashes=0.2,
        spares=0.1,
    ),
    Scenario("stragglers", "machines of unequal speed, clocks a little wrong", speeds=(0.5, 2.0), skew_s=1.5),
    Scenario(
        "join",
        "nobody has a seat yet, more nodes than seats come over the time of the run",
        is_seated=False,
        newcomers=0.4,
        vacant=0.3,
    ),
    Scenario(
        "storm",
        "everything at once",
        outer_steps=9,
        faulty=Rates(delay_s=0.03, jitter_s=0.3, loss=0.02, double=0.05, damaged=0.02, refused=0.02, dht_delay_s=0.5),
        speeds=(0.7, 1.6),
        skew_s=1.0,
        crashes=0.2,
        losses=0.05,
        stops=0.1,
        pauses=0.2,
        cuts=1,
        spares=0.1,
        newcomers=0.1,
        dht_down=1,
        dht_split=1,
    ),
    Scenario(
        "overlap",
        "training runs on while the weights travel, a third of them in each outer step; nothing goes wrong",
        outer_steps=9,
        first=0.0,
        last=0.0,
        mode=Mode.OVERLAP,
        fragments=3,
    ),
    Scenario(
        "prefetch",
        "slow weights travel before the boundary; nodes die, some for good, links are cut, messages are lost",
        faulty=Rates(delay_s=0.05, jitter_s=0.5, loss=0.03, double=0.05, damaged=0.03, refused=0.03, dht_delay_s=0.5),
        mode=Mode.PREFETCH,
        crashes=0.25,
        losses=0.1,
        stops=0.1,
        cuts=1,
        cut_s=(1.0, 30.0),
        spares=0.15,
        newcomers=0.1,
    ),
)
_STORM: Final = next(scenario for scenario in _ALL if scenario.name == "storm")
_UNDER_OVERLAP: Final = replace(
    _STORM,
    name="overlap_storm",
    says="everything at once while training runs on during the exchanges",
    mode=Mode.OVERLAP,
    fragments=3,
)

_UNDER_PREFETCH: Final = replace(
    _STORM,
    name="prefetch_storm",
    says="everything at once while slow weights travel before the boundary",
    mode=Mode.PREFETCH,
)

SCENARIOS: Final[dict[str, Scenario]] = {
    scenario.name: scenario for scenario in (*_ALL, _UNDER_OVERLAP, _UNDER_PREFETCH)
}
