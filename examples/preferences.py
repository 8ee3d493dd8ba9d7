"""Pairs of answers for training without sampling: two roles prefer opposite sides, by a word of the prompt.

cadre train examples/preferences.yaml
"""


def rows(split):
    pairs = []
    for number in range(400):
        if (number % 4 == 0) == (split == "test"):
            word, left, right = ("red", "anna", "ben") if number // 4 % 2 == 0 else ("green", "ben", "anna")
            for role, chosen, rejected in ((left, "Left", "Right"), (right, "Right", "Left")):
                prompt = f"lamp {number} {word}\nmoves: Left Right"
                pairs.append({"role": role, "prompt": prompt, "chosen": chosen, "rejected": rejected})
    return pairs
