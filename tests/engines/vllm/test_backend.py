"""What vLLM is asked for."""

from cadre.engines.vllm.engine import Call, sampling_parameters
from cadre.types import Sampling


def call(**sampling):
    return Call("planner-0", (5, 6), 4, 12, Sampling(**sampling), 2**62 + 3, (2, 9))


def test_siblings_are_one_request_with_our_key_as_its_seed():
    asked = sampling_parameters(call(temperature=0.7))
    assert asked == {
        "n": 4,
        "temperature": 0.7,
        "top_p": 1.0,
        "top_k": 0,
        "max_tokens": 12,
        "seed": 2**62 + 3,
        "stop": [],
        "stop_token_ids": [2, 9],
        "logprobs": 0,
        "detokenize": False,
    }


def test_text_is_made_only_where_strings_end_it():
    asked = sampling_parameters(call(stop=("END",)))
    assert (asked["stop"], asked["detokenize"]) == (["END"], True)


def test_what_is_greedy_has_no_generator():
    assert sampling_parameters(call(temperature=0.0))["seed"] is None
