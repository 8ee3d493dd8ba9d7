"""Situations in which a result was wrong without a message, and the tests that hold each of them now.

Each situation comes from a public bug report of another project or from a review of Cadre.
`python bench/correctness.py` runs the tests of every situation and prints their counts; `--write` records
`correct.cases`, `correct.cases_right`, and the same of the second round (`second.*`) in results/correctness.jsonl;
`--table` renews docs/correctness.md.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from common import ROOT, record

PAGE = ROOT / "docs" / "correctness.md"
BEGIN, END = "<!-- situations -->", "<!-- end of situations -->"


@dataclass(frozen=True)
class Situation:
    """What went wrong in one situation, what happens now, and the tests that fail without the mend (ids of pytest)."""

    name: str
    source: str
    before: str
    now: str
    tests: tuple[str, ...]


FIRST = (
    Situation(
        "a tokenizer with a tool template beside the default one",
        "huggingface/transformers#31429",
        "tools were rendered with one template and calls parsed in the form of the other, so no call was recognised",
        "the tool template is used for rendering and for parsing",
        ("tests/cadre/engines/test_tool_use.py::test_the_template_for_tools_writes_conversations_with_tools",),
    ),
    Situation(
        "tool calls as bare JSON, or as Pythonic calls",
        "huggingface/trl#5518",
        "only `<tool_call>` was parsed",
        "calls are parsed in the form that the model's template renders (26 forms are tested)",
        (
            "tests/cadre/engines/test_tool_use.py::test_a_call_in_the_form_of_the_template_is_read_back",
            "tests/cadre/engines/test_tool_use.py::test_calls_are_read_in_the_form_that_is_asked_for",
        ),
    ),
    Situation(
        "a template that omits calls or their results",
        "huggingface/trl#5517",
        "they were missing in the prompt, without a warning",
        "what the template omits is written as text, with one warning, or is an error",
        (
            "tests/cadre/engines/test_tool_use.py::test_nothing_of_a_conversation_with_calls_is_lost",
            "tests/cadre/engines/test_tool_use.py::test_what_a_template_leaves_out_is_put_in_words",
            "tests/cadre/engines/test_tool_use.py::test_a_template_that_forgets_what_was_called_is_refused",
        ),
    ),
    Situation(
        "`<\\|endoftext\\|>` inside a text",
        "huggingface/transformers#29279",
        "became the control token in prompts, and was learned in a warm start",
        "stays text; an answer for a warm start that contains an end of turn is an error with its line",
        ("tests/cadre/engines/test_control_tokens.py",),
    ),
    Situation(
        "equal rewards with float32 residue; rewards of 1e-10",
        "NVIDIA-NeMo/RL#4161, THUDM/slime#233",
        "advantages of ±1 from rounding errors, and 0 for real differences",
        "zero variance is judged relative to the size of the rewards",
        ("tests/cadre/test_rounding.py",),
    ),
    Situation(
        "the user's file imports another file beside it",
        "huggingface/trl#3448",
        "`No module named ...`",
        "every process that loads the file can import it",
        ("tests/cadre/settings/test_user_imports.py",),
    ),
    Situation(
        "training from a PEFT adapter or an exported model",
        "verl-project/verl#3400, huggingface/trl#3684",
        "no setting for it",
        "`lora.path`, or the folder as the model; log-probabilities equal PEFT's",
        ("tests/cadre/config/test_adapters.py",),
    ),
    Situation(
        "one conversation exceeds the context; an endpoint returns status 400",
        "PrimeIntellect-ai/verifiers#360, tinker-cookbook#506",
        "trees with complete other branches were dropped; status 400 ended the run",
        "the branch ends with a reward and is counted; the others are kept",
        ("tests/cadre/rollout/test_failures.py", "tests/cadre/engines/test_openai.py"),
    ),
    Situation(
        "`0100`, `1:30`, `on` in YAML",
        "opensanctions#3845, yacs#48",
        "parsed as 64 (octal), 90 and true",
        "parsed as in YAML 1.2",
        ("tests/cadre/settings/test_yaml_file.py",),
    ),
    Situation(
        "a module that exits, or parses the command line, on import",
        "huggingface/trl#677",
        "Cadre exited, in one case with exit code 0",
        "an error with file and line",
        ("tests/cadre/settings/test_user_imports.py::test_what_a_file_does_while_it_is_loaded_names_the_file",),
    ),
    Situation(
        "groups of one sample",
        "modelscope/ms-swift#3980",
        "six steps without an update",
        "an error if every advantage would be 0",
        ("tests/cadre/config/test_one_sample.py",),
    ),
    Situation(
        "a tester repeats the example of the problem statement in another spelling",
        "review of Cadre",
        "full reward",
        "at most 0.2, as for a verbatim copy",
        ("tests/cadre_tasks/code/test_copies.py",),
    ),
    Situation(
        "a helper function is called without effect",
        "review of Cadre",
        "reward 4 of 4",
        "reward 2.5, as for an unused helper",
        ("tests/cadre_tasks/code/test_replaced_helper.py",),
    ),
    Situation(
        "somebody else's run folder contains code",
        "review of Cadre",
        "`view`, `view --export`, `audit` and `fork` executed it",
        "reading executes nothing; playing asks for `--trust` unless all that is named is listed as harmless",
        ("tests/cadre/cli/test_strange_folders.py",),
    ),
    Situation(
        "an added token in another agent's message",
        "review of Cadre",
        "became a control token",
        "stays text",
        ("tests/cadre/engines/test_control_tokens.py::test_no_text_of_others_becomes_a_control_token",),
    ),
    Situation(
        "a full disk while exporting",
        "review of Cadre",
        "a traceback and half an export, which blocked a second try",
        "one error message; the folder is written completely or not at all",
        ("tests/cadre/cli/test_whole_outputs.py::test_on_a_full_disk_it_is_one_sentence_and_a_second_try_works",),
    ),
    Situation(
        "metrics.jsonl ends before the checkpoint's step",
        "review of Cadre",
        "no message",
        "the missing steps are listed",
        ("tests/cadre/cli/test_damaged_runs.py::test_lost_metrics_are_named",),
    ),
    Situation(
        "a fork is killed while it starts",
        "review of Cadre",
        "`--resume` trained from step 0",
        "it resumes as a fork, or an error has the command to repeat",
        (
            "tests/cadre/cli/test_whole_outputs.py::test_a_fork_that_was_killed_is_no_run_and_its_command_is_named",
            "tests/cadre/cli/test_whole_outputs.py::test_a_fork_without_its_checkpoint_never_begins_anew",
        ),
    ),
    Situation(
        "an endless script on a problem with many test cases",
        "review of Cadre",
        "80 s for 8 cases",
        "it is stopped after three cases",
        ("tests/cadre_sandbox/test_checkers.py::test_a_script_that_takes_too_long_is_not_run_on_every_case",),
    ),
    Situation(
        "a symbolic link in place of an image in a run folder",
        "review of Cadre",
        "the file outside the folder was served",
        "not served",
        ("tests/cadre/runs/test_tree_images.py::test_a_link_in_place_of_a_picture_is_not_followed",),
    ),
    Situation(
        "`tasks()` returns None or a generator",
        "review of Cadre",
        "a traceback",
        "an error with what it returned and what is expected",
        ("tests/cadre/envs/test_check.py::test_broken_environments_are_named",),
    ),
    Situation(
        "invalid records in a run folder",
        "review of Cadre",
        "tracebacks",
        "they are reported, and the last complete checkpoint is used",
        (
            "tests/cadre/cli/test_damaged_runs.py::test_the_checkpoint_before_a_damaged_one_is_used",
            "tests/cadre/cli/test_damaged_runs.py::test_damaged_records_are_named_and_left_out",
        ),
    ),
    Situation(
        "endless recipes: self references, devices, pipes",
        "review of Cadre",
        "3,000 lines of traceback, or an endless loop",
        "one error message",
        (
            "tests/cadre/cli/test_endless_files.py::test_a_recipe_is_a_regular_file",
            "tests/cadre/settings/test_yaml_file.py::test_what_has_no_end_is_refused",
        ),
    ),
    Situation(
        "a model of 10^9 layers",
        "review of Cadre",
        "an endless start, also with `--dry-run`",
        "an error with its size",
        ("tests/cadre/cli/test_endless_files.py::test_a_model_is_refused_by_its_size",),
    ),
    Situation(
        "attention windows longer than the test sequences at load time",
        "review of Cadre",
        "0.7 nats between the sampler's and the learner's log-probabilities",
        "a copy with small windows is tested with unequal lengths",
        ("tests/cadre/engines/torch/test_families.py",),
    ),
    Situation(
        "gradient checkpointing turns on dropout",
        "review of Cadre",
        "dropout was active in updates",
        "layers stay in evaluation mode",
        ("tests/cadre/engines/torch/test_trainer.py::test_nothing_is_dropped_out_while_learning",),
    ),
    Situation(
        "token ids beyond the embeddings, a changed default dtype, heads or padding that do not fit",
        "public reports about several trainers",
        "index errors during a step, or wrong weights without a message",
        "checked when the model loads",
        ("tests/cadre/engines/torch/test_model.py",),
    ),
    Situation(
        "runs that start at the same time; runs that were moved",
        "public reports about several trainers",
        "shared folders; `--force` needed",
        "each run has its own folder; a moved run can be resumed",
        ("tests/cadre/runs/test_run_folders.py",),
    ),
    Situation(
        "SIGHUP, SIGTERM and a second Ctrl-C",
        "public reports about several trainers",
        "no checkpoint, or a lost one",
        "a checkpoint is saved; the message says how to exit at once",
        ("tests/cadre/training/test_signals.py",),
    ),
    Situation(
        "NaN in metrics, the best checkpoint, progress of `eval`",
        "public reports about several trainers",
        "invalid JSON; no way to name it; no output for half an hour",
        "null; `--best`; a progress line",
        ("tests/cadre/runs/test_jsonl.py", "tests/cadre/cli/test_chosen_checkpoint.py"),
    ),
    Situation(
        "intervals of equal values",
        "review of Cadre",
        "had width zero",
        "Wilson's interval for rates, a lower bound on the width for means",
        ("tests/cadre/evaluation/test_evaluate.py::test_no_interval_of_equal_values_has_width_zero",),
    ),
    Situation(
        "standard deviation over means of shared tree parts",
        "review of Cadre",
        "Tree-GRPO's advantages were twice as large",
        "standard deviation over leaves",
        ("tests/cadre/algorithms/test_credit_schemes.py",),
    ),
    Situation(
        "whitening over the roles of a shared policy",
        "review of Cadre",
        "a role's better sample got the advantage -0.73",
        "whitening per policy and role",
        ("tests/cadre/advantages/test_gae.py",),
    ),
    Situation(
        "HTTP requests whose header never arrives",
        "review of Cadre",
        "connections stayed open forever",
        "closed after ten seconds, and counted",
        ("tests/cadre_programs/test_http_limits.py",),
    ),
    Situation(
        "generation settings that transformers loads and refuses to save",
        "huggingface/transformers#29988, OpenRLHF/OpenRLHF#212",
        "the first checkpoint of a model with a temperature and no `do_sample` ended the training",
        "`generation_config.json` is saved as it came",
        (
            "tests/cadre/engines/torch/test_exports.py"
            "::test_settings_that_transformers_loads_and_does_not_save_are_saved_as_they_came",
        ),
    ),
    Situation(
        "a base model whose chat template ends turns with another token than its own",
        "hiyouga/LlamaFactory#7454, QwenLM/Qwen3#1064",
        "exports listed only the base model's EOS token, so other libraries did not stop",
        "exports list every token that ended a turn in training",
        ("tests/cadre/engines/torch/test_exports.py::test_an_export_ends_where_turns_ended_in_training",),
    ),
    Situation(
        "an adapter that was trained on another chat template than its base has",
        "huggingface/peft#1932, lm-sys/FastChat#1896",
        "prompts were written by the template of the base, without a message",
        "the template in the adapter's folder is used for its policy, and its end of turn",
        ("tests/cadre/engines/torch/test_adapter_template.py",),
    ),
    Situation(
        "the best of evaluations with equal success",
        "NVIDIA-NeMo/RL#3067, Lightning-AI/pytorch-lightning#16504",
        "if no task was ever solved, untrained weights were the best, and `train.patience` stopped what improved",
        "at equal success the checkpoint with the higher reward is better",
        (
            "tests/cadre/cli/test_chosen_checkpoint.py::test_of_equal_success_the_higher_reward_is_better",
            "tests/cadre/training/test_ending.py::test_where_no_task_is_ever_solved_the_reward_counts",
        ),
    ),
    Situation(
        "dynamic sampling beside a length penalty",
        "NVIDIA-NeMo/RL#2431",
        "in groups with only wrong answers the shortest was reinforced, as their penalised returns differ",
        "groups are dropped by their rewards before length penalties",
        (
            "tests/cadre/advantages/test_filters.py"
            "::test_wrong_answers_of_unequal_length_are_no_group_to_learn_from_under_the_filter",
        ),
    ),
    Situation(
        "an importance ratio that overflows",
        "OpenRLHF/OpenRLHF#1314",
        "one clipped token made the gradient of its minibatch NaN, and the step was skipped",
        "the token has no gradient, and the others keep theirs",
        ("tests/cadre/learn/test_loss.py::test_a_ratio_that_overflows_leaves_the_other_tokens_their_gradient",),
    ),
    Situation(
        "weight decay of biases and norms",
        "ServiceNow/Fast-LLM#545",
        "all weights decayed",
        "only matrices decay",
        ("tests/cadre/learn/test_optimiser.py::test_biases_and_scales_do_not_decay_and_follow_the_schedule",),
    ),
    Situation(
        "a warm-up that is longer than the training",
        "AI-Hypercomputer/maxtext#4225",
        "the rate never reached its peak, without a message",
        "a warning before the first step",
        ("tests/cadre/config/test_warnings.py::test_a_rate_that_never_reaches_its_peak_is_told_of",),
    ),
    Situation(
        "WANDB_PROJECT and MLFLOW_EXPERIMENT_NAME",
        "Lightning-AI/pytorch-lightning#16028, huggingface/transformers#24847",
        "the project was always `cadre`",
        "used if the settings name no project",
        ("tests/cadre/runs/test_trackers.py::test_the_variable_of_a_package_names_the_project_unless_the_settings_do",),
    ),
    Situation(
        "a run folder on a machine that has the base in another folder",
        "public reports about several trainers",
        "it could not be resumed, forked or exported without an edit of its config.yaml",
        "`team.policies.POLICY.model=FOLDER` names it, if the former folder is gone",
        (
            "tests/cadre/cli/test_chosen_checkpoint.py"
            "::test_a_run_from_another_machine_goes_on_with_the_base_where_it_is_here",
        ),
    ),
)

# What strangers' inputs showed in a second round.
SECOND = (
    Situation(
        "a tool's result after a call that was written otherwise than the template writes it",
        "oobabooga/textgen#7498",
        "templates that write results in the turn of the call, or take a name or an id from it, lost the result or "
        "headed it with nothing",
        "the sampled turn is rendered with its calls, for every template, or the prompt is rendered anew",
        ("tests/cadre/engines/test_tool_use.py::test_results_are_in_the_next_prompt_however_the_call_was_written",),
    ),
    Situation(
        "ids whose logit is minus infinity",
        "huggingface/trl#7221, NovaSky-AI/SkyRL#2259",
        "entropy and loss were NaN, and the run stopped",
        "such a score counts 0 in the entropy and its gradient, and an entropy of weight 0 is not in the loss",
        (
            "tests/cadre/engines/torch/test_logprobs.py::test_a_score_that_is_ruled_out_counts_0",
            "tests/cadre/learn/test_loss.py::test_an_entropy_of_weight_0_is_not_in_the_loss",
        ),
    ),
    Situation(
        "LoRA on all linear layers of a mixture of experts",
        "huggingface/peft#3009, agentscope-ai/TuFT#154",
        "the experts got no adapters, without a message",
        "the dry run and the start say what share of the weights gets adapters and what does not",
        ("tests/cadre/engines/torch/test_lora.py::test_experts_that_get_no_adapter_are_named",),
    ),
    Situation(
        "a semaphore or a client of asyncio in an environment's module",
        "THUDM/slime#2372, X-GenGroup/Flow-Factory#183",
        "episodes failed in a second call from Python: the event loop is closed, or another",
        "all work of a process runs in one event loop",
        ("tests/cadre/test_api.py::test_a_semaphore_of_an_environment_works_through_trainings_and_evaluations",),
    ),
    Situation(
        "words that were added to the vocabulary",
        "hiyouga/LLaMA-Factory#7253, modelscope/ms-swift#4162",
        "a space was put into them, as into control tokens",
        "they reach the model as they are; the first control token that is broken is named in a warning",
        ("tests/cadre/engines/test_control_tokens.py::test_a_word_that_was_added_to_the_vocabulary_is_read_as_it_is",),
    ),
    Situation(
        "an agent program that asks for several completions of one call",
        "google-deepmind/concordia#95",
        "every branch failed after a minute",
        "each completion is a decision",
        ("tests/cadre_programs/test_program.py::test_each_completion_of_a_request_for_several_is_a_decision",),
    ),
    Situation(
        "a part of the reward that not every step names",
        "review of Cadre",
        "the others counted as 0: a role that always told had 0.5",
        "a part is averaged over the steps that name it",
        ("tests/cadre/evaluation/test_report.py::test_a_part_is_averaged_over_the_steps_that_name_it",),
    ),
    Situation(
        "a bundled return, group, baseline or scale that a user's function calls",
        "review of Cadre",
        "other advantages and other checks, as both went by the name",
        "properties are declared with the function, and equal declarations give equal advantages",
        ("tests/cadre/test_declare.py::test_a_bundled_function_under_another_name_gives_the_same",),
    ),
    Situation(
        "statistics of a bfloat16 policy",
        "review of Cadre",
        "entropies were off by up to 0.7 nats, the bonus's gradient by up to 21%, and `loss.entropy_tokens` crashed",
        "nothing after the projection runs under autocast",
        (
            "tests/cadre/engines/torch/test_logprobs.py"
            "::test_statistics_of_a_bfloat16_forward_are_those_of_its_logits_in_float32",
        ),
    ),
    Situation(
        "settings of the credit beside a teacher that gives all advantages",
        "review of Cadre",
        "14 of them were accepted and ignored",
        "each is an error",
        ("tests/cadre/config/test_unused.py",),
    ),
    Situation(
        "groups whose returns tanh draws together",
        "review of Cadre",
        "advantage 0, as for equal returns",
        "equal only if they were equal before tanh",
        ("tests/cadre/test_rounding.py::test_returns_are_equal_under_tanh_if_they_were_before_it",),
    ),
    Situation(
        "a setting that only an environment's `tasks` declares",
        "review of Cadre",
        "refused in training",
        "accepted; a test sets every setting of every bundled environment",
        ("tests/cadre_tasks/test_settings.py",),
    ),
    Situation(
        "a program that is served by the rules it was trained with",
        "review of Cadre",
        "404 for models that are roles by `system:`, `agent:` or a pattern",
        "one resolver of roles for training, checking, serving and chat",
        ("tests/cadre_programs/test_serving.py::test_the_rules_of_the_program_hold_when_it_is_served",),
    ),
    Situation(
        "`cadre.train(teacher=..., kl=...)`",
        "review of Cadre",
        "refused as unknown",
        "the sections of the Python API are those of the settings",
        ("tests/cadre/test_api.py::test_every_section_of_the_settings_is_an_argument",),
    ),
    Situation(
        "calls of an MCP server that a fork repeats; patterns of a tool's schema",
        "review of Cadre",
        "no time limit: everything stood still",
        "the limit of a call, and half a second for a pattern",
        ("tests/cadre/envs/test_mcp_results.py", "tests/cadre/envs/test_schemas.py"),
    ),
    Situation(
        "somebody else's run folder names commands, addresses or modules in its settings",
        "review of Cadre",
        "eval, play, audit, fork and --resume ran or asked them without --trust",
        "what asks for nothing is listed; all other text asks",
        ("tests/cadre/cli/test_strange_folders.py",),
    ),
    Situation(
        "a prompt of megabytes",
        "review of Cadre",
        "tokenised whole before it was refused, while others waited",
        "refused after its beginning",
        ("tests/cadre/engines/test_model_text.py::test_a_prompt_that_is_far_too_long_is_not_tokenised_whole",),
    ),
    Situation(
        "an MCP server that writes without end on stderr; half requests",
        "review of Cadre",
        "the disk filled; connections were held",
        "the last 64 kB are kept; a new connection takes the place of the oldest half request",
        (
            "tests/cadre/envs/test_mcp.py::test_what_a_server_writes_on_stderr_fills_no_disk",
            "tests/cadre_programs/test_http_limits.py::test_half_requests_lock_nobody_out",
        ),
    ),
    Situation(
        "`ToolCall` with a dictionary of arguments",
        "review of Cadre",
        "the chat template was blamed",
        "accepted",
        ("tests/cadre/test_types.py",),
    ),
    Situation(
        "tools of an agent program that draw or read the clock in parallel",
        "review of Cadre",
        "one stream in order of arrival: most replays diverged",
        "a stream and a clock for each thread and task",
        ("tests/cadre_programs/test_steady.py",),
    ),
    Situation(
        "an agent program that diverges only where it gets several tool calls at once",
        "review of Cadre",
        "`cadre check` passed it, as it never made two",
        "found",
        ("tests/cadre_programs/test_check.py::test_a_program_that_diverges_where_it_gets_several_calls_at_once",),
    ),
    Situation(
        "a training in which every episode failed",
        "review of Cadre",
        "exit code 0",
        "an error, after the checkpoint is saved",
        ("tests/cadre/training/test_loop.py::test_a_training_in_which_every_episode_failed_ends_with_an_error",),
    ),
    Situation(
        "a tester that is paid for a check of the type alone",
        "review of Cadre",
        "paid above `valid` on 4 of 9 problems",
        "mutants that any call shows are left out",
        ("tests/cadre_tasks/code/test_tester.py::test_a_mutant_that_any_call_shows_is_none",),
    ),
)
SITUATIONS = (*FIRST, *SECOND)


def run_tests() -> dict[str, Counter[str]]:
    """Return how often each outcome came in the tests of each situation, by its name; all run in one call of pytest."""
    wanted = sorted({test for situation in SITUATIONS for test in situation.tests})
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-n", "2", f"--junitxml={report}", *wanted]
        subprocess.run(command, cwd=ROOT, check=False)
        cases = [(_test_id(case), _outcome(case)) for case in ElementTree.parse(report).iter("testcase")]
    return {
        situation.name: Counter(outcome for test, outcome in cases if _belongs(test, situation.tests))
        for situation in SITUATIONS
    }


def _test_id(case: ElementTree.Element) -> str:
    """Return the id of a test of the report, without its parameters."""
    return f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name', '').partition('[')[0]}"


def _outcome(case: ElementTree.Element) -> str:
    kinds = {child.tag for child in case}
    return "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"


def _belongs(test: str, wanted: tuple[str, ...]) -> bool:
    """Return True if the test is one of those, or lies in one of their files."""
    return test in wanted or test.partition("::")[0] in wanted


def table() -> str:
    """Return the rows of docs/correctness.md."""
    rows = ["| situation | reported as | before | now | tests |", "|---|---|---|---|---|"]
    for one in SITUATIONS:
        tests = "<br>".join(f"`{test}`" for test in one.tests)
        rows.append(f"| {one.name} | {one.source} | {one.before} | {one.now} | {tests} |")
    return "\n".join(rows)


def renew_page() -> None:
    """Replace the table of docs/correctness.md by the present one."""
    text = PAGE.read_text()
    head, rest = text.split(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="append the figures to results/correctness.jsonl")
    parser.add_argument("--table", action="store_true", help="renew docs/correctness.md and run nothing")
    options = parser.parse_args()
    if options.table:
        renew_page()
        return
    outcomes = run_tests()
    for name, counts in outcomes.items():
        print(f"{name}: {dict(counts)}")
    for prefix, group in (("correct", SITUATIONS), ("second", SECOND)):
        right = sum(outcomes[one.name]["passed"] > 0 and not outcomes[one.name]["failed"] for one in group)
        print(f"{right} of {len(group)} situations are right ({prefix})")
        for name, value in ((f"{prefix}.cases", len(group)), (f"{prefix}.cases_right", right)) if options.write else ():
            record("correctness", name, [value], "situations", "python bench/correctness.py --write", n=len(group))


if __name__ == "__main__":
    main()
