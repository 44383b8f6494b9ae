"""`make chaos`: real nodes, faults by seed, and the same swarm undisturbed; one JSON file at the end.

Exit code 0 only when nothing hung, nothing was corrupt or left behind, every micro-batch is accounted for and the
averaged model is as good as the undisturbed run's at equal tokens, within 5 %.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chaos_report import Trained, faults, histories, summary, trained
from chaos_spec import chaos_spec
from chaos_swarm import ChaosSwarm
from fault_schedule import Action, Plan, schedule
from micro_batch_audit import tokens
from network_lab import Loopback, NetworkLab, open_network

COUNT_S = 2.0  # how often the tokens of the undisturbed run are counted
UNDISTURBED_MAX = 3.0  # it may take so many times as long as the chaos run


@dataclass(frozen=True, slots=True)
class Table:
    """Seats of the swarm, and where it runs."""

    stages: int
    replicas: int
    on_loopback: bool = False

    def swarm(self, folder: Path) -> ChaosSwarm:
        network = Loopback("loopback, no link is cut: so it was asked for") if self.on_loopback else open_network()
        return ChaosSwarm(chaos_spec(self.stages, self.replicas), folder, network)


def chaos(folder: Path, table: Table, seed: int, plan: Plan, say: Callable[[str], object]) -> Any:
    """Both runs, one after the other; the figures."""
    with table.swarm(folder / "chaos") as swarm:
        say(f"starting {len(swarm.seats)} nodes: {swarm.network.words}")
        swarm.start()
        deeds = schedule(seed, swarm.names, possible(plan, swarm.network))
        say(f"all nodes train; {len(deeds)} deeds in {plan.seconds:.0f} s")
        swarm.run(deeds, plan.seconds)
        vacant = swarm.settle()
        swarm.stop()
        orphans = swarm.orphans()
        disturbed = trained(swarm)
        say(f"chaos run: held-out loss {disturbed.loss:.4f} after {disturbed.tokens.trained:,} tokens")
        undisturbed = run_undisturbed(table.swarm(folder / "undisturbed"), disturbed.tokens.trained, plan.seconds, say)
        return summary(swarm, disturbed, undisturbed, vacant, orphans)


def possible(plan: Plan, network: NetworkLab) -> Plan:
    """Without the cuts, where no link can be cut."""
    deck = tuple(action for action in plan.deck if network.can_cut or action is not Action.CUT)
    return replace(plan, deck=deck)


def run_undisturbed(fresh: ChaosSwarm, tokens_wanted: int, seconds: float, say: Callable[[str], object]) -> Trained:
    """A swarm left alone, until it has trained as many tokens."""
    with fresh as swarm:
        swarm.start()
        say("the undisturbed run trains")
        next_s = 0.0

        def goes_on() -> bool:
            nonlocal next_s
            if time.monotonic() < next_s:
                return True
            next_s = time.monotonic() + COUNT_S
            return tokens(histories(swarm)).trained < tokens_wanted

        swarm.run((), UNDISTURBED_MAX * seconds, goes_on)
        swarm.stop()
        found = trained(swarm)
        say(f"undisturbed run: held-out loss {found.loss:.4f} after {found.tokens.trained:,} tokens")
        return found


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--json", type=Path, required=True, help="the figures go here")
    options.add_argument("--seconds", type=float, default=600.0)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--stages", type=int, default=2)
    options.add_argument("--replicas", type=int, default=4)
    options.add_argument("--loopback", action="store_true", help="no namespaces: no link is cut")
    options.add_argument("--data-dir", type=Path, help="keep the nodes' files here")
    chosen = options.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # what was started is ended
    with tempfile.TemporaryDirectory(prefix="noloco-chaos-") as scratch:
        folder = chosen.data_dir or Path(scratch)
        table = Table(chosen.stages, chosen.replicas, chosen.loopback)
        found = chaos(folder, table, chosen.seed, Plan(chosen.seconds), _say)
    found = found | {"seed": chosen.seed, "seconds": chosen.seconds, "seats": f"{chosen.stages}x{chosen.replicas}"}
    found["faults"] = faults(found)
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    chosen.json.write_text(json.dumps(found, indent=1) + "\n")
    for words in found["faults"]:
        _say(f"FAULT: {words}")
    _say(f"loss_ratio {found['loss_ratio']}, micro_batches {found['micro_batches']}; figures in {chosen.json}")
    return 1 if found["faults"] else 0


def _say(words: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {words}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
