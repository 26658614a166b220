"""CUDA graphs: repeated work on a GPU is launched as a whole."""

from __future__ import annotations

import functools
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_Key = tuple[Any, ...]  # the model, and shape, dtype and strides of each input

_GRAPHS_ON = ("cuda",)
WARM_UP = 3  # ordinary calls before a capture: CUDA's libraries allocate in them, which a capture does not allow


class Graphed:
    """A function of a model and tensors that a GPU can repeat from a CUDA graph, with all operations launched at once.

    For a small network, launching an operation takes the host longer than computing it takes the GPU. After some
    ordinary calls with inputs of one shape, dtype and strides, the next call captures the operations in a graph, and
    later calls repeat it on new inputs. A graph is used only if repeating it once gives the result of an ordinary call
    bit for bit. If a capture fails or gives another result, there is a warning, and all later calls are ordinary ones.
    So are those on a CPU, and those for a model with forward hooks (hooks of its layers do not count).

    Args:
        function: function of a model and tensors that returns a tensor or None. It changes the model's parameters and
            buffers in place, copies no value back to the host, and its operations depend on the shapes, dtypes and
            strides of the tensors only.
        graphs: whether to use graphs.
    """

    def __init__(self, function: Callable[..., Tensor | None], graphs: bool = False) -> None:
        self._function = function
        self._calls: Counter[_Key] = Counter()
        self._graphs: dict[_Key, tuple[list[Tensor], Callable[[], Tensor | None]]] = {}
        self._stream: torch.cuda.Stream | None = None
        # The graphs share their memory, because only one is repeated at a time, and its output is copied.
        self._pool: Any = None
        self._plain = not graphs

    @property
    def in_use(self) -> bool:
        """Whether some calls are repeated from a graph."""
        return bool(self._graphs) and not self._plain

    def __call__(self, model: nn.Module, *inputs: Tensor) -> Any:
        hooks = model._forward_pre_hooks or model._forward_hooks  # A graph would not call these Python functions.
        if self._plain or hooks or inputs[0].device.type not in _GRAPHS_ON:
            return self._function(model, *inputs)
        key = model, *((x.shape, x.dtype, x.stride()) for x in inputs)
        if key not in self._graphs:
            # All ordinary calls and captures share one stream, because torch accumulates a gradient on the stream that
            # did so first.
            stream = self._stream = self._stream or _stream_of(inputs[0].device)
            self._calls[key] += 1
            if self._calls[key] <= WARM_UP or not self._capture(key, inputs, stream):
                with _on(stream):
                    return self._function(model, *inputs)
        static, replay = self._graphs[key]
        for to, x in zip(static, inputs, strict=True):
            to.copy_(x)
        return replay()

    def _capture(self, key: _Key, inputs: Sequence[Tensor], stream: torch.cuda.Stream) -> bool:
        """Capture a call, without changing the state; returns whether its graph gives what an ordinary call does."""
        model, static = key[0], [x.clone() for x in inputs]
        state = [*model.parameters(), *model.buffers()]
        before, draws = _copy(state), torch.cuda.get_rng_state(inputs[0].device)

        def results(call: Callable[[], Tensor | None]) -> list[Tensor]:
            output = call()
            copies = _copy(state if output is None else [*state, output])
            restore(state, before)
            # Not by `_renew`, because the graphs of other inputs draw from the same generator object.
            torch.cuda.set_rng_state(draws, inputs[0].device)
            return copies

        def call() -> Tensor | None:
            return self._function(model, *static)

        try:
            with _on(stream):
                expected = results(call)
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            replay = _captured(call, stream, self._pool)
            # NaN equals NaN here, so the steps of a diverging network can be repeated too.
            pairs = zip(results(replay), expected, strict=True)
            if not all([torch.allclose(x, y, rtol=0, atol=0, equal_nan=True) for x, y in pairs]):
                raise RuntimeError("the repeated call gives another result than an ordinary one")
        except RuntimeError as error:
            restore(state, before)
            _renew(inputs[0].device, draws)
            reason = str(error).partition("\n")[0]
            warnings.warn(f"no CUDA graph can be used, so the run is slower: {reason}", stacklevel=4)
            self._plain = True
            self._graphs.clear()
            return False
        self._graphs[key] = static, replay
        return True


@torch.no_grad()
def _copy(state: Sequence[Tensor]) -> list[Tensor]:
    return [x.clone() for x in state]


@torch.no_grad()
def restore(state: Iterable[Tensor], values: Iterable[Tensor]) -> None:
    """Copy values into tensors, in place."""
    for x, value in zip(state, values, strict=True):
        x.copy_(value)


def _renew(device: torch.device, draws: Tensor) -> None:
    """Rewind the global generator and replace its state object."""
    # The old state object still waits for the end of the failed capture, and every draw from it raises.
    fresh = torch.Generator(device)
    fresh.set_state(draws)
    torch.cuda.default_generators[fresh.device.index].graphsafe_set_state(fresh)


@functools.cache  # One stream for all runs, because CUDA's libraries keep a workspace for every stream they have used.
def _stream_of(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


@contextmanager
def _on(stream: torch.cuda.Stream) -> Iterator[None]:
    """Queue the work of the block on `stream`, after the earlier and before the later work of the current stream."""
    current = torch.cuda.current_stream(stream.device)
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        yield
    current.wait_stream(stream)


def _captured(
    function: Callable[[], Tensor | None], stream: torch.cuda.Stream, pool: Any
) -> Callable[[], Tensor | None]:
    """Capture the operations of a function without executing them; calling the result executes them."""
    graph = torch.cuda.CUDAGraph()
    # With "thread_local", the work of other threads, such as those of a progress bar or of dask, does not disturb the
    # capture.
    capture = torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local")
    with _on(stream), capture:  # `_on` restores the current stream, which a failed capture may leave changed.
        output = function()

    def replay() -> Tensor | None:
        graph.replay()
        return None if output is None else output.clone()  # The next replay overwrites it.

    return replay
