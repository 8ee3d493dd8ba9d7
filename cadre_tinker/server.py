"""The HTTP server: sessions, requests in their order, results that are asked for later.

A client posts a request, gets its id at once, and asks for the result until it is there. Requests of one training run
are computed in the order of their numbers (`seq_id`), whenever they arrive; those of several runs alternate. Samples
that are asked for while others are drawn form the next batch. Needs starlette and uvicorn (the extra `programs`).
"""

from __future__ import annotations

import asyncio
import hmac
import math
import re
import secrets
import sys
import time
import traceback
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cadre import random_keys
from cadre.config.resolve import choose_dtypes
from cadre.engines.torch.model import locate
from cadre.errors import CadreError, ConfigError, EngineError, first_line
from cadre.file_limits import MIB, parse_json, size_of
from cadre.files import validate_record, validation_message
from cadre.rollout.batching import gather
from cadre.settings import PolicyConfig
from cadre.settings.yaml_file import parse_settings
from cadre.sockets import HOST, connection_limit, limited_protocol, listen
from cadre.types import Sampling
from cadre_tinker import requests, wire
from cadre_tinker.model import BASE, TinkerModel, TrainingRun

MAX_BODY_BYTES = 64 * MIB
# Requests that are held with their results, and bytes of those that wait: beyond them clients are told to ask later.
MAX_REQUESTS, MAX_WAITING_BYTES = 8_192, 1024 * MIB
# Results that were fetched are kept for a client whose connection broke while it read one.
KEPT_RESULTS = 64
MAX_RUNS, MAX_SAMPLERS = 16, 32
# Seconds: a session that is not heard of for so long has ended, and one answer may wait for a result.
SESSION_S, POLL_S = 600.0, 20.0
GATHER_S = 0.01  # so that requests that are sent at once are drawn in one batch
CHECKPOINT = re.compile(r"tinker://([0-9a-f]{16}:train:[0-9]{1,9})/((?:sampler_)?weights)/([A-Za-z0-9][A-Za-z0-9_.-]*)")
SETTINGS = {"dtype", "device", "quantization", "trust_remote_code"}
REACH = "Cadre trains adapters of attention and MLP layers, and none of the vocabulary projection (train_unembed)."

Work = Callable[[], Awaitable[Any]]


class RequestError(CadreError):
    """A request that cannot be answered, with its status in HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class Pending:
    """A request of so many bytes and its result: an object, the bytes of a message, or {"error": ...}."""

    id: str
    size: int
    work: Work
    result: asyncio.Future[Any]


@dataclass
class Queue:
    """The requests of one training run by number, and the number that is computed next. `run` is None at first."""

    run: TrainingRun | None = None
    next: int = 0
    waiting: dict[int, Pending] = field(default_factory=dict)
    is_working: bool = False


@dataclass
class Sampler:
    """A sampling session: its adapter, and how many of its requests are not answered yet."""

    policy: str
    users: int = 0


class Service:
    """Answers the requests of all clients. Belongs to the server's loop."""

    def __init__(self, model: TinkerModel) -> None:
        self.model, self._engine = model, model.engine
        self._sessions: dict[str, float] = {}  # when each was heard of last
        self._queues: dict[str, Queue] = {}
        self._samplers: OrderedDict[str, Sampler] = OrderedDict()  # by last use
        self._requests: dict[str, Pending] = {}
        self._waiting_bytes = self._sampler_count = 0
        self._fetched: deque[str] = deque()
        self._samples: list[Pending] = []
        self._tasks: set[asyncio.Task[None]] = set()
        # How a request to a training run is read, and what answers it.
        read: Callable[..., Any] = lambda record: partial(validate_record, model=record)  # noqa: E731
        self.of_run: dict[str, tuple[Callable[[Any], Any], Callable[[TrainingRun, Any], Awaitable[Any]]]] = {
            "forward_backward": (wire.read_training_request, self.forward_backward),
            "optim_step": (read(requests.OptimStep), self.optim_step),
            "save_weights": (read(requests.SaveWeights), self.save_weights),
            "save_weights_for_sampler": (read(requests.SaveWeights), self.save_weights_for_sampler),
        }

    # ---- Sessions

    async def create_session(self, request: requests.Session) -> Any:
        for session in [name for name, heard in self._sessions.items() if heard < time.monotonic() - SESSION_S]:
            await self.end_session(session)
        session = secrets.token_hex(8)
        self._sessions[session] = time.monotonic()
        return {"session_id": session, "warning_message": REACH}

    async def session_heartbeat(self, request: requests.Session) -> Any:
        self._touch(request.session_id)
        return {}

    def _touch(self, name: str) -> str:
        """Note that a session is heard of, by its name or that of its run or sampler, and return its name."""
        session = name.partition(":")[0]
        if session not in self._sessions:
            raise RequestError(410, f"{session[:80]!r} is no session of this server, or has ended. Make a new client.")
        self._sessions[session] = time.monotonic()
        return session

    async def end_session(self, session: str) -> None:
        """Forget a session with its runs, samplers and results."""
        self._sessions.pop(session, None)
        self._requests = {key: held for key, held in self._requests.items() if not key.startswith(f"{session}:")}
        owned = [self._samplers.pop(name) for name in list(self._samplers) if name.startswith(f"{session}:")]
        queues = [self._queues.pop(name) for name in list(self._queues) if name.startswith(f"{session}:")]
        self._waiting_bytes -= sum(pending.size for queue in queues for pending in queue.waiting.values())
        runs = [queue.run for queue in queues if queue.run is not None]
        for queue in queues:
            queue.waiting.clear()
            queue.run = None
        for sampler in owned:
            await self._remove_unused(sampler)
        for run in runs:
            await self._engine.run(self.model.remove_adapter, run.id)

    # ---- Requests and their results

    def _accept(self, name: str, size: int, work: Work) -> Pending:
        """Return a new request; the oldest result makes room. Raises RequestError if all wait."""
        if len(self._requests) >= MAX_REQUESTS:
            self._requests.pop(next((key for key, held in self._requests.items() if held.result.done()), ""), None)
        if len(self._requests) >= MAX_REQUESTS or self._waiting_bytes + size > MAX_WAITING_BYTES:
            raise RequestError(429, "As many requests wait as this server holds. Ask again when some are answered.")
        self._waiting_bytes += size
        self._requests[name] = Pending(name, size, work, asyncio.get_running_loop().create_future())
        return self._requests[name]

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the loop itself does not hold it
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, pending: Pending) -> None:
        """Compute a result, or say why there is none: no request may be left waiting."""
        try:
            result = await pending.work()
        except (CadreError, OSError, ValueError) as error:
            result = {"error": str(error), "category": "user"}
        except Exception as error:  # noqa: BLE001 - the requests after it are to be answered all the same
            sys.stderr.write(f"A request of Tinker's client failed:\n{traceback.format_exc()}\n")
            result = {"error": f"{type(error).__name__}: {first_line(error)}", "category": "server"}
        self._waiting_bytes -= pending.size
        pending.result.set_result(result)

    async def retrieve_future(self, request: requests.Promise) -> Any:
        if (pending := self._requests.get(request.request_id)) is None:
            raise RequestError(410, f"The result of {request.request_id[:80]!r} is not kept, or never was. Ask anew.")
        await asyncio.wait([pending.result], timeout=POLL_S)
        if not pending.result.done():
            return JSONResponse({"type": "try_again", "request_id": pending.id, "queue_state": "active"}, 408)
        if pending.id not in self._fetched:
            self._fetched.append(pending.id)
        if len(self._fetched) > KEPT_RESULTS:
            self._requests.pop(self._fetched.popleft(), None)
        return pending.result.result()

    def _find_queue(self, model_id: str) -> Queue:
        if model_id not in self._queues:
            raise RequestError(404, f"model_id: got {model_id[:80]!r}; expected a training run here. Create one.")
        self._touch(model_id)
        return self._queues[model_id]

    def _enqueue(self, model_id: str, number: int | None, work: Work, size: int = 0) -> Any:
        """Return the id of a request that is computed after those of lower numbers. One that is sent again, as clients
        do when a connection breaks, is the same request."""
        queue = self._find_queue(model_id)
        number = max([queue.next - 1, *queue.waiting]) + 1 if number is None else number
        name = f"{model_id}:{number}"
        if name not in self._requests:
            if number < queue.next:
                raise RequestError(410, f"seq_id: got {number}, which was answered. Make a new client.")
            queue.waiting[number] = self._accept(name, size, work)
            if not queue.is_working:
                self._start(self._answer_in_order(queue))
        return {"request_id": name, "model_id": model_id}

    async def _answer_in_order(self, queue: Queue) -> None:
        queue.is_working = True
        while pending := queue.waiting.pop(queue.next, None):
            queue.next += 1
            await self._answer(pending)
        queue.is_working = False

    # ---- Training

    def _add_run(self, session: str, number: int, make: Callable[[str], TrainingRun], answer: Any) -> Any:
        """Return the id of request 0 of a new run, which creates it."""
        name = f"{self._touch(session)}:train:{number}"
        if name not in self._queues and len(self._queues) >= MAX_RUNS:
            raise RequestError(400, f"There are {MAX_RUNS} training runs, as many as this server holds. End a client.")
        queue = self._queues.setdefault(name, Queue())

        async def create() -> Any:
            run = await self._engine.run(make, name)
            if name not in self._queues:  # its session has ended meanwhile
                await self._engine.run(self.model.remove_adapter, name)
                raise EngineError("This training run has ended. Create another.")
            queue.run = run
            return {"model_id": name, **answer}

        return self._enqueue(name, 0, create)

    async def create_model(self, request: requests.CreateModel) -> Any:
        self._check_base(request.base_model)
        config = request.lora_config
        lora = self.model.select_lora(config.rank, config.train_attn, config.train_mlp)
        seed = secrets.randbits(63) if config.seed is None else config.seed
        make = partial(self.model.create_run, lora=lora, seed=seed)
        return self._add_run(request.session_id, request.model_seq_id, make, {"type": "create_model"})

    def _check_base(self, name: str | None) -> None:
        if name not in self.model.names:
            raise RequestError(
                400,
                f"base_model: got {str(name)[:80]!r}; expected {self.model.names[0]!r}, the model of this server. Name "
                "that one, or start the server with --name to give it this name too.",
            )

    async def load_new(self, request: requests.LoadNew) -> Any:
        if request.base_model is not None:
            self._check_base(request.base_model)
        make = partial(self.model.load_run, folder=self._folder(request.path), with_moments=request.optimizer)
        answer = {"type": "load_weights", "path": request.path}
        return self._add_run(request.session_id, request.model_seq_id, make, answer)

    async def get_info(self, request: requests.OfRun) -> Any:
        run, source = self._find_queue(request.model_id).run, self.model.loaded.source
        tokenizer = str(Path(source).resolve()) if Path(source).is_dir() else source
        data = {"model_name": self.model.names[0], "tokenizer_id": tokenizer}
        return {"model_id": request.model_id, "model_data": data, "is_lora": True, "lora_rank": run and run.lora.rank}

    async def compute(self, name: str, target: requests.OfRun, content: Any, size: int) -> Any:
        """Return the id of a request to a training run. What is wrong with it is its result: a number that was never
        computed would hold up all that follow."""
        queue = self._find_queue(target.model_id)

        async def work() -> Any:
            if queue.run is None:
                raise EngineError("This training run has ended, or was not created. Create another.")
            if name not in self.of_run:
                raise EngineError(f"{name[:80]}: is not supported; expected one of {', '.join(self.of_run)}.")
            read, answer = self.of_run[name]
            return await answer(queue.run, read(content))

        return self._enqueue(target.model_id, target.seq_id, work, size)

    async def forward_backward(self, run: TrainingRun, request: wire.TrainingRequest) -> bytes:
        return wire.write_training_response(*await self._engine.run(self.model.forward_backward, run, request))

    async def optim_step(self, run: TrainingRun, request: requests.OptimStep) -> Any:
        return {"metrics": await self._engine.run(self.model.optim_step, run, request.adam_params)}

    async def save_weights(self, run: TrainingRun, request: requests.SaveWeights, kind: str = "weights") -> Any:
        path = f"tinker://{run.id}/{kind}/{request.path or 'checkpoint'}"
        folder = self._folder(path, is_new=True)
        await self._engine.run(self.model.save, run, folder, kind == "weights", request.overwrite)
        return {"path": path}

    async def save_weights_for_sampler(self, run: TrainingRun, request: requests.SaveWeights) -> Any:
        if request.path is not None:
            return await self.save_weights(run, request, "sampler_weights")
        name = self._new_sampler_name(run.id)
        await self._engine.run(self.model.take_snapshot, run, name)
        return {"sampling_session_id": await self._add_sampler(name, Sampler(name))}

    def _folder(self, path: str, is_new: bool = False) -> Path:
        """Return the folder of a checkpoint's address, which has no other form: a client may write anything there."""
        match = CHECKPOINT.fullmatch(path) if len(path) < 200 else None
        folder = self.model.state.joinpath(*match.groups()) if match else Path()
        if match is None or not (is_new or folder.is_dir()):
            expected = "a checkpoint of this server, tinker://RUN/weights/NAME or tinker://RUN/sampler_weights/NAME"
            form = "with letters, digits, '_', '.' and '-' in its name"
            raise RequestError(400, f"path: got {path[:200]!r}; expected {expected}, {form}. Fix it.")
        return folder

    async def weights_info(self, request: requests.Address) -> Any:
        lora = self.model.read_lora(self._folder(request.tinker_path))
        return {"base_model": self.model.names[0], "is_lora": True, "lora_rank": lora.rank, "train_unembed": False}

    def get_server_capabilities(self) -> Any:
        capabilities = {"max_context_length": self.model.loaded.context, "trainable": True, "sampleable": True}
        return {"supported_models": [{"model_name": name, **capabilities} for name in self.model.names]}

    # ---- Sampling

    def _new_sampler_name(self, owner: str) -> str:
        self._sampler_count += 1
        return f"{self._touch(owner)}:sample:{self._sampler_count}"

    async def _add_sampler(self, name: str, sampler: Sampler) -> str:
        """Return the name. Of more samplers than are held the one that was used longest ago is dropped."""
        self._samplers[name] = sampler
        if len(self._samplers) > MAX_SAMPLERS:
            await self._remove_unused(self._samplers.popitem(last=False)[1])
        return name

    async def _remove_unused(self, sampler: Sampler) -> None:
        if sampler.policy != BASE and not sampler.users:
            await self._engine.run(self.model.remove_adapter, sampler.policy)

    def _find_sampler(self, name: str) -> Sampler:
        if name not in self._samplers:
            kept = f"the {MAX_SAMPLERS} that were used last are kept, and saved weights can be opened again"
            raise RequestError(404, f"sampling session: got {name[:80]!r}; {kept}. Create another sampling client.")
        self._samplers.move_to_end(name)
        return self._samplers[name]

    async def create_sampling_session(self, request: requests.CreateSampler) -> Any:
        name = self._new_sampler_name(request.session_id)
        if request.model_path is None:
            self._check_base(request.base_model)
            return {"sampling_session_id": await self._add_sampler(name, Sampler(BASE))}
        await self._engine.run(self.model.open_sampler, name, self._folder(request.model_path))
        return {"sampling_session_id": await self._add_sampler(name, Sampler(name))}

    def get_sampler(self, name: str) -> Any:
        self._find_sampler(name)
        return {"sampler_id": name, "base_model": self.model.names[0]}

    async def asample(self, request: requests.SampleRequest) -> Any:
        sampler_name = request.sampling_session_id
        sampler = self._find_sampler(sampler_name)
        self._touch(sampler_name)
        prompt = [token for chunk in request.prompt["chunks"] for token in chunk.tokens]
        self.model.check_prompt(prompt)
        name = f"{sampler_name}:{request.seq_id}"

        async def work() -> bytes:
            try:
                return await self._sample(request, sampler.policy, prompt)
            finally:
                sampler.users -= 1
                if sampler_name not in self._samplers:
                    await self._remove_unused(sampler)

        if name not in self._requests:
            self._samples.append(self._accept(name, 8 * len(prompt), work))
            sampler.users += 1
            if len(self._samples) == 1:
                self._start(self._draw_batch())
        ids = [f"{name}:{number}" for number in range(request.num_samples)]
        return {"request_id": name, "sample_sequence_ids": ids}

    async def _draw_batch(self) -> None:
        """Draw the samples that are asked for until the thread is free."""
        await asyncio.sleep(GATHER_S)
        await self._engine.run(lambda: None)
        batch, self._samples = self._samples, []
        await gather(*map(self._answer, batch))

    async def _sample(self, request: requests.SampleRequest, policy: str, prompt: Sequence[int]) -> bytes:
        scored: list[float] = []
        if request.prompt_logprobs:
            scored = await self._engine.run(self.model.prompt_logprobs, policy, prompt)
            unscored = max(1, len(prompt) - (request.prompt_logprobs_last_n or len(prompt)))
            scored[:unscored] = [math.nan] * unscored
        params, context = request.sampling_params, self.model.loaded.context
        stop = [params.stop] if isinstance(params.stop, str) else params.stop
        texts = tuple(text for text in stop or () if isinstance(text, str) and text)
        ids = tuple(id_ for id_ in stop or () if isinstance(id_, int))
        top_k, limit = max(0, params.top_k), params.max_tokens or context
        sampling = Sampling(params.temperature, params.top_p, top_k, limit, texts)
        key = secrets.randbits(63) if params.seed is None else random_keys.key("tinker", params.seed)
        completions = await self.model.sample(policy, prompt, request.num_samples, sampling, ids, key)
        samples = ((sample.token_ids, sample.logprobs, sample.finish) for sample in completions)
        return wire.write_samples(samples, scored)


# ---- HTTP


def make_application(service: Service, key: str) -> Starlette:
    """Return the ASGI application. Clients have to send the key."""
    bodies: dict[str, tuple[type[requests.Body], Callable[[Any], Awaitable[Any]]]] = {
        "create_session": (requests.Session, service.create_session),
        "session_heartbeat": (requests.Session, service.session_heartbeat),
        "create_model": (requests.CreateModel, service.create_model),
        "load_weights": (requests.LoadNew, service.load_new),
        "get_info": (requests.OfRun, service.get_info),
        "weights_info": (requests.Address, service.weights_info),
        "create_sampling_session": (requests.CreateSampler, service.create_sampling_session),
        "asample": (requests.SampleRequest, service.asample),
        "retrieve_future": (requests.Promise, service.retrieve_future),
    }
    constants: dict[str, Any] = {
        "client/config": {"pjwt_auth_enabled": False, "sample_enable_stuck_detection": False},
        "client/dynamic_config": {},
        "telemetry": {"status": "accepted"},
        "healthz": {"status": "ok"},
    }

    async def answer(method: str, name: str, body: bytes) -> Any:
        first, _, rest = name.partition("/")
        if name in constants:
            return constants[name]
        if name == "get_server_capabilities":
            return service.get_server_capabilities()
        if first == "samplers":
            return service.get_sampler(rest)
        if first == "sessions" and rest.endswith("/finish"):
            return await service.end_session(rest.removesuffix("/finish"))
        if name == "forward_backward":
            message = wire.Message(memoryview(body))
            target = requests.OfRun(model_id=message.text(1), seq_id=message.integer(2))
            return await service.compute(name, target, message, len(body))
        content = parse_json(body) if method == "POST" else None
        if isinstance(content, dict) and {"model_id", "seq_id"} <= content.keys():
            target = requests.OfRun(model_id=str(content["model_id"]), seq_id=content["seq_id"])
            return await service.compute(name, target, content, len(body))
        if name not in bodies or method != "POST":
            supported = ", ".join(sorted({*bodies, *service.of_run}))
            raise RequestError(404, f"{name[:80]}: is not supported by Cadre; expected one of {supported}.")
        record, answer_to = bodies[name]
        return await answer_to(validate_record(content, record))

    async def handle(request: Request) -> Response:
        if not hmac.compare_digest(request.headers.get("x-api-key", "").encode(), key.encode()):
            raise RequestError(401, "X-API-Key: expected the key that cadre serve printed. Set TINKER_API_KEY to it.")
        answered = await answer(request.method, request.path_params["name"], await read_body(request))
        if isinstance(answered, bytes):
            return Response(answered, media_type="application/x-protobuf")
        return answered if isinstance(answered, Response) else JSONResponse(answered)

    async def answer_error(request: Request, error: Exception) -> Response:
        status = error.status if isinstance(error, RequestError) else 400
        return JSONResponse({"error": str(error), "detail": str(error)}, status)

    routes = [Route("/api/v1/{name:path}", handle, methods=["GET", "POST"])]
    return Starlette(routes=routes, exception_handlers={CadreError: answer_error, ValueError: answer_error})


async def read_body(request: Request) -> bytes:
    """Return the body. Raises RequestError if it is too long."""
    parts, length = [], 0
    async for part in request.stream():
        length += len(part)
        if length > MAX_BODY_BYTES:
            raise RequestError(413, f"got a body above {size_of(MAX_BODY_BYTES)}; expected less. Send less at once.")
        parts.append(part)
    return b"".join(parts)


def serve(
    model: str, settings: Sequence[str], port: int, key: str, names: Sequence[str], state: Path, say: Callable[..., Any]
) -> None:
    """Serve a model until interrupted; `say` receives lines for its user. Raises ConfigError for a setting, and
    EngineError if the model or the port cannot be used."""
    raw = parse_settings(settings)
    if unknown := sorted(raw.keys() - SETTINGS):
        raise ConfigError(f"{unknown[0]}: got it beside --tinker; expected {', '.join(sorted(SETTINGS))}. Remove it.")
    if key and not key.startswith("tml-"):
        raise ConfigError("--key: got another beginning; expected tml-, without which Tinker's client takes no key.")
    try:
        policy = PolicyConfig(model=model, frozen=True, **raw)
    except ValidationError as error:
        raise ConfigError(f"{validation_message(error)}. Fix the value.") from None
    policy = choose_dtypes({BASE: policy}, {BASE: locate(model)})[BASE]
    try:
        listening = listen(port)
    except OSError as error:
        raise EngineError(f"--port: got {port}, which cannot be had ({error.strerror}). Name another, or 0.") from None
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = key or f"tml-{secrets.token_urlsafe(18)}"
    with listening:
        service = Service(TinkerModel(policy, names or [model], state))
        url = f"http://{HOST}:{listening.getsockname()[1]}"
        say([f"Model: {service.model.names[0]}, {policy.dtype}. Checkpoints in {state}. Ctrl-C ends it."])
        say([f"export TINKER_BASE_URL={url}", f"export TINKER_API_KEY={key}"])
        sys.stdout.flush()  # which is a file or a pipe, where the command runs beside the client
        limits: dict[str, Any] = {"http": limited_protocol(connection_limit()), "timeout_graceful_shutdown": 1}
        options: dict[str, Any] = {"ws": "none", "log_level": "warning", "lifespan": "off", "timeout_keep_alive": 75}
        config = uvicorn.Config(make_application(service, key), access_log=False, **limits, **options)
        try:
            uvicorn.Server(config).run(sockets=[listening])
        finally:
            service.model.engine.close()
