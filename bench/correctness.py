"""Situations in which a result was wrong without a message, and the tests that hold each of them now.

Each situation comes from a public bug report of another project or from a review of Cadre.
`python bench/correctness.py` runs the tests of every situation and prints their counts; `--write` records
`correct.cases` and `correct.cases_right` in results/correctness.jsonl;
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


SITUATIONS = (
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
    right = 0
    for name, counts in run_tests().items():
        print(f"{name}: {dict(counts)}")
        right += counts["passed"] > 0 and not counts["failed"]
    print(f"{right} of {len(SITUATIONS)} situations are right")
    if options.write:
        for name, value in (("correct.cases", len(SITUATIONS)), ("correct.cases_right", right)):
            record("correctness", name, [value], "situations", "python bench/correctness.py --write", n=len(SITUATIONS))


if __name__ == "__main__":
    main()
