"""The implementations of `cadre.team.Sampler` and `cadre.team.Learner`; the only package that imports transformers."""
