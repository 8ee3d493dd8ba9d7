"""Two processes that are the ranks of one learner group after another."""

import pytest

from tests.cadre.engines.torch.group.pool import Pool


@pytest.fixture(scope="session")
def pool():
    made = Pool(2)
    yield made
    made.close()
