"""Two agents on OpenAI's own client: a scout walks first, a walker goes on from there."""

from walk import prompt, score, walked


def main(task, client):
    grid = task["grid"]
    for role in ("scout", "walker"):
        asked = [{"role": "user", "content": prompt(grid)}]
        answer = client.chat.completions.create(model=role, messages=asked)
        grid = walked(grid, answer.choices[0].message.content)
    return score(task["grid"], grid)
