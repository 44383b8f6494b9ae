"""noloco-node: one volunteer machine in a NoLoCo swarm (arXiv 2506.10911)."""

__version__ = "0.1.0"
