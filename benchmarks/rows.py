"""What a benchmark tells: one JSON line a row, with the load of the machine, and all rows so far in a file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def tell(rows: list[Row], row: Row, file: Path | None) -> None:
    """Append `row`."""
    rows.append(row | {"load": round(os.getloadavg()[0], 1)})
    print(json.dumps(rows[-1]), flush=True)
    if file is not None:
        file.write_text(json.dumps(rows, indent=2) + "\n")
