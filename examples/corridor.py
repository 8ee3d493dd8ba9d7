"""Two people meet in a corridor three times; they pass if one keeps left and the other right. A team as a function.

cadre train examples/corridor.yaml
"""

import asyncio

import cadre


def rows(split):
    return [{"corridor": n} for n in range(300) if (n % 5 == 0) == (split == "test")]


async def corridor(row, anna, ben):
    passed = 0
    for meeting in range(3):
        text = f"corridor {row['corridor']}\nmeeting {meeting + 1}\nmoves: Left Right"
        sides = await asyncio.gather(anna(text), ben(text))
        met = sorted(side.strip() for side in sides) == ["Left", "Right"]
        anna.reward(met)
        ben.reward(met)
        passed += met
    return cadre.Reward(success=passed == 3)
