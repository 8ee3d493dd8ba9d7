"""An evaluation in words, against lines written by hand."""

from cadre.cli.evaluate import format_report

GREEDY = {
    "tasks": 1200,
    "failures": 0,
    "success": 0.98765,
    "low": 0.97,
    "high": 0.9951,
    "reward": 1.23456,
    "decisions": 3.04,
    "tokens": 1234.5,
    "parts": {},
    "temperature": 0.0,
    "max_tokens": {"tool": 2048, "planner": 96},
}
SAMPLED = {
    "tasks": 30,
    "failures": 2,
    "samples": 16,
    "temperature": 0.6,
    "max_tokens": {"solver": 512},
    "average": (0.25, 0.2, 0.3),
    "passing": {1: (0.25, 0.2, 0.3), 16: (0.5, 0.4, 0.6)},
    "reward": -0.1,
    "tokens": 80.2,
    "parts": {f"part-{letter}": 0.5 for letter in "abcdefgh"},
}


def test_a_greedy_report() -> None:
    assert format_report(GREEDY) == [
        "success    98.8% of 1,200 held-out tasks (95% interval 97.0% to 99.5%)",
        "reward     +1.23 an episode",
        "decisions  3.0 an episode",
        "tokens     1,234 an episode",
        "played     greedily; most tokens: tool 2,048, planner 96",
    ]


def test_a_sampled_report() -> None:
    assert format_report(SAMPLED) == [
        "success    25.0% of 16 episodes a task, 30 held-out tasks (95% interval 20.0% to",
        "           30.0%)",
        "pass@1     25.0% (95% interval 20.0% to 30.0%)",
        "pass@16    50.0% (95% interval 40.0% to 60.0%)",
        "reward     -0.10 an episode",
        "tokens     80 an episode",
        "parts      part-a 0.50, part-b 0.50, part-c 0.50, part-d 0.50, part-e 0.50,",
        "           part-f 0.50, part-g 0.50, part-h 0.50",
        "played     at temperature 0.6; most tokens: solver 512",
        "failed     0.4% of the episodes; they count as not solved",
    ]
