"""Fixtures that all Python tests share. ranks.py has the helpers that start ranks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ranks import RankPools, rank_pools


@pytest.fixture(scope="session")
def rank_pool() -> Iterator[RankPools]:
    """Processes with a gloo group, kept for the session: ``rank_pool(n).run(fn, *args)``."""
    with rank_pools() as pools:
        yield pools


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked ``long`` run only where they are asked for (``-m long``)."""
    if "long" in (config.getoption("-m") or ""):
        return
    skip = pytest.mark.skip(reason="long tier: run with -m long")
    for item in items:
        if item.get_closest_marker("long") is not None:
            item.add_marker(skip)
