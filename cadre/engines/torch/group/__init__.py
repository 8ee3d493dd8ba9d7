"""A learner spread over ranks: each a process, with a part of the weights and of the data (FSDP2)."""

from cadre.engines.torch.group.local import GroupLearner, RankFailed
from cadre.engines.torch.group.rank_learner import LearnerPart, RankLearner

__all__ = ["GroupLearner", "LearnerPart", "RankFailed", "RankLearner"]
