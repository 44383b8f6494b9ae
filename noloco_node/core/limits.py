"""Every size, count and deadline of the node that the run spec does not set, in one file.

Units stand last in the names. Whoever needs a bound takes it from here; a literal elsewhere is a mistake.
"""

from __future__ import annotations

from typing import Final

MIB: Final = 1 << 20

# --- protocol -------------------------------------------------------------------------------------
PROTOCOL_VERSION: Final = 1
EXCHANGE_MEMORY_STEPS: Final = 4  # closed outer steps that still answer READY, ASK and BEGIN
OFFERS_MAX: Final = 8  # partners asked when the drawn one is not active, or taken
HAVE_INTERVAL_S: Final = 1.0
ASK_INTERVAL_S: Final = 1.0
OFFER_TRIES_MAX: Final = 3  # OFFERs of a phase without a clear answer until its boundary no longer waits for one
PARTNER_LOOK_S: Final = 3.0  # in a large stage the drawn partner is looked up for so long before others are offered to
OFFER_RETRY_S: Final = 0.5  # pause before a seat that did not answer, or said LATER, is offered again
EARLY_BEGINS_MAX: Final = 4  # BEGINs remembered for outer steps not reached here yet
REPLAY_MEMORY_STEPS: Final = 8  # inner steps whose micro-batch ids are remembered
REPLAY_ENTRIES_MAX: Final = 4096
PERMUTATIONS_KEPT: Final = 32  # seeded draws remembered, for nodes that ask for the same one again
STAGE_TABLES_KEPT: Final = 64  # stages whose seats are remembered as a table

# --- records --------------------------------------------------------------------------------------
RECORD_BYTES_MAX: Final = 2048
RECORD_ADDRESSES_MAX: Final = 8
RECORDS_PER_SEAT_MAX: Final = 16
DHT_ENTRIES_MAX: Final = 20_000
DHT_WALK_PAUSE_S: Final = 0.5  # between two walks through them for room; meanwhile strangers' are refused
SEATS_MAX: Final = 65_536
SWEEP_SEATS_PER_RENEWAL: Final = 64

# --- transfer -------------------------------------------------------------------------------------
CHUNK_BYTES_MAX: Final = 1 * MIB
MESSAGE_BYTES_MAX: Final = CHUNK_BYTES_MAX + 64 * 1024  # one gRPC message, both sides
CHUNK_DEADLINE_S: Final = 20.0  # no chunk for this long: the stream is lost
STALL_S: Final = 10.0  # no byte on an exchange stream for this long: reopen
PREFETCH_BEGINS_MAX: Final = 8  # of the partner before one boundary: beyond, its slow weights come after it
LEAD_BYTES_MIN: Final = 1 * MIB  # so far an exchange may be ahead of the partner's bytes on a slow link
LEAD_S: Final = 0.1  # and so long on a fast one, in time of the link
LEAD_BYTES_MAX: Final = 16 * MIB
LEAD_WAIT_S: Final = 1.0  # who is ahead sends a chunk this often nevertheless
DRAIN_WATCHDOG_S: Final = 10.0  # a pump whose write buffer does not empty for this long is cut
KEEP_INTERVAL_S: Final = 5.0
KEEPS_MISSED_MAX: Final = 3
UNARY_DEADLINE_S: Final = 10.0
DIAL_DEADLINE_S: Final = 10.0
CONCURRENT_CALLS_MAX: Final = 2048  # above what one peer can hold: streams times calls per connection
STREAMS_PER_PEER_MAX: Final = 8
TUNNEL_STREAMS_MAX: Final = 512
TENSOR_DIMENSIONS_MAX: Final = 8
ACTIVATION_BYTES_MAX: Final = 1 << 30
LINK_REOPEN_S: Final = 0.5  # first pause before an exchange stream is opened again
LINK_REOPEN_MAX_S: Final = 5.0
STATE_UPLOADS_MAX: Final = 2  # one of them is kept for holders of a lease of the stage
TENSOR_BYTES_MAX: Final = 1 << 40  # an announced x or checkpoint file
REASON_CHARS_MAX: Final = 200  # a reason that a peer gives
DIGEST_BYTES: Final = 32  # BLAKE2b-256
KEEPALIVE_S: Final = 30.0  # HTTP/2 pings of an idle connection, both sides
KEEPALIVE_TIMEOUT_S: Final = 10.0
PING_INTERVAL_MIN_S: Final = 20.0  # what a server tolerates; below KEEPALIVE_S
CALLS_PER_CONNECTION_MAX: Final = 64
REDIAL_MIN_S: Final = 0.2  # gRPC's own pause before it dials again, first and longest
REDIAL_MAX_S: Final = 2.0
CHANNELS_MAX: Final = 256
CHANNEL_IDLE_S: Final = 120.0
CHANNEL_FAILURES_MAX: Final = 3  # in a row, then the channel is made anew
HOPS_RECEIVING_PER_PEER_MAX: Final = 16  # of them by one peer
HOPS_RECEIVING_MAX: Final = 64  # activations under way into this node; BUSY beyond
LINKS_MAX: Final = 64  # exchange links, all peers
LINKS_PER_PEER_MAX: Final = 8
LINK_IDLE_S: Final = 60.0  # a released link without a message for this long is closed
LINK_QUEUE_MAX: Final = 64  # protocol messages waiting on one link
UNSOLICITED_GRACE_S: Final = 1.0  # chunks may arrive this long before their inbox is made
STATE_PIN_S: Final = 60.0  # a described checkpoint file stays open this long after its last use
STATE_RATE_MIN: Final = 16 * 1024  # bytes/s of a state that is fetched or given, over each window
STATE_RATE_WINDOW_S: Final = 60.0
STATE_SMALL_BYTES: Final = 16 * MIB  # of a state beside its tensors
STATE_TENSORS_MAX: Final = 6  # tensors of the stage's size that a state holds at most
STATE_RESUMES_MAX: Final = 5  # cuts in a row without a byte between them, then another donor

# --- strangers ------------------------------------------------------------------------------------
STRIKES_TO_BAN: Final = 3
BAN_S: Final = 600.0  # strikes are forgotten at STRIKES_TO_BAN in this time; a ban lasts until all are
PEERS_REMEMBERED_MAX: Final = 4096
HELLO_INTERVAL_S: Final = 600.0  # a peer is greeted at most once in this time, whether or not it answers
HELLOS_AT_ONCE_MAX: Final = 4
PEERS_LISTED_MAX: Final = 65_536  # on either side of a signed list of peers
PEER_LIST_BYTES_MAX: Final = 8 * MIB
PEER_LIST_CHECK_S: Final = 5.0  # how often its file is looked at
CLOCK_HELLO_S: Final = 0.5  # a Hello that took longer does not measure a clock: it is asked once more
CLOCK_PEERS_MAX: Final = 256  # peers whose clocks are remembered
CLOCK_SAMPLE_S: Final = 1800.0  # for how long
CLOCK_CHECK_S: Final = 10.0  # how often the own clock is looked at

# --- node -----------------------------------------------------------------------------------------
DATA_NEXT_MAX: Final = 1 << 48  # a record cannot send a successor further than this
DATA_PROMISE_MIN: Final = 16  # micro-batches a record promises not to pass before it is renewed: at least so many,
DATA_PROMISE_MAX: Final = 65_536  # at most so many, else what the replica draws in about one renewal
PACE_WINDOW_MIN_S: Final = 1.0  # how fast a replica draws is measured over at least this long
PROMISE_WAIT_S: Final = 3.0  # a promise whose store takes longer counts as told
DRAWN_AHEAD_MAX: Final = 4  # micro-batches read from the data before they are admitted
STEPS_MAX: Final = 1 << 40  # outer or optimizer steps that a donor may say to have taken
STALE_STEPS_MAX: Final = 3  # exchanges of every parameter; further behind its stage than this, a node fetches state
STALE_LOOK_S: Final = 10.0  # a node that fell behind by the clock looks so long who is ahead, then goes on
REFUSALS_MAX: Final = 2  # partners in a row that refuse our tensor, then state is fetched
DONORS_ASKED_MAX: Final = 8  # donors of a state, one after the other, before the stage is read again
KEPT_ANNOUNCED_MAX: Final = 4  # checkpoints of seats held before that a node offers while their stage is dead
SHOWN_MAX: Final = 8  # peers that are shown our record at a renewal that the DHT did not take
DEVICE_STALL_S: Final = 600.0  # one job of the device for longer than this: it hangs, the node ends
STALL_CHECK_S: Final = 10.0
LINGER_S: Final = 2.0  # after the last outer step a node still answers for this long
DRAIN_S: Final = 5.0  # what is in flight at a stop may take this long
STOP_GRACE_S: Final = 20.0  # a stop ends the process within this time
STOP_MARGIN_S: Final = 4.0  # of it, kept for closing threads, sockets and the daemon
HOP_RETRY_S: Final = 0.2  # pause when every candidate of the next stage was busy
HOP_RETRY_MAX_S: Final = 2.0  # the pause doubles up to this
HOP_GIVE_UP_S: Final = 120.0  # a micro-batch that no candidate takes for so long is dropped
HOP_BROKEN_S: Final = 15.0  # and one on which every candidate breaks for so long; our own p2pd may be starting again
NORM_MEDIAN_WINDOW: Final = 32  # corrections whose norms make the running median
NORM_MEDIAN_MIN: Final = 4  # fewer norms than this make no median yet: nothing is refused for its size
NORM_FACTOR_MAX: Final = 50.0  # a correction above this many medians is refused
CHECKPOINTS_KEPT: Final = 2
HISTORY_BYTES_MAX: Final = 64 * MIB
READ_THROUGH_MAX: Final = 2048  # micro-batches read only to get to a later one; further ahead a new pass begins
READER_STATES_KEPT: Final = 512  # positions in the data, one per micro-batch drawn, that a checkpoint may name
BOOTSTRAP_RETRY_S: Final = 1.0
BOOTSTRAP_RETRY_MAX_S: Final = 30.0
DAEMON_RESTARTS_MAX: Final = 6  # within DAEMON_RESTART_WINDOW_S, then back-off
DAEMON_RESTART_WINDOW_S: Final = 120.0

# --- discovery ------------------------------------------------------------------------------------
DHT_RPC_DEADLINE_S: Final = 3.0  # one question to one DHT peer
DHT_DEADLINE_S: Final = 12.0  # a whole look-up or store
DHT_COPIES: Final = 5  # peers nearest to a seat's key that are asked to keep its records
DHT_BEAM: Final = 8  # nearest peers asked in one look-up
DHT_WORKERS: Final = 4  # of them at once
DHT_WORKERS_MAX: Final = 64  # at once for seats that are looked up together
DHT_KEYS_TOGETHER: Final = 64  # looked up in one traversal
DHT_BUCKET: Final = 20  # peers per bucket of the routing table
DHT_SILENT_S: Final = 5.0  # a peer that did not answer is passed over for this long
JOIN_CHECK_S: Final = 10.0  # how often missing bootstrap peers are tried again by a node that has joined
ADDRESS_BOOK_MAX: Final = 4096  # peers whose addresses are remembered
VERIFIED_RECORDS_MAX: Final = 1024  # signatures remembered as right
DAEMON_IDLE_S: Final = 10.0  # p2pd ends itself when nobody holds its control connection for this long after its start
DAEMON_PROBE_S: Final = 10.0  # p2pd is asked for its addresses this often, and must answer within it
DAEMON_PROBES_MISSED_MAX: Final = 3
DAEMON_RESTART_S: Final = 0.2  # first pause before p2pd is started again
DAEMON_RESTART_MAX_S: Final = 30.0
DAEMON_STOP_S: Final = 3.0  # p2pd may take this long to end, then it is killed
PORT_WAIT_S: Final = 5.0  # a port still held by our own predecessor gets free within this time
