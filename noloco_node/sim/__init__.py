"""A swarm of real state machines on a virtual clock, and checkers that watch every event (issue: simulation).

Owns the surroundings of the machine in a few lines each: network, DHT, device, disk, and what goes wrong with them.
The machine is the product's own `core.machine.Machine`, nothing of it is replaced. Must not know sockets, tensors, wall
clocks. Everything is drawn from one seed, so the same seed is the same run.
"""
