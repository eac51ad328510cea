"""Fixtures that all Python tests share. ranks.py has the helpers that start ranks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ranks import RankPools, rank_pools

from gcomm import Communicator


@pytest.fixture(scope="session")
def rank_pool() -> Iterator[RankPools]:
    """Processes with a gloo group, kept for the session: ``rank_pool(n).run(fn, *args)``."""
    with rank_pools() as pools:
        yield pools


@pytest.fixture(scope="module")
def comm() -> Iterator[Communicator]:
    """The second of two ranks. Nobody answers it: a call that got past the checks would time out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GCOMM_TIMEOUT", "2")
        first, second = Communicator.local(2)
    yield second
    second.abort()
    first.close()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked ``long`` run only where they are asked for (``-m long``)."""
    for item in items:
        # One worker (of pytest-xdist, --dist loadgroup) for all transports of a case: what they must all
        # give is worked out once.
        if item.path.name == "test_replay.py":
            transport = item.callspec.params["transport"]
            item.add_marker(pytest.mark.xdist_group(item.name.replace(transport, "")))
    if "long" in (config.getoption("-m") or ""):
        return
    skip = pytest.mark.skip(reason="long tier: run with -m long")
    for item in items:
        if item.get_closest_marker("long") is not None:
            item.add_marker(skip)
