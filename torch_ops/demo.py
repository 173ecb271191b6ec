"""Train one small autoencoder twice, by torch's convolutions and by ours, and compare.

Both arms start from the same parameters and see the same batches in the same order. One is made of
``nn.Conv2d`` and ``nn.ConvTranspose2d``, the other calls ``torch.ops.convtbw`` and relies on the
operators' own autograd. Shown: both loss curves and how far they drift apart, milliseconds per
training step in f32 and bf16, the backend that served each layer, and reconstructions.

    python -m torch_ops.demo [--steps N] [--out build/demo.png]

The exit status is 1 when the two curves differ by more than ``TOLERANCE``.
"""

from __future__ import annotations

import argparse
import copy
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from sklearn.datasets import load_sample_images
from torch import Tensor, nn
from tqdm import tqdm

from torch_ops import backends
from torch_ops.bench_measure import cpu_name

PATCH = 32  # pixels a side
BATCH = 32
LATENT = 32 * (PATCH // 8) ** 2  # numbers that a patch is squeezed into
HELD_OUT = 64  # leftmost columns of each photograph, never trained on

LEARNING_RATE = 4e-3  # at the start; falls to zero along a cosine

# Largest |loss_ours / loss_torch - 1| over the whole f32 curve, and largest relative distance of a
# parameter's first gradient. Where only the rounding differs (oneDNN on and off, channels_last,
# float64), torch's own curves came to differ by less than 1e-6 for the default seed and by at most
# 5e-6 for seeds 0 to 7. At a learning rate of 1e-2 one seed reached 3e-3: training that amplifies
# rounding says nothing about gradients, hence the smaller rate.
TOLERANCE = 1e-4

TRAIN_SECONDS = 60.0  # a machine that needs longer stops early, and says so
TIMING_SECONDS = 3.0  # for an arm and a dtype, roughly
SLOW_STEP = 1.0  # seconds: a longer step is measured once

ARMS = {"torch": "torch", "ours": "convtbw"}  # key -> how it is called in the output


class Convolution(nn.Module):
    """``nn.Conv2d`` by ``convtbw.convolution``: the same parameters, NCX data, OIX weights."""

    op = "convolution"

    def __init__(
        self,
        inputs: int,
        outputs: int,
        size: int,
        stride: int = 1,
        padding: int = 0,
        groups: int = 1,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs // groups, size, size))
        self.bias = nn.Parameter(torch.empty(outputs))
        self.attributes = _attributes(stride, padding, groups, "OIX")

    def forward(self, src: Tensor) -> Tensor:
        return torch.ops.convtbw.convolution(src, self.weight, self.bias, **self.attributes)


class ConvTranspose(nn.Module):
    """``nn.ConvTranspose2d`` by ``convtbw.conv_transpose``: same parameters, NCX, IOX weights."""

    op = "conv_transpose"

    def __init__(
        self,
        inputs: int,
        outputs: int,
        size: int,
        stride: int = 1,
        padding: int = 0,
        output_padding: int = 0,
        groups: int = 1,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs // groups, size, size))
        self.bias = nn.Parameter(torch.empty(outputs))
        self.attributes = _attributes(stride, padding, groups, "IOX")
        self.attributes["output_padding"] = [output_padding] * 2

    def forward(self, src: Tensor) -> Tensor:
        return torch.ops.convtbw.conv_transpose(src, self.weight, self.bias, **self.attributes)


def _attributes(stride: int, padding: int, groups: int, weights_format: str) -> dict[str, object]:
    return {
        "strides": [stride] * 2,
        "pads_begin": [padding] * 2,
        "pads_end": [padding] * 2,
        "dilations": [1, 1],
        "groups": groups,
        "data_format": "NCX",
        "weights_format": weights_format,
    }


Layer = Callable[..., nn.Module]


def autoencoder(conv: Layer, transpose: Layer) -> nn.Sequential:
    """Strided convolutions down to 32 x 4 x 4, transposed ones back up: 30 MMAC a batch, forward.

    Fully convolutional, so that it also takes a whole photograph. SiLU rather than ReLU: where a
    ReLU's input is near zero, a rounding error would switch a gradient on or off.
    """
    return nn.Sequential(
        conv(3, 12, 3, stride=2, padding=1),
        nn.SiLU(),
        conv(12, 24, 3, stride=2, padding=1),
        nn.SiLU(),
        conv(24, 32, 3, stride=2, padding=1),
        # 4 -> 8 by a 3 x 3 kernel: 7 + output_padding 1
        transpose(32, 24, 3, stride=2, padding=1, output_padding=1),
        nn.SiLU(),
        transpose(24, 24, 3, padding=1, groups=24),  # depthwise
        nn.SiLU(),
        transpose(24, 12, 4, stride=2, padding=1),
        nn.SiLU(),
        transpose(12, 3, 4, stride=2, padding=1),
    )


@dataclass
class Arm:
    """One way to compute: a model, its optimiser, and the loss of every step it took."""

    model: nn.Sequential
    optimiser: torch.optim.Optimizer = field(init=False)
    losses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=LEARNING_RATE)

    def step(self, batch: Tensor) -> None:
        """One training step: forward, backward, update."""
        self.optimiser.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(self.model(batch), batch)
        loss.backward()
        self.optimiser.step()
        self.losses.append(loss.item())

    def to(self, dtype: torch.dtype) -> Arm:
        """A fresh copy of this arm whose parameters have another dtype."""
        return Arm(copy.deepcopy(self.model).to(dtype))

    @torch.no_grad()
    def reconstruct(self, images: Tensor) -> Tensor:
        return self.model(images).clamp(-0.5, 0.5)


def photographs() -> Tensor:
    """scikit-learn's two sample photographs at half size, (2, 3, 208, 320), from -0.5 to 0.5."""
    full = torch.from_numpy(np.stack(load_sample_images().images)).permute(0, 3, 1, 2)
    half = nn.functional.avg_pool2d(full.float() / 255 - 0.5, 2)
    return half[:, :, : half.shape[2] // 8 * 8].contiguous()  # three halvings need a multiple of 8


def training_batch(photos: Tensor, generator: torch.Generator) -> Tensor:
    """A batch of random patches of the trained part, half of them mirrored."""
    trained = photos[..., HELD_OUT:]
    high, wide = (extent - PATCH + 1 for extent in trained.shape[2:])

    def patch(which: int, down: int, right: int, mirror: int) -> Tensor:
        cut = trained[which % 2, :, down % high : down % high + PATCH]
        cut = cut[..., right % wide : right % wide + PATCH]
        return cut.flip(-1) if mirror % 2 else cut

    draws = torch.randint(2**30, (BATCH, 4), generator=generator).tolist()
    return torch.stack([patch(*draw) for draw in draws])


def held_out_squares(photos: Tensor) -> Tensor:
    """Squares of the part that was never trained on, the richest in detail first."""
    tiles = photos[..., :HELD_OUT].unfold(2, HELD_OUT, HELD_OUT)  # photo, channel, row, x, y
    tiles = tiles.permute(0, 2, 1, 4, 3).flatten(0, 1)
    return tiles[tiles.std(dim=(1, 2, 3)).argsort(descending=True)].contiguous()


def train(arms: dict[str, Arm], photos: Tensor, steps: int, seed: int, console: Console) -> None:
    """The same batches through every arm, one step of each in turn, learning rates annealed."""
    generator = torch.Generator().manual_seed(seed)
    started = time.perf_counter()
    often = 0.1 if sys.stdout.isatty() else 5.0  # seconds; a log wants few lines
    settings = {"desc": "training both arms", "unit": "step", "mininterval": often}
    with tqdm(total=steps, file=sys.stdout, dynamic_ncols=True, **settings) as bar:
        for index in range(steps):
            batch = training_batch(photos, generator)
            for arm in arms.values():
                for group in arm.optimiser.param_groups:
                    group["lr"] = LEARNING_RATE * 0.5 * (1 + math.cos(math.pi * index / steps))
                arm.step(batch)
            losses = {ARMS[key]: f"{arm.losses[-1]:.5f}" for key, arm in arms.items()}
            bar.set_postfix(losses, refresh=False)
            bar.update()
            if time.perf_counter() - started > TRAIN_SECONDS:
                bar.close()
                console.print(f"[yellow]Stopped after {TRAIN_SECONDS:.0f} s, step {index + 1}.[/]")
                return


def gradient_difference(arms: dict[str, Arm], batch: Tensor) -> float:
    """Largest ||ours - torch|| / ||torch|| of any parameter's gradient, at the same parameters.

    Adam divides a gradient by its own size, so the curves alone would not see one that is wrong by
    a constant factor.
    """
    gradients = []
    for key in ARMS:
        model = arms[key].model
        loss = nn.functional.mse_loss(model(batch), batch)
        gradients.append(torch.autograd.grad(loss, list(model.parameters())))
    distances = [
        (ours - theirs).norm() / theirs.norm() for theirs, ours in zip(*gradients, strict=True)
    ]
    return torch.stack(distances).nan_to_num(nan=torch.inf).max().item()


def relative_differences(arms: dict[str, Arm]) -> np.ndarray:
    """|loss_ours / loss_torch - 1| of every step; not a number counts as infinitely far."""
    torch_losses, our_losses = (np.array(arms[key].losses) for key in ARMS)
    return np.nan_to_num(np.abs(our_losses / torch_losses - 1), nan=np.inf)


def step_times(arms: dict[str, Arm], batch: Tensor, rounds: int = 7) -> dict[str, float]:
    """Milliseconds per training step of each arm: interleaved rounds, the best one counts.

    A first step is measured alone and sets how many steps a round has. An arm for which it takes
    longer than ``SLOW_STEP`` keeps it as its result (torch's bf16 without hardware support).
    """

    def milliseconds(arm: Arm, steps: int) -> float:
        started = time.perf_counter()
        for _ in range(steps):
            arm.step(batch)
        return (time.perf_counter() - started) * 1e3 / steps

    best = {key: milliseconds(arm, 1) for key, arm in arms.items()}
    share = TIMING_SECONDS * 1e3 / rounds
    per_round = {
        key: min(50, max(1, int(share / first)))
        for key, first in best.items()
        if first <= SLOW_STEP * 1e3
    }
    for _ in range(rounds):
        for key, steps in per_round.items():
            best[key] = min(best[key], milliseconds(arms[key], steps))
    return best


def served_by(model: nn.Sequential, batch: Tensor) -> list[tuple[str, list[str]]]:
    """Per layer its description, and who serves forward, data gradient and weights gradient."""
    rows = []
    src = batch
    with torch.no_grad():
        for layer in model:
            dst = layer(src)
            if isinstance(layer, Convolution | ConvTranspose):
                rows.append((_describe(layer, src, dst), _plans(layer, src, dst, src is not batch)))
            src = dst
    return rows


def _describe(layer: Convolution | ConvTranspose, src: Tensor, dst: Tensor) -> str:
    attributes = layer.attributes
    text = f"{layer.op} {src.shape[1]}→{dst.shape[1]}, {src.shape[2]}²→{dst.shape[2]}²"
    text += f", k{layer.weight.shape[2]} s{attributes['strides'][0]} p{attributes['pads_begin'][0]}"
    if any(attributes.get("output_padding", ())):
        text += f" op{attributes['output_padding'][0]}"
    return text + (f" g{attributes['groups']}" if attributes["groups"] > 1 else "")


def _plans(layer: Convolution | ConvTranspose, src: Tensor, dst: Tensor, inner: bool) -> list[str]:
    """Backend, target and kernel of the three partials, as autograd will ask for them."""
    shape = {"src_shape": list(src.shape)} if layer.op == "convolution" else {}
    weights_shape = {"weights_shape": list(layer.weight.shape)}
    calls = [
        (layer.op, (src, layer.weight, layer.bias), {}),
        (f"{layer.op}_backward_data", (dst, layer.weight), shape),
        (f"{layer.op}_backward_weights", (src, dst), weights_shape),
    ]
    plans = [backends.explain(op, *args, **more, **layer.attributes) for op, args, more in calls]
    cells = [
        " ".join(str(part) for part in (plan.backend, plan.target, plan.kernel) if part)
        for plan in plans
    ]
    if not inner:
        cells[1] = "[dim]not needed[/]"  # nobody asks for the gradient of the photographs
    return cells


def psnr(arm: Arm, images: Tensor) -> float:
    """Peak signal-to-noise ratio of the reconstructions in dB; pixels span 1."""
    return -10 * math.log10((arm.reconstruct(images) - images).square().mean().item())


def header(threads: int, model: nn.Module, console: Console) -> None:
    grid = Table.grid(padding=(0, 2))
    grid.add_row("CPU", f"{cpu_name()} ({torch.backends.cpu.get_cpu_capability()})")
    grid.add_row("threads", str(threads))
    grid.add_row("torch", torch.__version__)
    grid.add_row("backends", ", ".join(backends.supported()))
    grid.add_row("simd targets", ", ".join(backends.targets()) or "none")
    parameters = sum(parameter.numel() for parameter in model.parameters())
    grid.add_row("model", f"autoencoder of 7 layers, {parameters:,} parameters, batches of {BATCH}")
    data = f"{PATCH}x{PATCH} RGB patches of china.jpg and flower.jpg (scikit-learn), "
    grid.add_row("data", data + f"{3 * PATCH**2:,} numbers squeezed into {LATENT}")
    console.print(Panel(grid, title="convtbw demo: one network, two arms", expand=False))


def loss_table(arms: dict[str, Arm], differences: np.ndarray, first_gradient: float) -> Table:
    """About a dozen steps of the curves, closer together at the start."""
    steps = len(differences)
    table = Table(title="Loss of both arms, f32 (mean squared error of the step's batch)")
    for column in ("step", *ARMS.values(), "relative difference"):
        table.add_column(column, justify="right")
    for step in sorted({min(steps, round(steps ** (i / 11))) for i in range(12)}):
        losses = [f"{arms[key].losses[step - 1]:.7f}" for key in ARMS]
        table.add_row(str(step), *losses, f"{differences[step - 1]:.1e}")
    found = {"loss, all steps": differences.max(), "first gradients": first_gradient}
    table.add_section()
    for what, worst in found.items():
        colour, verdict = ("green", "≤") if worst <= TOLERANCE else ("bold red", ">")
        table.add_row("largest", what, "", f"[{colour}]{worst:.1e} {verdict} {TOLERANCE:g}[/]")
    return table


def time_table(times: dict[str, dict[str, float]]) -> Table:
    table = Table(title=f"ms per training step (batch {BATCH}, best of interleaved rounds)")
    for column in ("dtype", *ARMS.values(), "torch / convtbw"):
        table.add_column(column, justify="right")
    for dtype, best in times.items():
        ratio = f"{best['torch'] / best['ours']:.2f}x"
        table.add_row(dtype, *(f"{best[key]:.2f}" for key in ARMS), ratio)
    return table


def backend_table(rows: dict[str, list[tuple[str, list[str]]]]) -> Table:
    table = Table(title="Who served each layer of the convtbw arm (backend, target, kernel)")
    for column in ("dtype", "layer", "forward", "data gradient", "weights gradient"):
        table.add_column(column, overflow="fold")
    for dtype, layers in rows.items():
        for description, cells in layers:
            table.add_row(dtype, description, *cells)
        table.add_section()
    return table


def draw(
    path: Path,
    arms: dict[str, Arm],
    photos: Tensor,
    squares: Tensor,
    differences: np.ndarray,
    times: dict[str, dict[str, float]],
) -> None:
    """The figure: inputs and reconstructions, loss curves, their distance, times per step."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    colours = {"torch": "#e08a3c", "ours": "#1f5f8b"}
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure = plt.figure(figsize=(14, 11.2), dpi=120)
    images, charts = figure.add_gridspec(
        2, 1, height_ratios=[2.5, 1], left=0.055, right=0.985, top=0.885, bottom=0.06, hspace=0.17
    )
    figure.text(
        0.055, 0.965, "One autoencoder, trained by torch and by convtbw", size=15, weight="bold"
    )
    figure.text(
        0.055,
        0.938,
        f"{len(differences)} steps from the same seed on the same batches · {cpu_name()}, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}",
        color="0.35",
    )

    shape = [photos.shape[3] / photos.shape[2]] * len(photos) + [1] * len(squares)
    grid = images.subgridspec(3, len(shape), width_ratios=shape, hspace=0.05, wspace=0.04)
    rows: list[tuple[str, Callable[[Tensor], Tensor]]] = [("input", lambda batch: batch)]
    rows += [(ARMS[key], arms[key].reconstruct) for key in ARMS]
    for row, (name, show) in enumerate(rows):
        pictures = [*show(photos), *show(squares)]
        for column, picture in enumerate(pictures):
            axes = figure.add_subplot(grid[row, column])
            axes.imshow((picture + 0.5).permute(1, 2, 0).float().numpy())
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set_visible(False)
            if column < len(photos):
                axes.axvline(HELD_OUT, color="white", linewidth=1, linestyle=(0, (4, 3)))
            if column == 0:
                axes.set_ylabel(name, size=11, weight="bold")
            if row == 0 and column == 0:
                axes.set_title("left of the line: never trained on", loc="left", size=9)
            if row == 0 and column == len(photos):
                axes.set_title("from the part never trained on", loc="left", size=9)

    panels = charts.subgridspec(1, 3, width_ratios=[1.25, 1, 0.9], wspace=0.22)
    steps = np.arange(1, len(differences) + 1)
    axes = figure.add_subplot(panels[0])
    axes.plot(steps, arms["torch"].losses, color=colours["torch"], linewidth=4, alpha=0.65)
    axes.plot(steps, arms["ours"].losses, color=colours["ours"], linewidth=1)
    axes.set_yscale("log")
    axes.set_title("Loss of each step, f32", loc="left", weight="bold")
    axes.set_xlabel("step")
    axes.legend(list(ARMS.values()), frameon=False)

    axes = figure.add_subplot(panels[1])
    apart = differences > 0  # a logarithmic axis has no zero
    axes.plot(steps[apart], differences[apart], ".", color="0.25", markersize=3)
    axes.axhline(TOLERANCE, color="#b3261e", linewidth=1.2, linestyle="--")
    axes.text(steps[-1], TOLERANCE * 1.3, "tolerance", color="#b3261e", ha="right")
    axes.set_yscale("log")
    axes.set_xlim(0, steps[-1] + 1)
    axes.set_ylim(1e-9, max(TOLERANCE * 10, min(differences.max() * 2, 10)))
    axes.set_title("Relative difference of the losses", loc="left", weight="bold")
    axes.set_xlabel("step")

    axes = figure.add_subplot(panels[2])
    values = [best[key] for best in times.values() for key in ARMS]
    log = max(values) > 15 * min(values)
    for index, key in enumerate(ARMS):
        where = np.arange(len(times)) + (index - 0.5) * 0.36
        heights = [best[key] for best in times.values()]
        bars = axes.bar(where, heights, 0.34, color=colours[key], label=ARMS[key])
        axes.bar_label(bars, fmt="%.3g", padding=2)
    # Head room for the legend. A bar on a logarithmic axis needs a foot of its own.
    axes.set_ylim(0, 1.35 * max(values))
    if log:
        axes.set_yscale("log")
        axes.set_ylim(min(values) / 2, 6 * max(values))
    axes.set_xticks(range(len(times)), list(times))
    unit = "ms per training step" + (" (log scale)" if log else "")
    axes.set_title(unit, loc="left", weight="bold")
    axes.legend(frameon=False, loc="upper left", ncols=2)

    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)


def closing(
    differences: np.ndarray,
    first_gradient: float,
    times: dict[str, dict[str, float]],
    quality: dict[str, float],
) -> str:
    """What was shown, in plain words."""
    worst = differences.max()
    speeds = "; ".join(
        f"in {dtype} a step took {best['ours']:.1f} ms with convtbw and {best['torch']:.1f} ms "
        "with torch"
        for dtype, best in times.items()
    )
    if max(worst, first_gradient) > TOLERANCE:
        return (
            f"The two arms did NOT train alike: their losses came to differ by {worst:.1e}, their "
            f"first gradients by {first_gradient:.1e} (tolerance {TOLERANCE:g}). {speeds}."
        )
    return (
        f"The same network trained twice, by torch's convolutions and by convtbw's with their own "
        f"gradients, learned the same thing: over {len(differences)} steps the losses never "
        f"differed by more than {worst:.1e} of their value. From {3 * PATCH**2 // LATENT} times "
        f"fewer numbers both give back parts of the photographs that they never saw, at "
        f"{quality['torch']:.2f} dB (torch) and {quality['ours']:.2f} dB (convtbw). "
        f"{speeds[0].upper()}{speeds[1:]}."
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="torch_ops.demo", description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=500, help="training steps (default 500)")
    parser.add_argument("--out", type=Path, default=Path("build/demo.png"), help="the figure")
    parser.add_argument("--threads", type=int, help="threads of torch's pool (default: torch's)")
    parser.add_argument("--seed", type=int, default=0, help="of parameters and batches")
    parser.add_argument("--channels-last", action="store_true", help="channels_last images")
    options = parser.parse_args(argv)
    if options.steps < 1:
        parser.error("--steps must be at least 1")
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)

    arms = {
        "torch": Arm(autoencoder(nn.Conv2d, nn.ConvTranspose2d)),
        "ours": Arm(autoencoder(Convolution, ConvTranspose)),
    }
    arms["ours"].model.load_state_dict(arms["torch"].model.state_dict())
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)  # a log
    header(torch.get_num_threads(), arms["ours"].model, console)

    photos = photographs()
    squares = held_out_squares(photos)
    if options.channels_last:
        photos = photos.contiguous(memory_format=torch.channels_last)  # and so every batch
    batch = training_batch(photos, torch.Generator().manual_seed(options.seed))
    first_gradient = gradient_difference(arms, batch)
    train(arms, photos, options.steps, options.seed, console)
    differences = relative_differences(arms)
    console.print(loss_table(arms, differences, first_gradient))

    times, rows = {}, {}
    for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
        timed = {key: arm.to(dtype) for key, arm in arms.items()}  # copies
        times[name] = step_times(timed, batch.to(dtype))
        rows[name] = served_by(timed["ours"].model, batch.to(dtype))
    console.print(time_table(times))
    console.print(backend_table(rows))

    quality = {key: psnr(arm, squares) for key, arm in arms.items()}
    draw(options.out, arms, photos, squares[:3], differences, times)
    console.print(f"Figure: {options.out}")
    console.print(closing(differences, first_gradient, times, quality))
    return int(max(differences.max(), first_gradient) > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
