"""Networks with narrow layers train correctly on a processor without AVX-512, where torch's oneDNN corrupts memory."""

import os
import subprocess
import sys

# One process trains each network and compares its last gradients with those in float64.
TRAINED = """
import copy, itertools
import torch
from torch import nn
from torch.nn import functional as F
from ucl.models import SlimResNet18
from ucl.models.network import OwnNetwork

torch.set_num_threads(1)
for kind, width in itertools.product(("built-in", "own"), (3, 7)):
    print(kind, width, flush=True)
    torch.manual_seed(0)
    statistics = (0.5,) * 3, (0.25,) * 3
    if kind == "built-in":
        model = SlimResNet18(5, 3, 28, *statistics, width=width)
    else:
        layers = nn.Conv2d(3, width, 3), nn.ReLU(), nn.Conv2d(width, 16, 1, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        module = nn.Sequential(*layers, nn.Linear(16, 5)).to(memory_format=torch.channels_last)
        model = OwnNetwork(module, "mine:narrow", 5, 3, 28, *statistics)
    images, labels = torch.rand(20, 3, 28, 28), torch.arange(20) % 5
    for _ in range(20):
        model.zero_grad()
        F.cross_entropy(model(images), labels).backward()
    exact = copy.deepcopy(model).double()
    exact.zero_grad()
    F.cross_entropy(exact.logits(model.normalize(images).double()), labels).backward()
    for name, weight in model.named_parameters():
        gradient = exact.get_parameter(name).grad  # activations near 0 may have the other sign in float32
        assert (weight.grad - gradient).abs().max() < 0.1 * gradient.abs().max(), name
"""


def test_narrow_networks_have_the_gradients_of_float64_without_avx_512():
    env = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", TRAINED], env=env, capture_output=True, text=True)
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 4, (done.stdout, done.stderr)
