"""Processes that are the ranks of one learner group after another."""

import pytest

from tests.cadre.engines.torch.group.pool import Pool


@pytest.fixture(scope="session")
def pool():
    pool = Pool(2)
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def four():
    pool = Pool(4)
    yield pool
    pool.close()
