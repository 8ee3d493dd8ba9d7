"""Training sequences as trees give them: siblings, turns that extend each other, and some with nothing in common."""

import random
from contextlib import contextmanager

import pytest
from hypothesis import strategies as st

from cadre.learn import prefix_tree, tree_attention
from cadre.types import TrainingSequence


def sequence(ids, mask, policy="p", temperature=1.0, draw=None) -> TrainingSequence:
    """A sequence with sampled log-probabilities and advantages where it is trained on, the same for the same ids."""
    draw = draw or random.Random(repr(tuple(ids)))
    logprobs = tuple(-4.0 * draw.random() if stored else 0.0 for stored in mask)
    advantages = tuple(draw.choice((-1.0, 1.0)) * (0.1 + draw.random()) if stored else 0.0 for stored in mask)
    return TrainingSequence(policy, "r", tuple(ids), tuple(mask), logprobs, advantages, 0, temperature)


@st.composite
def sequences(draw, policies=("p",), longest=12):
    """Walks of a random tree: siblings, turns that extend each other, duplicates, prefixes, and unrelated tasks."""
    source = draw(st.randoms(use_true_random=False))
    grown = {policy: [()] for policy in policies}
    data = []
    for _ in range(draw(st.integers(1, 12))):
        policy = source.choice(policies)
        ids, mask = grown[policy][source.randrange(len(grown[policy]))] or ((), ())
        cut = source.choice((len(ids), source.randint(0, len(ids))))
        ids, mask = ids[:cut], mask[:cut]
        for _turn in range(source.randint(1, 2)):
            prompt, randint = source.randint(not ids, longest), source.randint(1, longest)
            # Few different tokens, so that siblings agree for a while.
            ids += tuple(source.randrange(3) for _ in range(prompt + randint))
            mask += (False,) * prompt + (True,) * randint
        grown[policy].append((ids, mask))
        data.append(sequence(ids, mask, policy, source.choice((1.0, 1.0, 0.7)), source))
    return data


@contextmanager
def closing_at(short, long):
    """Blocks close at these lengths."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefix_tree, "SHORT", short)
        patch.setattr(prefix_tree, "LONG", long)
        patch.setattr(tree_attention, "ALONE", min(short, tree_attention.ALONE))
        yield
