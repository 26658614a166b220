"""Networks of a run: made from a configuration, written to a file after each task, and loaded again."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from ucl import user_objects
from ucl.catalogue import is_user_object
from ucl.errors import InputError, one_line_with_type
from ucl.machine.determinism import default_modes, seeded_draws
from ucl.models.network import Network, OwnNetwork
from ucl.models.slim_resnet import MODELS

_of_runs = WeakTensorKeyDictionary()  # weights and buffers of users' networks


def new_network(
    model: str, shape: tuple[int, int, int], mean: Sequence[float], std: Sequence[float], dropout: float = 0.0
) -> Network:
    """The network that `Config.model` names, with new weights; `shape`: numbers of classes, channels, pixels per side.

    Raises:
        InputError: a user's network can't be made, does not fit the images, or has layers of an earlier one.
    """
    if not is_user_object(model):
        return MODELS[model](*shape, mean, std, dropout)
    create = user_objects.find("model", model)
    made = user_objects.call("model", model, create, *shape)
    network = OwnNetwork(made, model, *shape, mean, std)
    # A run may change weights with a gradient, and buffers.
    learnt = [*(weight for weight in made.parameters() if weight.requires_grad), *made.buffers()]
    if any(values in _of_runs for values in learnt):
        reason = "returned layers that it had returned before, which a run may have trained; make new ones"
        raise InputError("model", model, reason)
    _of_runs.update(dict.fromkeys(learnt))
    return network


def file_of(folder: str | Path, task: int) -> Path:
    """The file of the network after a task, counted from 0, in the folder of a run."""
    return Path(folder) / f"task{task}.pt"


def as_bytes(network: Network, facts: dict[str, Any]) -> bytes:
    """The content of a file for `load`: the state of a network, and what is needed to make and to recognise it."""
    file = io.BytesIO()  # `torch.save` to a full disk raises no OSError
    source = user_objects.source_hash(filter(is_user_object, [facts["model"]]))
    torch.save({**facts, "source": source, "layers": _layers_of(network), "state": network.state_dict()}, file)
    return file.getvalue()


@default_modes()
def load(source: Any, task: int | None = None, device: torch.device | str = "cpu") -> Network:
    """The network after a task of a run that was measured with `weights`, see `ucl.run`.

    It is in evaluation mode, and normalises its input itself. So it takes images as data sets and streams have them:

        network = ucl.models.load(record)
        logits = network(images)  # (N, C, H, W), uint8 or float in [0, 1] -> (N, n_classes)
        names = [network.classes[c] for c in logits.argmax(1)]

    The images have the size of those that it learnt: `ucl.datasets.read_images` makes them of image files.

    Column c of the logits is the class `record.classes[c]` for every `Record.class_order`: the order of the stream does
    not number the classes. The list is also an attribute of the network, `classes`.

    BatchNorm has the statistics of the run's own tests (`Config.test_batchnorm`), so the predictions are those of
    `Record.accuracy`. With dropout, these are of the mean of 20 dropout passes (`ucl.evaluation.accuracy.predictions`),
    and `network(images)` is one pass without dropout.

    Args:
        source: a `ucl.Record`, or the path of one of the files.
        task: of a record, number of the task after which the network is wanted, from 0 as a row of `Record.accuracy`;
            None is the last one.
        device: device of the network.

    Raises:
        InputError: the run was measured without `weights`, the file can't be read or is of another run, a user's
            network can't be made, or the network has other layers or weights now, also because a user's method has
            replaced some. If its source has changed otherwise, there is a warning. A call of the network raises it for
            images of another size or range.
    """
    tested: list[Any] = []  # what identifies the run and the task
    if isinstance(source, (str, Path)):
        file = Path(source)
    elif "weights" in source.files:
        task = len(source.accuracy) - 1 if task is None else task
        file = file_of(source.files["weights"], task)
        accuracy = source.accuracy[task : task + 1]
        tested = [source.config.without_further_tests.key, *accuracy[accuracy == accuracy]]
    else:
        raise InputError("record", source.name, "was measured without weights; give ucl.run a folder: weights=")
    try:
        saved = torch.load(file, map_location="cpu", weights_only=True)
        model, shape, state = saved["model"], saved["shape"], saved["state"]
    except Exception as error:  # A damaged file can raise any error.
        raise InputError("weights", str(file), f"can't be read ({one_line_with_type(error)})") from None
    if tested and tested != [saved["key"], *saved["accuracy"]]:
        raise InputError("weights", str(file), "is of another run than the record, or of another task")
    own = model if is_user_object(model) else ""
    with seeded_draws(0, "cpu"):  # the new weights are replaced, and the caller's generators stay as they are
        network = new_network(model, tuple(shape), saved["mean"], saved["std"], saved["dropout"])
    if own and saved["source"] != user_objects.source_hash([own]):
        warnings.warn(f"{own}: its source has changed since the run; its logits may differ", stacklevel=2)
    layers = _layers_of(network)
    if saved.get("layers", layers) != layers:  # Older files have none.
        reason = f"has other layers than {model} has now: a method replaced some, or its source has changed"
        raise InputError("weights", str(file), reason)
    with user_objects.attribute_errors_to("model", own):
        network.load_state_dict(state)
    network.classes = saved["classes"]
    network.register_forward_pre_hook(partial(_check_images, tuple(shape[1:])))
    return network.to(device).eval()


def _layers_of(network: Network) -> list[str]:
    return [f"{type(layer).__module__}.{type(layer).__qualname__}" for layer in network.modules()]


def _check_images(shape: tuple[int, int], _: nn.Module, arguments: tuple[Any, ...]) -> None:
    """Raise an InputError unless a loaded network gets images of its channels and size."""
    images_NCHW, (channels, size) = arguments[0], shape
    if images_NCHW.shape[1:] != (channels, size, size):
        reason = f"give (N, {channels}, {size}, {size}); ucl.datasets.read_images(files, {size}, {channels}) makes them"
        raise InputError("images", tuple(images_NCHW.shape), reason)
