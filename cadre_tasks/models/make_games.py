"""Makes the embedded model of small games: `python -m cadre_tasks.models.make_games OUT`.

A Llama of about a hundred thousand parameters with a tokenizer of its own, pre-trained on legal random play of a few of
OpenSpiel's games and on nothing else: given a player's observation, it answers with any legal move, each nearly as
likely as the others. The likelihoods are drawn at random for every decision, independently of the rewards, at first
with large differences and then with the same ones made small. With equal likelihoods from the beginning, or exactly
equal ones at the end, the model would attend to the list of moves alone, and training could not make it read the rest.
Equal seeds give equal weights on one machine.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from functools import cache, partial

import torch
from rich.console import Console
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from cadre import random_keys
from cadre.concurrency import run_coroutine
from cadre.types import Choice, Task
from cadre_tasks.integrations.openspiel import OpenSpiel, acting, answers, role, seen
from cadre_tasks.models.make_seed import byte_level, make_parser, padded, tiny_llama

# How often a batch is of a game: oftener where more has to be read, seldomer where that is long.
GAMES = {"tiny_hanabi": 4, "kuhn_poker": 2, "leduc_poker": 3, "matrix_coordination": 1, "tiny_bridge_2p": 1}
VOCABULARY = 512
# Of the tendencies, at first and at last.
SPREAD, LAST_SPREAD = 1.5, 0.3
# The first draw of them by which decisions of tiny Hanabi that differ in one thing have different likeliest moves, so
# that all that is seen has to be read.
DRAW = 71
# A move or a number is a piece of its own, and so one token where it is frequent.
PIECES = r"\w+|[^\w\s]|\s"


def met(game: str, plays: int = 1000) -> list[Choice]:
    """Return the decisions that random play reaches, for a game that is too large to list them."""
    choices: dict[str, Choice] = {}
    generator = random_keys.generator("games", game)
    for index in range(plays):
        state = OpenSpiel(Task("play", {"deal": f"random-{index}"}), game)
        while not state.state.is_terminal():
            for player in acting(state.state):
                choice = Choice(seen(state.state, player), answers(state.state, player))
                choices.setdefault(choice.observation.messages[-1].content, choice)
            chosen = {role(at): generator.choice(answers(state.state, at)) for at in acting(state.state)}
            run_coroutine(state.step(chosen))
    return list(choices.values())


def make_tokenizer(choices: dict[str, list[Choice]]) -> PreTrainedTokenizerFast:
    """Return byte-level BPE trained on the prompts and answers of these decisions."""
    all_choices = [choice for of_game in choices.values() for choice in of_game]
    return byte_level(PIECES, (choice.observation.messages[-1].content for choice in all_choices), VOCABULARY)


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    return tiny_llama(tokenizer, VOCABULARY, hidden=64, mlp=128, layers=2, context=256)


def batches(
    choices: dict[str, list[Choice]],
    tokenizer: PreTrainedTokenizerFast,
    size: int,
    generator: random.Random,
    likelihoods: Callable[[Choice], list[float]],
) -> Iterator[dict[str, torch.Tensor]]:
    """Yield endless right-padded batches, each of random decisions of one game; only the moves have labels.
    `likelihoods` returns the relative likelihood of each answer to a decision."""
    as_ids = cache(partial(encoded, tokenizer))
    while True:
        (game,) = generator.choices(list(GAMES), list(GAMES.values()))
        batch_choices = generator.choices(choices[game], k=size)
        rows: list[tuple[list[int], list[int]]] = []
        for choice in batch_choices:
            prompt_ids, answers_ids = as_ids(choice)
            (answer_ids,) = generator.choices(answers_ids, likelihoods(choice))
            # -100 is the label that the loss ignores: the prompt's tokens are not trained on.
            rows.append((prompt_ids + answer_ids, [-100] * len(prompt_ids) + answer_ids))
        yield padded(rows)


def encoded(tokenizer: PreTrainedTokenizerFast, choice: Choice) -> tuple[list[int], list[list[int]]]:
    """Return the token ids of a decision's prompt and of each of its answers."""
    messages = [{"role": "user", "content": choice.observation.messages[-1].content}]
    text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    answers = [tokenizer.encode(answer, add_special_tokens=False) for answer in choice.answers]
    return tokenizer.encode(text, add_special_tokens=False), [[*answer, tokenizer.eos_token_id] for answer in answers]


@cache
def tendencies(choice: Choice, spread: float = SPREAD) -> list[float]:
    """Return the relative likelihood of each answer: exp of a normal draw of deviation `spread`, seeded by the
    decision's text."""
    generator = random_keys.generator("tendencies", DRAW, choice.observation.messages[-1].content)
    return [math.exp(generator.gauss(0.0, spread)) for _ in choice.answers]


def descend(model: LlamaForCausalLM, losses: Iterator[torch.Tensor], steps: int, peak: float) -> None:
    """Minimise the losses with AdamW, a short warm-up and a linear decay; each loss is computed when it is needed."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.98), weight_decay=0.01)
    rate = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: min(1.0, (step + 1) / 20) * (1 - step / steps))
    for step, loss in zip(range(steps), losses, strict=False):
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        rate.step()
        optimiser.zero_grad()
        if step % 100 == 0 or step == steps - 1:
            Console().print(f"step {step}/{steps}  loss {loss.item():.4f}")


def pretrain(model: LlamaForCausalLM, rows: Iterator[dict[str, torch.Tensor]], steps: int, peak: float) -> None:
    """Minimise the cross-entropy of the labels. Right padding needs no mask: causal attention never looks ahead."""
    descend(model, (model(**batch).loss for batch in rows), steps, peak)


def main() -> None:
    parser = make_parser(
        "Make the embedded model of small games; --steps are with tendencies that show.", 3500, 48, 3e-3
    )
    parser.add_argument("--last", type=int, default=200, help="steps with faint ones")
    options = parser.parse_args()
    torch.manual_seed(0)
    choices = {game: list(OpenSpiel.choices(game)) or met(game) for game in GAMES}
    tokenizer = make_tokenizer(choices)
    model = make_model(tokenizer)
    Console().print(f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens")
    rows = partial(batches, choices, tokenizer, options.batch, random_keys.generator("games"))
    pretrain(model, rows(tendencies), options.steps, options.rate)
    pretrain(model, rows(partial(tendencies, spread=LAST_SPREAD)), options.last, options.rate / 3)
    model.save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)


if __name__ == "__main__":
    main()
