"""`python -m noloco_node` is `noloco-node`."""

import sys

from noloco_node.cli import main

if __name__ == "__main__":
    sys.exit(main())
