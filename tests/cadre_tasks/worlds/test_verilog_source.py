"""Verilog that may run; rewards of designs are tested in tests/cadre_tasks/worlds/test_verilog.py."""

import pytest

from cadre_tasks.worlds.verilog_source import design_refusal

# A block that is called as a module is, with a delay behind its name.
LABELLED = """
module m(input a); endmodule
module top(input a, output reg b); always @(*) begin : m {} b = a; end endmodule
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("module top(input a, output b); assign #(1) b = a; endmodule", False),
        ("module top(input a, output b); wire #(2, 3) c = a; assign b = c; endmodule", False),
        ("module top(input a, output reg b); always @(*) b = #(1) a; endmodule", False),
        ("module top(input a, output reg b); always @(*) begin #(1) b = a; end endmodule", False),
        ("module top(input a, output b); and #(1) g(b, a, a); endmodule", False),
        ("module top(input a, output b); assign #1 b = a; endmodule", False),
        (LABELLED.format("#3"), False),
        (LABELLED.format("#(3)"), False),
        ("module top #(parameter W = 1)(input a, output b); assign b = a; endmodule", True),
        ("module m #(parameter W = 1)(input a); endmodule module top(input a); m #(.W(2)) one(a); endmodule", True),
    ],
)
def test_a_design_has_parameters_and_no_delays(text: str, expected: bool) -> None:
    assert (design_refusal(text) == "") is expected
    assert expected or "delays" in design_refusal(text)
