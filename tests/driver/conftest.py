from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from driver_bench import Bench


@pytest_asyncio.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path)
    await made.start()
    yield made
    await made.close()
