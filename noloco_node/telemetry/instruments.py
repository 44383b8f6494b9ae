"""Every metric of a node: name, words, labels. Names are noloco_*, units stand last, label values are bounded.

Owns the registry, knows no event. tests/deploy checks that each is shown on a dashboard and that dashboards ask for
nothing else.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from noloco_node import __version__
from noloco_node.core.limits import PROTOCOL_VERSION

EXCHANGE_BUCKETS_S = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)
CHECKPOINT_BUCKETS_S = (0.03, 0.1, 0.3, 1, 3, 10, 30, 100)
JOB_BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)
JOBS = ("forward", "backward", "inner_step", "boundary", "correction")


class Instruments:
    """One set per node, on a registry of its own: several nodes may live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._identity()
        self._progress()
        self._micro_batches()
        self._outer_steps()
        self._peers()
        self._machine()

    def _gauge(self, name: str, words: str, *labels: str) -> Gauge:
        return Gauge(f"noloco_{name}", words, labels, registry=self.registry)

    def _counter(self, name: str, words: str, *labels: str) -> Counter:
        return Counter(f"noloco_{name}", words, labels, registry=self.registry)

    def _histogram(self, name: str, words: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"noloco_{name}", words, labels, buckets=buckets, registry=self.registry)

    def _identity(self) -> None:
        self.build_info = self._gauge("build_info", "Always 1; versions as labels", "version", "protocol", "python")
        self.build_info.labels(__version__, str(PROTOCOL_VERSION), platform.python_version()).set(1)
        self.seat_info = self._gauge("seat_info", "Always 1; the seat this node holds", "stage", "replica", "state")
        self.phase = self._gauge("phase", "1 for the phase the node is in", "phase")
        self.bootstrap_state = self._gauge("bootstrap_state", "1 for: alone, waiting or joined", "state")

    def _progress(self) -> None:
        self.outer_step = self._gauge("outer_step", "Outer step k this replica trains in")
        self.inner_step = self._gauge("inner_step", "Inner steps since the last boundary")
        self.inner_steps = self._counter("inner_steps_total", "Optimizer steps: applied or skipped", "result")
        self.tokens = self._counter("tokens_total", "Tokens whose gradient went into an optimizer step")
        self.loss = self._gauge("loss", "Mean loss of the last inner step, nats per token")
        self.gradient_norm = self._gauge("gradient_norm", "Norm of the stage's gradient before clipping")
        self.learning_rate = self._gauge("learning_rate", "Of the last optimizer step")

    def _micro_batches(self) -> None:
        self.micro_batches = self._counter(
            "micro_batches_total", "Micro-batches that ended here: trained or dropped", "result"
        )
        self.incidents = self._counter(
            "micro_batch_incidents_total", "What happened on the way: late, resent, replayed, busy ...", "kind"
        )
        self.micro_batches_open = self._gauge("micro_batches_open", "Micro-batches queued or under way here")
        self.job = self._histogram("device_job_seconds", "Time on the training thread per job", JOB_BUCKETS_S, "job")

    def _outer_steps(self) -> None:
        self.outer_steps = self._counter("outer_steps_total", "Closed outer steps", "outcome", "reason")
        self.exchange = self._histogram(
            "exchange_seconds", "From the boundary to the commit of a paired outer step", EXCHANGE_BUCKETS_S
        )
        self.spread = self._gauge(
            "spread",
            "Rms of (x_b - x_a) / gamma at the last exchange: with gamma = beta the distance of the fast weights",
        )
        self.corrections = self._counter("corrections_total", "Corrections c: added or dropped", "result")
        self.offers = self._counter("offers_total", "Own OFFERs by answer", "answer")
        self.tensors_refused = self._counter("tensors_refused_total", "Partner's tensors not used", "reason")

    def _peers(self) -> None:
        self.strikes = self._counter("strikes_total", "Broken rules counted against peers", "reason")
        self.refused = self._counter("calls_refused_total", "Incoming calls that were not served", "reason")
        self.records = self._counter("records_total", "Seat records: learnt, confirmed, unconfirmed", "result")
        self.look_ups = self._counter("seat_look_ups_total", "Seats looked up in the DHT")
        self.p2pd_restarts = self._counter("p2pd_restarts_total", "Restarts of the libp2p daemon")
        self.peers = self._gauge("peers", "Peers this node is connected to")
        self.traffic = self._counter("traffic_bytes_total", "Bytes of payload", "service", "direction")
        self.state_uploads = self._counter("state_uploads_total", "Checkpoints given to newcomers", "result")
        self.states_loaded = self._counter("states_loaded_total", "Where this node's weights came from", "source")

    def _machine(self) -> None:
        self.checkpoint_step = self._gauge("checkpoint_outer_step", "Outer step of the newest complete checkpoint")
        self.checkpoint = self._histogram("checkpoint_seconds", "To write one checkpoint", CHECKPOINT_BUCKETS_S)
        self.start_time = self._gauge("start_timestamp_seconds", "Unix time at which the node started")
        self.start_time.set_to_current_time()
        self.clock_offset = self._gauge(
            "clock_offset_seconds", "This machine's clock minus its peers' (median), measured by Hello"
        )
        self.memory = self._gauge("resident_memory_bytes", "Resident memory of the node's process")
        self.memory.set_function(resident_bytes)


def resident_bytes() -> float:
    """From /proc; 0 where there is none."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0.0
    return float(pages * os.sysconf("SC_PAGE_SIZE"))
