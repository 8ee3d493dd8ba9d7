"""The former module of critics; see `cadre.settings.objective`."""

from cadre.settings.objective import merge_heads_learner

learner_of_heads = merge_heads_learner
