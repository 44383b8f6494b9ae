"""The pure core: what the swarm agrees on, and how one node decides.

Owns the algorithm and the protocol. Must not know: I/O, clocks, randomness, torch, asyncio, logging.
Time is an argument (`now`, monotonic seconds), random draws are functions of the run seed (`core.seed`).
"""
