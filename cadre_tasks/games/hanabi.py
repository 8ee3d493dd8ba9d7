"""Hanabi of OpenSpiel for two players as text: each sees the other's cards, and hints say what the own ones are.

A task is the order of the deck. `size: full` has 5 colors, 5 cards a hand, 8 information tokens and 3 lives, at most 25
points; `small` has 2 colors, 2 cards a hand, 3 tokens and 1 life, at most 10 (Bard et al., arXiv 1902.00506). The score
is the number of cards on the fireworks, and 0 if the last life is lost, as in OpenSpiel and in that paper. The team is
rewarded with the change of the score. An answer that is no legal move costs its author `penalty`, and a random legal
move is played instead.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from cadre import random_keys
from cadre.env import Split
from cadre.envs import drawings
from cadre.envs.splits import drawn_tasks, in_split
from cadre.types import Choice, Drawing, Message, Observation, Reward, Task
from cadre_tasks.answers import behind
from cadre_tasks.integrations.openspiel import OpenSpiel, load_game, role

SIZES = {
    "full": "hanabi(players=2,colors=5,ranks=5,hand_size=5,max_information_tokens=8,max_life_tokens=3)",
    "small": "hanabi(players=2,colors=2,ranks=5,hand_size=2,max_information_tokens=3,max_life_tokens=1)",
}
COLORS = {"R": "red", "Y": "yellow", "G": "green", "W": "white", "B": "blue"}
COPIES = {1: 3, 2: 2, 3: 2, 4: 2, 5: 1}  # of each rank in a color
SHOWN_MOVES = 4  # of the last moves
LONGEST_ANSWER = 20_000
RULES = (
    "You and a partner play Hanabi. Build a firework of each color by playing its cards 1, 2, 3, 4, 5 in this "
    "order. You see your partner's cards but not your own. In its turn a player plays a card, discards one, or "
    "gives a hint. A hint names a color or a rank and points out all cards of it in the partner's hand, and at "
    "least one. It takes an information token; a discard, and the last card of a firework, bring one back. A card "
    "that does not come next takes a life, and the last lost life makes the score 0. After a play or a discard the "
    "player draws a new card, which gets the highest number in the hand. When the deck is empty, each player has "
    "one more turn. The score is the number of cards played. In each color there are three 1s, two 2s, 3s and 4s, "
    "and one 5."
)
Size = Literal["full", "small"]


@dataclass(frozen=True)
class Card:
    """A card in a hand: what it is, "" where that is not seen, and what its owner has been told.

    color, rank   those that a hint has named, "" or 0 if none did
    colors, ranks   those that the hints leave possible
    """

    face: str
    color: str
    rank: int
    colors: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Table:
    """What a player sees, from OpenSpiel's observation: the hands are its own and the partner's, oldest card first."""

    lives: int
    tokens: int
    fireworks: Mapping[str, int]
    own: tuple[Card, ...]
    partner: tuple[Card, ...]
    deck: int
    discards: tuple[str, ...]

    @property
    def score(self) -> int:
        return sum(self.fireworks.values()) if self.lives else 0


def read_table(text: str) -> Table:
    """Return OpenSpiel's observation of a player as a table."""
    fields = dict(re.findall(r"^([A-Z][a-z]+(?: [a-z]+)?): ?(.*)$", text, re.MULTILINE))
    hands = re.sub(r"^Cur player\n", "", text.split("Hands:\n")[1].split("Deck size")[0], flags=re.MULTILINE)
    own, partner = (
        tuple(
            Card(
                "" if face == "XX" else face,
                color.replace("X", ""),
                0 if rank == "X" else int(rank),
                "".join(re.findall("[A-Z]", possible)),
                tuple(map(int, re.findall("[1-5]", possible))),
            )
            for face, color, rank, possible in re.findall(r"^(\w\w) \|\| (\w)(\w)\|(\w+)$", hand, re.MULTILINE)
        )
        for hand in hands.split("-----\n")
    )
    fireworks = {color: int(height) for color, height in re.findall(r"([A-Z])(\d)", fields["Fireworks"])}
    discards = tuple(re.findall(r"[A-Z]\d", fields.get("Discards", "")))
    numbers = (int(fields[name]) for name in ("Life tokens", "Info tokens", "Deck size"))
    lives, tokens, deck = numbers
    return Table(lives, tokens, fireworks, own, partner, deck, discards)


class Hanabi(OpenSpiel):
    """The team form. Settings: the `size` of the game, the `prompts` wording, the `penalty` of an illegal move."""

    def __init__(
        self,
        task: Task,
        size: Size = "full",
        prompts: Literal["compact", "full"] = "full",
        penalty: Annotated[float, Field(ge=0.0)] = 1.0,
    ) -> None:
        self.prompts, self.deck = prompts, tuple(task.data["deck"].split())
        # The last moves with their results, by player, and the very last one.
        self.moves: tuple[tuple[int, str], ...] = ()
        self._last_words = ""
        super().__init__(task, SIZES[size], penalty)

    @classmethod
    def roles_of(cls, game: str = "", **settings: Any) -> tuple[str, ...]:
        return cls.roles

    @classmethod
    def tasks(cls, split: Split, size: Size = "full", **settings: Any) -> Sequence[Task]:
        """Return shuffled decks. The order of all cards decides the split, so that the splits share no deal."""
        colors = load_game(SIZES[size]).get_parameters()["colors"]
        cards = [
            f"{color}{rank}" for color in list(COLORS)[:colors] for rank, count in COPIES.items() for _ in range(count)
        ]

        def draw(index: int, attempt: int) -> dict[str, Any] | None:
            generator = random_keys.generator("hanabi", split, index, attempt, size)
            deck = " ".join(generator.sample(cards, len(cards)))
            return {"deck": deck} if in_split(split, deck) else None

        return drawn_tasks(split, draw, {"size": size}, f"{split}-{size}")

    @classmethod
    def choices(cls, game: str = "", **settings: Any) -> Sequence[Choice]:
        """Return nothing: there are too many decisions to list."""
        return ()

    @classmethod
    def figures(cls, probabilities: Sequence[Sequence[float]], game: str = "", **settings: Any) -> dict[str, float]:
        return {}

    def _play_chance(self) -> None:
        """Draw the next cards of the deck, whatever was played before."""
        while self.state.is_chance_node():
            color, rank = self.deck[self.luck]
            self.state.apply_action(list(COLORS).index(color) * len(COPIES) + int(rank) - 1)
            self.luck += 1

    def table(self, player: int) -> Table:
        """Return what a player sees."""
        return read_table(self.state.observation_string(player))

    def words(self) -> dict[str, int]:
        """Return the legal moves of the player who acts, as words."""
        player = self.state.current_player()
        return {move_words(self.state.action_to_string(player, move)): move for move in self.state.legal_actions()}

    def observe(self) -> dict[str, Observation]:
        if self.state.is_terminal():
            return {}
        player = self.state.current_player()
        text = self.brief(player) if self.prompts == "compact" else self.describe(player)
        return {role(player): Observation(role(player), (Message("user", text),))}

    async def step(self, actions: dict[str, str]) -> Reward:
        player = self.state.current_player()
        tables = [self.table(0), self.table(1)]
        reward = await super().step(actions)
        self.moves = (*self.moves, (player, describe_move(self._last_words, player, tables)))[-SHOWN_MOVES:]
        score = {"score": float(self.score)} if self.state.is_terminal() else {}
        return Reward(reward.team, reward.local, {**reward.parts, **score})

    def _move(self, player: int, answer: str) -> tuple[int, bool]:
        legal = self.words()
        line = behind("move", answer[-LONGEST_ANSWER:]).split("\n")[0]
        words = " ".join(line.lower().strip("`*_.\"' \t").split())
        is_legal = words in legal
        if not is_legal:
            history = ",".join(map(str, self.state.history()))
            words = random_keys.generator("hanabi", self.task.data["deck"], history).choice(list(legal))
        self._last_words = words
        return legal[words], is_legal

    @property
    def score(self) -> int:
        """The cards on the fireworks, 0 after the last life."""
        return int(self.state.returns()[0])

    def brief(self, player: int) -> str:
        """Return the compact prompt: who is `me` and `you` is written from the player's view."""
        table = self.table(player)
        moves = " ; ".join(f"{'me' if by == player else 'you'} {text}" for by, text in self.moves)
        return (
            f"hanabi\nlives {table.lives} tokens {table.tokens} deck {table.deck}\n"
            f"fireworks {' '.join(f'{color}{height}' for color, height in table.fireworks.items())}\n"
            f"you {' '.join(f'{card.face}:{card.color or chr(63)}{card.rank or chr(63)}' for card in table.partner)}\n"
            f"me {' '.join(f'{card.colors}{numbers(card.ranks)}' for card in table.own)}\n"
            f"discards {' '.join(table.discards)}\nlast {moves}\nmoves: {' | '.join(self.words())}"
        )

    def describe(self, player: int) -> str:
        """Return the full prompt."""
        table = self.table(player)
        fireworks = ", ".join(f"{COLORS[color]} {height}" for color, height in table.fireworks.items())
        partner = "\n".join(
            f"  {number}: {card_words(card.face)}; knows {knowledge(card)}"
            for number, card in enumerate(table.partner, 1)
        )
        own_cards = "\n".join(f"  {number}: {knowledge(card)}" for number, card in enumerate(table.own, 1))
        discards = Counter(map(card_words, table.discards))
        discarded = ", ".join(f"{count} x {words}" for words, count in discards.items()) or "none"
        moves = "\n".join(f"  {'you' if by == player else 'partner'}: {text}" for by, text in self.moves) or "  none"
        return (
            f"{RULES}\n\nFireworks: {fireworks}\nLives: {table.lives}. Information tokens: {table.tokens}. "
            f"Cards in the deck: {table.deck}.\nDiscarded: {discarded}\n"
            f"Your partner's cards, the oldest first:\n{partner}\nYour own cards, the oldest first:\n{own_cards}\n"
            f"Last moves:\n{moves}\nLegal moves: {'; '.join(self.words())}\n\nThink "
            "shortly, then end with one line that begins with `Move:`, then one legal move."
        )

    def privileged(self) -> str:
        hands = (" ".join(card.face for card in self.table(1 - player).partner) for player in (0, 1))
        return f"hands {' / '.join(hands)} deck {' '.join(self.deck[self.luck :])}"

    def render(self) -> Drawing:
        tables = [self.table(0), self.table(1)]
        rows: list[list[str | float]] = [
            [role(player), number, card_words(card.face), knowledge(card)]
            for player in (0, 1)
            for number, card in enumerate(tables[1 - player].partner, 1)
        ]
        table = tables[0]
        state: list[list[str | float]] = [[COLORS[color], height] for color, height in table.fireworks.items()]
        state += [["lives", table.lives], ["tokens", table.tokens], ["deck", table.deck]]
        moves = "\n".join(f"{role(by)}: {text}" for by, text in self.moves)
        return drawings.several(
            ("fireworks", drawings.table(("", ""), state)),
            ("hands", drawings.table(("player", "card", "is", "known as"), rows)),
            ("last moves", drawings.text(moves)),
        )


def move_words(action: str) -> str:
    """Return a move of OpenSpiel in words: `play 1`, `discard 2`, `hint red`, `hint 3`; cards count from 1."""
    words = action.strip("()").split()
    if words[0] == "Reveal":
        return f"hint {COLORS.get(words[-1], words[-1])}"
    return f"{words[0].lower()} {int(words[-1]) + 1}"


def describe_move(move: str, player: int, tables: Sequence[Table]) -> str:
    """Return a move with its result, which both players see. `tables` are what they saw before it."""
    kind, argument = move.split()
    if kind == "hint":
        faces = (card.face for card in tables[player].partner)
        touched = [number for number, face in enumerate(faces, 1) if argument in (COLORS[face[0]], face[1])]
        return f"{move} for card{'s' if len(touched) > 1 else ''} {' '.join(map(str, touched))}"
    face = tables[1 - player].partner[int(argument) - 1].face
    if kind == "discard":
        return f"{move}, a {card_words(face)}"
    fits = tables[player].fireworks[face[0]] + 1 == int(face[1])
    return f"{move}, a {card_words(face)}, {'which fits' if fits else 'which costs a life'}"


def card_words(face: str) -> str:
    return f"{COLORS[face[0]]} {face[1]}"


def numbers(ranks: Sequence[int]) -> str:
    return "".join(map(str, ranks))


def knowledge(card: Card) -> str:
    """Return what its owner has been told of a card."""
    colors = "any color" if len(card.colors) == 5 else " or ".join(COLORS[color] for color in card.colors)
    ranks = "any rank" if len(card.ranks) == len(COPIES) else " or ".join(map(str, card.ranks))
    return f"{colors}, {ranks}"
