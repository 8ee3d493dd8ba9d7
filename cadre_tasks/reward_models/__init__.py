"""Bradley-Terry reward models: preference pairs from a team's samples, and training on pairs. Needs torch.

pairs     pairs in files, and pairs of trees
training  a head and the model below it, trained on pairs; can be interrupted
commands  cadre preference-pairs, cadre reward-model

`cadre.engines.torch.reward_model` scores answers with a trained one.
"""
