"""A reward for the rows of ships.jsonl: a ship turns by the colour of a light.

cadre train examples/ships.jsonl reward=examples/ships.py:right model=games k=8 steps=20 learner.learning_rate=0.003
"""


def right(completion, answer):
    return float(completion.strip() == answer)
