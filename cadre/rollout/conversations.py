"""What each role said last in each of its conversations, so that a later prompt can go on from it."""

from __future__ import annotations

from collections.abc import Mapping

from cadre.types import BranchFailure, Message, Observation, PreviousTurn, Sample

# By role and conversation.
Previous = Mapping[tuple[str, str], PreviousTurn]


def last_turn(previous: Previous, seen: Observation) -> PreviousTurn | None:
    """What the role saw and said last in the conversation that it goes on with."""
    return previous.get((seen.role, seen.conversation))


def with_turns(previous: Previous, seen: Mapping[str, Observation], said: Mapping[str, Sample]) -> Previous:
    """The same with the turns that were taken now."""
    turns = {
        (role, seen[role].conversation): PreviousTurn(seen[role].messages, sample, seen[role].tools)
        for role, sample in said.items()
    }
    return {**previous, **turns}


def words(said: Mapping[str, Sample]) -> tuple[tuple[str, str, Message | None, BranchFailure | None], ...]:
    """What a joint action says, for comparison: equal words lead to equal states."""
    return tuple((role, sample.text, sample.message, sample.failure) for role, sample in said.items())
