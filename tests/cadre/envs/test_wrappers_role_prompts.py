"""System messages by role, before whatever an environment says."""

from cadre.config.experiment import load
from cadre.config.resolve import resolve
from cadre.envs.spec import EnvSpec
from cadre.envs.wrappers import with_prompts
from cadre.types import Message, Observation
from cadre_tasks.games.plan_path import PlanPath
from tests.helpers.playing import play


def test_a_role_sees_its_prompt_first_and_others_see_none() -> None:
    spec = EnvSpec("plan-path", {"prompts": "full"}, prompts={"planner": "Be brief."})
    env, plain = (
        created.make(created.tasks("test")[0]) for created in (spec, EnvSpec("plan-path", {"prompts": "full"}))
    )
    assert env.observe() == plain.observe()
    play(env, "print('U')")
    play(plain, "print('U')")
    first, *rest = env.observe()["planner"].messages
    assert first == Message("system", "Be brief.")
    assert tuple(rest) == plain.observe()["planner"].messages
    assert isinstance(env, PlanPath)


def test_a_system_message_of_the_environment_stays_behind_it() -> None:
    class Polite(PlanPath):
        def observe(self) -> dict[str, Observation]:
            return {"tool": Observation("tool", (Message("system", "Thank you."), Message("user", "Go.")))}

    env = with_prompts(Polite, {"tool": "Be brief."})(PlanPath.tasks("test")[0])
    assert [message.content for message in env.observe()["tool"].messages] == ["Be brief.\n\nThank you.", "Go."]


def test_an_experiment_says_it_once_for_training_and_evaluation() -> None:
    chosen = load("plan-path", ["team.prompts={tool: Write little.}", "evaluate.settings={turns: 1}"])
    experiment = resolve(chosen)
    for spec in (experiment.env_spec, experiment.held_out):
        assert spec.make(spec.tasks("test")[0]).observe()["tool"].messages[0] == Message("system", "Write little.")
