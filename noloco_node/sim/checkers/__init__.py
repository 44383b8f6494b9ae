"""One checker per invariant of the exchange protocol (ARCHITECTURE.md), each in a file of its own."""
