"""Q(state, action) - V(state) over all rollouts of a task that meet a state, however they came there.

cadre train examples/state_value.yaml
"""

from statistics import fmean

from cadre.declare import declare


def state(sample):
    """Return the group: what the role was shown last, without the way that led there. Replace it by your own."""
    return (sample.tree, sample.role, sample.node.observations[sample.role].messages[-1].content)


@declare(needs_group=True)
def action_value(group):
    """Return the mean return of the equal actions in a state, less that of all actions in it."""
    actions = [one.sample.text.strip() for one in group.samples]
    value = fmean(group.values)
    return [fmean(r for a, r in zip(actions, group.values, strict=True) if a == own) - value for own in actions]
