"""Properties of functions that a setting names: they are declared at the function, not found out by a trial call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from cadre.errors import ConfigError, nearest

Function = TypeVar("Function", bound=Callable[..., Any])
# Without a declaration nothing is left out of training, a selection continues one branch, and what is unknown (None) is
# neither refused nor assumed.
DEFAULTS: dict[str, Any] = {
    "sums_rewards": False,
    "of_future": False,
    "whole_episode": False,
    "takes_best": False,
    "discounted": None,
    "uses_lookahead": None,
    "scope": None,
    "needs_group": False,
    "uses_running": False,
    "selects": 1,
    "sums_tokens": False,
    "needs_reference": False,
    "needs_entropy": False,
    "ablates": "none",
    "needs_signature": False,
}
# The values of properties that are not true or false; `selects` may be any number, or "all".
VALUES: dict[str, tuple[object, ...]] = {
    "scope": ("decision", "turn", "task", "batch"),
    "ablates": ("none", "each", "all"),
}


def declare(**properties: Any) -> Callable[[Function], Function]:
    """Return a decorator that declares properties of a function of the user's that a setting names.

        @declare(needs_group=True)
        def middle(group):
            return [median(group.values)] * len(group.values)

    sums_rewards     of a return: it is computed from `comparison.reward` alone, so that it can be computed of one part
                     of the reward, and of absolute rewards for its size
    of_future        of a return: it reads what follows the step, so that every branch must be rolled out
    whole_episode    of a return: all samples of a role in one episode share it; a group counts episodes, not decisions
    takes_best       of a return: of what follows a branch it takes the best and not the mean
    discounted       of a return: it reads `comparison.gamma`; False if not, and unknown without a declaration
    uses_lookahead   of a return: it reads the rewards that a shape found by looking ahead; as `discounted`
    scope            of a group: what its samples have in common, "decision", "turn" (of one task), "task" or "batch"
    needs_group      of a baseline or of `algorithm.advantages`: it is computed from the group alone, so that equal
                     returns give no advantage
    uses_running     of a baseline: it reads `group.running`
    selects          of a selection (`algorithm.select`): how many branches continue at most, or "all"
    sums_tokens      of an aggregate: the weight of a token depends neither on the length of its sequence nor on others
    needs_reference  of a loss: it reads `tokens.reference`, log-probabilities under the reference model
    needs_entropy    of a loss: gradients go through `tokens.entropy`
    ablates          of a return: it reads `branch.ablated`, the step without "each" role alone, or without "all" sets
                     of roles
    needs_signature  of a group: it reads `node.signature`

    Raises ConfigError for another name or value.
    """
    for name, value in properties.items():
        if name not in DEFAULTS:
            hint = nearest(name, DEFAULTS)
            raise ConfigError(f"declare: got {name!r}; expected some of {', '.join(DEFAULTS)}. Rename it.{hint}")
        values = VALUES.get(name, (True, False))
        if name != "selects" and value not in (*values, DEFAULTS[name]):
            raise ConfigError(f"declare: got {name}={value!r}; expected one of {values}. Declare one of them.")

    def decorate(function: Function) -> Function:
        for name, value in properties.items():
            setattr(function, name, value)
        return function

    return decorate


def declared(function: Callable[..., Any], name: str) -> Any:
    """Return a property of a function as it declares it, or the default."""
    return getattr(function, name, DEFAULTS[name])
