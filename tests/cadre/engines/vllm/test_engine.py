"""The arguments, calls and start of an engine of vLLM."""

import asyncio
import builtins
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig

from cadre.engines.vllm import engine as made_of
from cadre.engines.vllm import sampler as vllm_sampler
from cadre.engines.vllm.engine import Call, Options, sampling_parameters
from cadre.errors import EngineError
from cadre.settings import LoraConfig, VllmConfig
from cadre.types import Sampling
from tests.cadre.engines import tiny


def asked(folder, options=None, **policies):
    chosen = {name: tiny.policy(folder, **settings) for name, settings in policies.items()}
    return made_of.plan_launch(str(folder), chosen, options or Options(), 512)


def test_adapters_have_room_for_stale_versions_and_one_slot_that_nobody_has(folders):
    policies = {"a": {"lora": LoraConfig(rank=4)}, "b": {"lora": LoraConfig(rank=20)}, "f": {"frozen": True}}
    created = asked(folders["llama"], Options(max_staleness=1), **policies)
    assert created.slots == 6
    assert {name: created.arguments[name] for name in ("enable_lora", "max_lora_rank", "max_loras")} == {
        "enable_lora": True,
        "max_lora_rank": 32,
        "max_loras": 7,
    }
    assert created.transfer == ""
    assert "weight_transfer_config" not in created.arguments


def test_a_whole_model_comes_over_the_back_end_of_ours(folders):
    created = asked(folders["llama"], p={})
    assert created.arguments["weight_transfer_config"] == {"backend": "cadre"}
    assert created.arguments["worker_extension_cls"] == made_of.WORKER_EXTENSION
    assert "enable_lora" not in created.arguments


def test_what_is_drawn_from_is_what_the_loss_is_about(folders):
    arguments = asked(folders["llama"], p={}).arguments
    assert arguments["logprobs_mode"] == "processed_logprobs"
    assert arguments["generation_config"] == "vllm"
    assert arguments["enable_prefix_caching"] is True


def test_on_a_cpu_prompts_are_read_whole(folders):
    """A generator of the CPU cannot be set back after a part of a prompt, which ends the engine."""
    arguments = asked(folders["llama"], Options(VllmConfig(sequences=64)), p={}).arguments
    assert arguments["enable_chunked_prefill"] is False
    assert arguments["max_num_batched_tokens"] >= arguments["max_model_len"] == 512
    assert (arguments["block_size"], arguments["enforce_eager"]) == (32, True)
    assert arguments["kv_cache_memory_bytes"] == made_of.CPU_CACHE_BYTES


@pytest.fixture
def card(monkeypatch):
    """A GPU of 80 GB."""
    monkeypatch.setattr(made_of, "pick_device", lambda name: torch.device("cuda"))
    properties = SimpleNamespace(total_memory=80 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: properties)
    return properties


@pytest.mark.usefixtures("card")
def test_on_a_card(folders):
    options = Options(VllmConfig(gpus=2, colocated=True), memory=5 << 30)
    created = asked(folders["llama"], options, p={"dtype": "bfloat16"})
    assert created.transfer == "ipc"
    assert created.environment["VLLM_ALLOW_INSECURE_SERIALIZATION"] == "1"
    expected = {"tensor_parallel_size": 2, "enable_sleep_mode": True, "dtype": "bfloat16", "enforce_eager": False}
    assert expected.items() <= created.arguments.items()
    assert created.arguments["kv_cache_memory_bytes"] == 5 << 30
    assert "enable_chunked_prefill" not in created.arguments
    never = asked(folders["llama"], Options(VllmConfig(colocated=True, sleep="none")), p={})
    assert never.arguments["enable_sleep_mode"] is False
    assert never.transfer == "cadre-ipc"


@pytest.mark.usefixtures("card")
@pytest.mark.parametrize(("chosen", "deterministic"), [(None, False), (False, False), (True, True)])
def test_on_a_card_requests_stream_unless_runs_are_to_be_equal(folders, chosen, deterministic):
    created = asked(folders["llama"], Options(deterministic=chosen), p={})
    assert created.deterministic is deterministic
    assert created.arguments["async_scheduling"] is not deterministic
    assert created.arguments.get("scheduler_cls") == (None if deterministic else made_of.SCHEDULER)


def test_every_number_of_sequences_has_a_graph_that_is_not_much_larger():
    for sequences in (1, 3, 64, 100, 256, 1_000):
        sizes = made_of.capture_sizes(sequences)
        assert sizes == sorted(set(sizes))
        assert sequences in sizes
        assert all(later - earlier <= 32 for earlier, later in pairwise(sizes) if later <= sequences)
        assert sizes[-1] <= max(sequences, 512)
    assert made_of.capture_sizes(256)[-5:] == [256, 320, 384, 448, 512]
    assert len(made_of.capture_sizes(256)) == 21


@pytest.mark.usefixtures("card")
@pytest.mark.parametrize(
    ("change", "dense"), [({}, True), ({"num_local_experts": 8}, False), ({"kv_lora_rank": 512}, False)]
)
def test_kernels_are_compiled_as_they_are_needed_but_for_experts(folders, monkeypatch, change, dense):
    config = AutoConfig.from_pretrained(folders["llama"])
    for name, value in change.items():
        setattr(config, name, value)
    monkeypatch.setattr(made_of.AutoConfig, "from_pretrained", lambda source, trust_remote_code: config)
    arguments = asked(folders["llama"], p={}).arguments
    assert arguments.get("kernel_config") == ({"enable_jit_warmup": False} if dense else None)


def test_on_a_cpu_nothing_streams_by_itself(folders):
    created = asked(folders["llama"], p={})
    assert (created.deterministic, created.arguments["async_scheduling"]) == (True, False)
    assert "scheduler_cls" not in asked(folders["llama"], Options(deterministic=False), p={}).arguments


def test_the_cache_holds_the_work_if_a_part_of_the_card_does(folders, card):
    """Whole sequences, and two blocks of 16 tokens for each."""
    config = AutoConfig.from_pretrained(folders["llama"])
    width = config.hidden_size // config.num_attention_heads
    token = 2 * config.num_hidden_layers * config.num_key_value_heads * width * 4
    settings = Options(VllmConfig(sequences=10))
    assert asked(folders["llama"], settings, p={}).arguments["kv_cache_memory_bytes"] == 10 * (512 + 2 * 16) * token
    card.total_memory = 10 * 512 * token
    assert "kv_cache_memory_bytes" not in asked(folders["llama"], settings, p={}).arguments


@pytest.mark.parametrize(
    ("settings", "message"), [({"colocated": True}, "colocated: got true"), ({"gpus": 2}, "gpus: got 2")]
)
def test_what_only_cards_share_is_refused_on_a_cpu(folders, settings, message):
    with pytest.raises(EngineError, match=message):
        asked(folders["llama"], Options(VllmConfig(**settings)), p={})


def test_the_context_is_the_models_or_a_shorter_one(folders):
    policies = {"p": tiny.policy(folders["llama"])}
    for chosen, context in ((None, 512), (100, 100), (9_000, 512)):
        assert (
            made_of.load_text(str(folders["llama"]), policies, Options(VllmConfig(context=chosen))).context == context
        )


def test_turns_end_where_the_torch_engine_ends_them(folders, engine):
    text = made_of.load_text(str(folders["llama"]), {"p": tiny.policy(folders["llama"])}, Options())
    assert text.stops == engine().loaded.stops


def call(**sampling):
    return Call("planner-0", (5, 6), 4, 12, Sampling(**sampling), 2**62 + 3, (2, 9))


def test_siblings_are_one_request_with_our_key_as_its_seed():
    requests = sampling_parameters(call(temperature=0.7))
    assert requests == {
        "n": 4,
        "temperature": 0.7,
        "top_p": 1.0,
        "top_k": 0,
        "max_tokens": 12,
        "seed": 2**62 + 3,
        "stop": [],
        "stop_token_ids": [2, 9],
        "logprobs": 0,
        "flat_logprobs": True,
        "detokenize": False,
    }


def test_text_is_made_only_where_strings_end_it():
    requests = sampling_parameters(call(stop=("END",)))
    assert (requests["stop"], requests["detokenize"]) == (["END"], True)


def test_what_is_greedy_has_no_generator():
    assert sampling_parameters(call(temperature=0.0))["seed"] is None


def test_vllm_that_cannot_be_imported_is_told_of(folders, monkeypatch):
    original = builtins.__import__

    def without(name, *arguments, **settings):
        if name.startswith("cadre.engines.vllm.async_engine"):
            raise ImportError("No module named 'vllm'")
        return original(name, *arguments, **settings)

    plan_launch = made_of.plan_launch(str(folders["llama"]), {"p": tiny.policy(folders["llama"])}, Options(), 512)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(EngineError, match=r"cannot be imported \(No module named 'vllm'\).*pip install"):
        asyncio.run(vllm_sampler.start_engine(plan_launch))


def test_who_waits_for_an_engine_that_dies_is_told(monkeypatch):
    monkeypatch.setattr(made_of, "ALIVE_SECONDS", 0.01)
    death, looks = EngineError("died"), iter([False, True])

    async def wait_for_ever():
        await asyncio.get_running_loop().create_future()

    with pytest.raises(EngineError, match="died"):
        asyncio.run(made_of.wait_while_alive(wait_for_ever(), lambda: next(looks), death))


def test_an_answer_that_takes_longer_than_a_look_is_waited_for(monkeypatch):
    monkeypatch.setattr(made_of, "ALIVE_SECONDS", 0.01)

    async def answer():
        await asyncio.sleep(0.05)
        return 7

    async def fail():
        raise ValueError("refused")

    assert asyncio.run(made_of.wait_while_alive(answer(), lambda: False, EngineError("died"))) == 7
    with pytest.raises(ValueError, match="refused"):
        asyncio.run(made_of.wait_while_alive(fail(), lambda: True, EngineError("died")))
