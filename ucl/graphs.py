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

_Key = tuple[Any, ...]  # the model and the shapes of the inputs

_GRAPHS_ON = ("cuda",)
WARM_UP = 3  # calls after which the libraries below have made what they need; a capture must not


class Graphed:
    """A function of a model and tensors that is called often. A GPU starts all that it does at once; a CPU calls it.

    Starting an operation of a small network takes the host longer than computing it takes the GPU. The first calls
    with inputs of some shapes are plain ones; the next captures the operations, and from then on they are repeated on
    the new inputs. Where a capture fails there is a warning, and every call stays a plain one.

    Args:
        function: of a model and tensors, without a result. It works in place on tensors that stay, as weights do; it
            reads no value back to the host, and what it does depends on the shapes of the tensors alone.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function
        self._calls: Counter[_Key] = Counter()
        self._graphs: dict[_Key, tuple[list[Tensor], Callable[[], None]]] = {}
        self._stream: torch.cuda.Stream | None = None
        self._plain = False

    def __call__(self, model: nn.Module, *inputs: Tensor) -> None:
        if self._plain or inputs[0].device.type not in _GRAPHS_ON:
            self._function(model, *inputs)
            return
        key = model, *(x.shape for x in inputs)
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
        held = [x.clone() for x in inputs]
        try:
            self._graphs[key] = held, _captured(lambda: self._function(key[0], *held), stream)
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            warnings.warn(f"no CUDA graph could be captured, so training is slower: {reason}", stacklevel=3)
            self._plain = True
        return not self._plain


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
    with _on(stream), torch.cuda.graph(graph, stream=stream):  # a capture that fails may leave its stream the current
        function()
    return graph.replay
