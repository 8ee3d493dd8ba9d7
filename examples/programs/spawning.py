"""A lead that starts sub-agents while it runs: a worker after another, each with a name of its own, until G is reached.

How many there are is known when the episode ends. A rule of the recipe makes `worker-1`, `worker-2`, ... one role."""

from walk import prompt, score, walked

MOST = 3  # workers


def main(task, client):
    def ask(name, grid):
        answer = client.chat.completions.create(model=name, messages=[{"role": "user", "content": prompt(grid)}])
        return walked(grid, answer.choices[0].message.content)

    grid = ask("lead", task["grid"])
    for number in range(1, MOST + 1):
        if "G" not in "".join(grid):
            break
        grid = ask(f"worker-{number}", grid)
    return score(task["grid"], grid)
