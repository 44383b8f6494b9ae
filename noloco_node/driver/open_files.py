"""The limit on open files: each peer's stream takes a few, and the usual soft limit of 1024 is soon reached."""

from __future__ import annotations

import contextlib
import resource

OPEN_FILES_WANTED = 65_536


def raise_open_files_limit() -> int:
    """Soft limit up to the hard one, as far as it is of use. Returns the soft limit that holds now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
