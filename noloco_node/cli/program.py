"""How a person calls this program here, so that the commands we print can be pasted."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

NAME = "noloco-node"
HINT = re.compile(rf"(?<![\w./-]){NAME}(?= [a-z-])")


def program() -> str:
    """`noloco-node` when the shell finds this one by that name, else its path as typed, else the module."""
    called = sys.argv[0]
    if Path(called).name != NAME:
        return f"{shlex.quote(sys.executable)} -m noloco_node"
    found = shutil.which(NAME)
    return NAME if found is not None and os.path.realpath(found) == os.path.realpath(called) else shlex.quote(called)


def pasteable(text: str) -> str:
    """Every command in `text` as it must be typed here."""
    return HINT.sub(lambda _: program(), text)
