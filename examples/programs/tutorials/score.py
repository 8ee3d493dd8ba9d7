"""The reward of these programs: 1 for the right number in the result, else the more digits of it the better."""

import re


def score(task, transcript, result):
    text, answer = str(result), str(task["answer"])
    if re.search(rf"(?<!\d){answer}(?!\d)", text):
        return {"team": 1.0, "success": True}
    return {"team": 0.5 * sum(digit in text for digit in answer) / len(answer), "success": False}
