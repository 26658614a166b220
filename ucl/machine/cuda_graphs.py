"""Work that repeats on a GPU, started as a whole: CUDA graphs."""

from __future__ import annotations

import functools
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_Key = tuple[Any, ...]  # the model, and shape, dtype and strides of each input

_GRAPHS_ON = ("cuda",)
WARM_UP = 3  # calls after which the libraries below have made what they need; a capture must not


class Graphed:
    """A function of a model and tensors that is called often. With graphs, a GPU starts all that it does at once.

    Starting an operation of a small network takes the host longer than computing it takes the GPU. The first calls
    with inputs of some kind are plain ones; the next captures the operations, and from then on they are repeated on the
    new inputs. A capture is used only if repeating it once leaves, bit for bit, what a plain call leaves: so graphs
    change no result. Where a capture fails, or leaves something else, there is a warning, and from then on every call
    is a plain one, as it always is without graphs, on a CPU, and for a model with hooks on its forward pass.

    Args:
        function: of a model and tensors, without a result. It works in place on the model's parameters and buffers; it
            reads no value back to the host, and what it does depends on the kind of the tensors alone.
        graphs: whether to capture at all.
    """

    def __init__(self, function: Callable[..., None], graphs: bool = False) -> None:
        self._function = function
        self._calls: Counter[_Key] = Counter()
        self._graphs: dict[_Key, tuple[list[Tensor], Callable[[], None]]] = {}
        self._stream: torch.cuda.Stream | None = None
        self._plain = not graphs

    @property
    def in_use(self) -> bool:
        """Whether calls are repeated from a graph, as far as there were enough of a kind."""
        return bool(self._graphs) and not self._plain

    def __call__(self, model: nn.Module, *inputs: Tensor) -> None:
        hooks = model._forward_pre_hooks or model._forward_hooks  # Python's, which a graph would not call
        if self._plain or hooks or inputs[0].device.type not in _GRAPHS_ON:
            self._function(model, *inputs)
            return
        key = model, *((x.shape, x.dtype, x.stride()) for x in inputs)
        if key not in self._graphs:
            # All plain calls and captures share a stream: a gradient is added up on the one that first did so.
            stream = self._stream = self._stream or _stream_of(inputs[0].device)
            self._calls[key] += 1
            if self._calls[key] <= WARM_UP or not self._capture(key, inputs, stream):
                with _on(stream):
                    self._function(model, *inputs)
            return
        held, replay = self._graphs[key]
        for to, x in zip(held, inputs, strict=True):
            to.copy_(x)
        replay()

    def _capture(self, key: _Key, inputs: Sequence[Tensor], stream: torch.cuda.Stream) -> bool:
        """Capture a call and make it, by the graph; False where that can't be, and then nothing was done."""
        model, held = key[0], [x.clone() for x in inputs]
        state = [*model.parameters(), *model.buffers()]
        before, draws = _copy(state), _draws(inputs[0].device)
        try:
            with _on(stream):
                self._function(model, *held)
            expected = _copy(state)
            _restore(state, before)
            _rewind(inputs[0].device, draws)
            replay = _captured(lambda: self._function(model, *held), stream)
            replay()
            if not all(_same(x, y) for x, y in zip(state, expected, strict=True)):
                raise RuntimeError("repeating it does not leave the weights that a plain step leaves")
        except RuntimeError as error:
            _restore(state, before)
            _renew(inputs[0].device, draws)
            reason = str(error).partition("\n")[0]
            warnings.warn(f"no CUDA graph can be used, so training is slower: {reason}", stacklevel=4)
            self._plain = True
            self._graphs.clear()
            return False
        self._graphs[key] = held, replay
        return True


@torch.no_grad()
def _copy(state: Sequence[Tensor]) -> list[Tensor]:
    return [x.clone() for x in state]


@torch.no_grad()
def _restore(state: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for x, value in zip(state, values, strict=True):
        x.copy_(value)


def _same(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors are equal, NaN to NaN: also the steps of a network that diverges are repeated."""
    return torch.allclose(x, y, rtol=0, atol=0, equal_nan=True)


def _draws(device: torch.device) -> Tensor:
    """Where the device's global generator stands."""
    return torch.cuda.get_rng_state(device)


def _rewind(device: torch.device, draws: Tensor) -> None:
    torch.cuda.set_rng_state(draws, device)  # in place: the graphs of other inputs draw from the same generator


def _renew(device: torch.device, draws: Tensor) -> None:
    """Rewind the global generator and give it a state of its own.

    After a capture that failed, the old state still waits for the capture's end, and every draw from it raises.
    """
    fresh = torch.Generator(device)
    fresh.set_state(draws)
    torch.cuda.default_generators[fresh.device.index].graphsafe_set_state(fresh)


@functools.cache  # one for all runs: the libraries keep a workspace for each stream that they ever worked on
def _stream_of(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


@contextmanager
def _on(stream: torch.cuda.Stream) -> Iterator[None]:
    """Work within the block comes after what was asked before it and before what is asked after it."""
    around = torch.cuda.current_stream(stream.device)
    stream.wait_stream(around)
    with torch.cuda.stream(stream):
        yield
    around.wait_stream(stream)


def _captured(function: Callable[[], None], stream: torch.cuda.Stream) -> Callable[[], None]:
    """What the function would do, captured and not done; a call does it."""
    graph = torch.cuda.CUDAGraph()
    # "thread_local": what other threads do meanwhile, such as those of a progress bar or of dask, spoils no capture
    capture = torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local")
    with _on(stream), capture:  # a capture that fails may leave its stream the current one
        function()
    return graph.replay
