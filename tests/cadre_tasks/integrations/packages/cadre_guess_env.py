"""A server of OpenEnv, as an installed package has it: guess a digit within three steps."""

from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class GuessAction(Action):
    message: str


class GuessObservation(Observation):
    text: str


class Guess(Environment[GuessAction, GuessObservation, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state, self.digit = State(), 0

    def reset(self, seed=None, episode_id=None, **arguments) -> GuessObservation:
        self._state, self.digit = State(episode_id=episode_id), (seed or 0) % 10
        return GuessObservation(text="Guess a digit.")

    def step(self, action: GuessAction, timeout_s=None, **arguments) -> GuessObservation:
        self._state.step_count += 1
        right = str(self.digit) in action.message
        text = "Right." if right else f"Wrong, {self._state.step_count} of 3."
        return GuessObservation(text=text, done=right or self._state.step_count == 3, reward=float(right))

    @property
    def state(self) -> State:
        return self._state


app = create_fastapi_app(Guess, GuessAction, GuessObservation, max_concurrent_envs=2)
