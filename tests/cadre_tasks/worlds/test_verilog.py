"""Verilog: what comes of designs and benches by hand, what is refused, and what the simulator is kept from."""

import asyncio
import math
import shutil

import pytest

from cadre.envs import splits
from cadre.errors import ConfigError
from cadre.types import Reward, Task
from cadre_tasks.worlds import verilog_judge as verilog
from cadre_tasks.worlds.circuits_tasks import circuit_of
from cadre_tasks.worlds.verilog import Verilog, VerilogOneTurn, VerilogSingleAgent
from cadre_tasks.worlds.verilog_judge import Simulated, benched, sampled
from lab.verilog_cases import bench_of
from tests.cadre_tasks.worlds.trying import (
    check_contract,
    check_exploits,
    check_hostile,
    check_references,
    check_splits,
)
from tests.helpers.playing import play, seen

pytestmark = pytest.mark.skipif(shutil.which("vvp") is None, reason="Icarus Verilog (package iverilog) is not here")
COUNTER = """
module top(input clk, input rst, input en, output reg [1:0] q);
always @(posedge clk) if (rst) q <= 0; else if (en) q <= q + 1;
endmodule
"""
CHECK = """
module tb;
reg clk = 0, rst = 1, en = 1; wire [1:0] q; integer n, wrong = 0;
top dut(.clk(clk), .rst(rst), .en(en), .q(q));
initial begin
  #1 clk = 1; #1 clk = 0; rst = 0;
  for (n = 0; n < 6; n = n + 1) begin
    if (q !== n % 4) begin wrong = 1; $display("FAIL at %0d: %b", n, q); end
    #1 clk = 1; #1 clk = 0;
  end
  if (!wrong) $display("PASS");
  $finish;
end
endmodule
"""
STEPS = [{"rst": 1, "en": 0}, *({"rst": 0, "en": en} for en in (1, 1, 0, 1, 1))]


def driven(design: str) -> Simulated:
    return asyncio.run(sampled(design, {"q": 2}, [STEPS, STEPS], {"rst": 1, "en": 1}))


def test_a_counter_cycle_by_cycle() -> None:
    """Unknown before the reset, then 0, 1, 2, 2 (not enabled), 3; the second sequence finds the 0 after 3."""
    result = driven(COUNTER)
    assert result.error == ""
    assert result.lines == ("xx", "00", "01", "10", "10", "11", "00", "00", "01", "10", "10", "11")
    other_driven = driven(COUNTER.replace("q <= q + 1", "q <= q - 1"))
    assert other_driven.lines[1:6] == ("00", "11", "10", "10", "01")


@pytest.mark.parametrize(
    ("design", "error"),
    [
        ("", "there is no Verilog"),
        (COUNTER.replace("top", "other"), "expected a module named top"),
        (COUNTER.replace("q + 1", "q +"), "it does not compile: line 3: syntax error"),
        (COUNTER.replace("[1:0]", "[7:0]"), "it does not compile: expects 8 bits, got 2"),
        (COUNTER.replace("output", "inout").replace("reg", ""), "it does not compile"),
        (COUNTER.replace("endmodule", "initial while (1) ; endmodule"), "it does not run: it took more time"),
        (COUNTER.replace("endmodule", "reg [999999999:0] r; always @(posedge clk) r <= ~r; endmodule"), "it does not"),
    ],
)
def test_why_a_design_is_not_judged(design: str, error: str) -> None:
    result = driven(design)
    assert error in result.error
    assert result.lines == ()


def verdict(bench: str, design: str) -> bool | None:
    return asyncio.run(benched(bench, design)).passed


def test_what_benches_say() -> None:
    assert verdict(CHECK, COUNTER) is True
    assert verdict(CHECK, COUNTER.replace("q + 1", "q + 2")) is False
    assert verdict(CHECK, COUNTER.replace("q <= 0", "q <= 1")) is False
    assert asyncio.run(benched(CHECK, COUNTER.replace("q + 1", "q + 2"))).output.startswith("FAIL at 1: 10")
    assert verdict("module tb; endmodule", COUNTER) is None
    assert verdict("module tb; reg a = 0; always #1 a = ~a; endmodule", COUNTER) is None
    assert verdict('module tb; initial forever $display("PASS"); endmodule', COUNTER) is None
    assert verdict(CHECK.replace("q !==", "dut.q !=="), COUNTER) is None
    assert verdict(CHECK, COUNTER + "module tb; endmodule") is None


def paid(env: Verilog, text: str) -> Reward:
    """Return the reward of one answer."""
    (reward,) = play(env, text)
    return reward


def task_of(**dials: object) -> Task:
    return Verilog.tasks("test", **dials)[0]  # type: ignore[arg-type]


def test_what_a_turn_pays() -> None:
    """A right design stands at .5 for the team and .5 for its author; a bench that finds all wrong ones at .5."""
    env = Verilog(task_of(kind="counter", features=0))
    reward = paid(env, env.circuit.verilog())
    assert (reward.team, reward.local) == (0.5, {"designer": 0.5})
    reward = paid(env, bench_of(env.circuit))
    assert (reward.team, reward.local) == (0.0, {"verifier": 0.5})
    assert env.success
    assert env.observe() == {}


def test_a_wrong_design_is_found_and_mended() -> None:
    task = task_of(kind="arbiter", width=4, features=2)
    env = Verilog(task, turns=2)
    wrong = circuit_of(task.data["wrong"][0]).verilog()
    assert paid(env, wrong).team < 0.5
    assert wrong.strip() in seen(env, "verifier")
    play(env, bench_of(env.circuit))
    assert env.bench.passed is False
    assert "FAIL" in seen(env, "designer")
    assert paid(env, env.circuit.verilog()).team > 0
    assert paid(env, "no bench").local == {"verifier": -0.5}
    assert (env.success, env.over) == (True, True)


def test_a_bench_that_passes_all_earns_its_form_alone() -> None:
    env = Verilog(task_of(kind="path", features=0))
    play(env, env.circuit.verilog())
    assert paid(env, 'module tb; initial $display("PASS"); endmodule').local == {"verifier": 0.1}
    again = Verilog(task_of(kind="path", features=0))
    play(again, again.circuit.verilog())
    assert paid(again, 'module tb; initial $display("FAIL"); endmodule').local == {"verifier": 0.0}


def test_the_other_forms() -> None:
    task = task_of(kind="detector")
    single, solo = VerilogOneTurn(task), VerilogSingleAgent(task)
    play(single, "module top(input clk, input rst, input x, output hit); endmodule")
    assert "What came of it:\nit does not compile" in seen(single, "agent")
    assert paid(single, single.circuit.verilog()).team == 0.5
    assert single.over
    assert paid(solo, solo.circuit.verilog()).local == {"agent": 0.25}
    assert [message.role for message in solo.observe()["agent"].messages] == ["user", "assistant", "user"]
    assert paid(solo, bench_of(solo.circuit)).local == {"agent": 0.25}
    assert solo.success


def test_prompts_and_what_stays_hidden() -> None:
    task = task_of(kind="counter", features=2)
    env, small = Verilog(task), Verilog(task, prompts="compact")
    assert env.circuit.english() in seen(env, "designer")
    assert seen(small, "designer").startswith("design\nin ")
    assert seen(small, "designer").endswith(env.circuit.brief())
    play(small, "module top; endmodule")
    assert seen(small, "verifier").endswith("module top; endmodule")
    assert env.privileged().startswith("reference module top(")
    assert env.render() is not None


@pytest.mark.parametrize("share", [0.25, pytest.param(1.0, marks=pytest.mark.slow)])
def test_references_exploits_and_hostile_answers(share: float) -> None:
    check_references("verilog", math.ceil(share * 5))
    check_exploits("verilog", math.ceil(share * 2))
    check_hostile("verilog", math.ceil(share * 60))


def test_splits_and_contract() -> None:
    check_splits("verilog", "circuit", 15)
    check_contract(["verilog-single-agent"], [COUNTER, CHECK], turns=1, features=0)


def test_a_clear_error_without_the_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verilog.shutil, "which", lambda name: None)
    verilog.tools.cache_clear()
    with pytest.raises(ConfigError, match="apt-get install iverilog"):
        Verilog.tasks("train")
    verilog.tools.cache_clear()


def test_a_split_that_has_no_circuits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splits, "TRIES", 1)
    with pytest.raises(ConfigError, match=r"kind 'detector', width 2, features 0, with which none"):
        list(Verilog.tasks("test", kind="detector", width=2, features=0)[:20])
