"""Train networks that others wrote, with torch's convolutions and under ``torch_ops.enable()``.

Each network of MONAI (``pip install monai einops``) takes ten steps with each from the same weights
and data; then single steps are timed in turn. The table has the best time of a step, the ratio, and
the largest relative difference of the ten losses.

    python -m torch_ops.bench_models [--models 'UNet*'] [--dtype f32 bf16] [--channels-last]

bf16 is autocast. Loss: the mean square of the output less a constant; optimizer: SGD.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from itertools import product
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn

from torch_ops import bench_report
from torch_ops.bench_measure import Effort, machine
from torch_ops.bench_training import compare, sheet


@dataclass(frozen=True)
class Network:
    """A class of monai.networks.nets, its arguments, and the shape of its input."""

    kind: str
    shape: tuple[int, ...]
    arguments: dict[str, object] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.kind}_{len(self.shape) - 2}d"

    def build(self) -> nn.Module:
        from monai.networks import nets

        torch.manual_seed(0)
        return getattr(nets, self.kind)(spatial_dims=len(self.shape) - 2, **self.arguments).train()


def unets() -> Iterator[Network]:
    """With transposed convolutions on the way up, in two and in three dimensions."""
    ends = {"in_channels": 1, "out_channels": 2}
    for shape in ((4, 1, 128, 128), (1, 1, 64, 64, 64)):
        sizes = {"channels": (16, 32, 64, 128), "strides": (2, 2, 2), "num_res_units": 2}
        yield Network("UNet", shape, ends | sizes)
        sizes = {"channels": (16, 32, 64, 128), "strides": (2, 2, 2)}
        yield Network("AttentionUnet", shape, ends | sizes)
    for shape, width in (((2, 1, 128, 128), 32), ((1, 1, 48, 48, 48), 16)):
        widths = (width, width, 2 * width, 4 * width, 8 * width, width)
        yield Network("BasicUNet", shape, ends | {"features": widths})
        sizes = {"kernel_size": [3] * 4, "strides": [1, 2, 2, 2], "upsample_kernel_size": [2] * 3}
        filters = [width, 2 * width, 4 * width, 8 * width]
        yield Network("DynUNet", shape, ends | sizes | {"filters": filters})


def others() -> Iterator[Network]:
    ends = {"in_channels": 1, "out_channels": 2}
    yield Network("VNet", (1, 1, 32, 32, 32), ends)
    yield Network("SegResNet", (1, 1, 48, 48, 48), ends)
    yield Network("HighResNet", (1, 1, 24, 24, 24), ends)
    sizes = {"channels": (16, 32, 64), "strides": (2, 2, 2)}
    yield Network("AutoEncoder", (4, 1, 128, 128), ends | sizes)
    transformer = {"feature_size": 8, "hidden_size": 96, "mlp_dim": 192, "num_heads": 6}
    yield Network("UNETR", (1, 1, 32, 32, 32), ends | transformer | {"img_size": (32, 32, 32)})
    yield Network("DenseNet121", (2, 3, 96, 96), {"in_channels": 3, "out_channels": 10})
    resnet = {"block": "basic", "layers": [2, 2, 2, 2], "block_inplanes": [64, 128, 256, 512]}
    yield Network("ResNet", (4, 3, 96, 96), resnet | {"n_input_channels": 3, "num_classes": 10})
    efficient = {"model_name": "efficientnet-b0", "pretrained": False}
    yield Network(
        "EfficientNetBN", (4, 3, 96, 96), efficient | {"in_channels": 3, "num_classes": 10}
    )


NETWORKS = [*unets(), *others()]


class Training:
    """A network with its data and optimizer."""

    def __init__(self, network: Network, dtype: str, channels_last: bool = False) -> None:
        self.model = network.build()
        self.x = torch.randn(network.shape)
        self.autocast = dtype == "bf16"
        if channels_last:
            format = torch.channels_last if self.x.dim() == 4 else torch.channels_last_3d
            self.model, self.x = (
                self.model.to(memory_format=format),
                self.x.to(memory_format=format),
            )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def step(self) -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            output = self.model(self.x)
            output = output if isinstance(output, Tensor) else output[0]
            loss = (output.float() - 0.3).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="torch_ops.bench_models", description=__doc__.split("\n")[0]
    )
    add = parser.add_argument
    add("--models", nargs="+", default=["*"], help="names or patterns, such as 'UNet*'")
    add("--dtype", nargs="+", choices=("f32", "bf16"), default=["f32", "bf16"], help="(both)")
    add("--channels-last", action="store_true", help="the models' and the data's memory format")
    add("--threads", type=int, help="threads of torch's pool (torch's choice)")
    add("--rounds", type=int, default=3, help="timed steps of each, of which the best counts (3)")
    add("--out", type=Path, default=Path("build/bench"), help="results' folder (build/bench)")
    options = parser.parse_args(argv)
    options.chosen = [
        network
        for network in NETWORKS
        if any(fnmatchcase(network.name, pattern) for pattern in options.models)
    ]
    if not options.chosen:
        parser.error(f"no such models; there are {' '.join(n.name for n in NETWORKS)}")
    return options


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    if options.threads:
        torch.set_num_threads(options.threads)
    console = Console()
    about = machine() | {"format": "channels_last" if options.channels_last else "contiguous"}
    console.print(*bench_report.header(about), sep="\n", highlight=False, markup=False)
    # A step may take seconds: it is timed all the same, and not for longer than that.
    effort = Effort(options.rounds, seconds=0, once_above=float("inf"))
    rows = []
    cases = list(product(options.chosen, options.dtype))
    for network, dtype in track(cases, "training", console=console):
        training = partial(Training, network, dtype, options.channels_last)
        rows.append({"name": network.name, "dtype": dtype} | compare(training, effort))
    table = sheet(rows)
    console.print("", table.title, table.rich(), sep="\n", highlight=False, markup=False)
    for dtype in options.dtype:
        mean = bench_report.geometric_mean([r["ratio"] for r in rows if r["dtype"] == dtype])
        console.print(f"{dtype}: geometric mean {mean:.2f}", highlight=False)
    options.out.mkdir(parents=True, exist_ok=True)
    written = options.out / "models.json"
    bench_report.write_json({"machine": about, "rows": rows}, written)
    console.print("written:", written, highlight=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
