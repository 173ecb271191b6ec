"""What the recipes' own runs cannot show: that their parts compute what they say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_tensorflow_padding import conv_transpose

import torch_ops

pytest.importorskip("rich", reason="the extra 'examples' is not installed")
pytest.importorskip("sklearn", reason="the extra 'examples' is not installed")

pytestmark = pytest.mark.unforced


@pytest.fixture
def keras_decoder():
    return pytest.importorskip("keras_decoder")


@pytest.fixture
def segmentation():
    pytest.importorskip("nilearn", reason="the extra 'examples' is not installed")
    return pytest.importorskip("segmentation")


def test_tensorflow_computed_what_its_definition_says(keras_decoder) -> None:
    """The decoder in numpy, in double, against the values that TensorFlow left in the file."""
    with np.load(keras_decoder.WEIGHTS) as file:
        weights = {name: file[name].astype(float) for name in file.files}
    layers = {name: weights[f"decoder/{name}/kernel"] for name, _ in keras_decoder.DECODER}
    assert [kernel.shape[0] for kernel in layers.values()] == [5, 4, 3, 3]
    x = weights["reference/latent"] @ weights["decoder/dense/kernel"]
    x = (x + weights["decoder/dense/bias"]).reshape(-1, 4, 4, 64)
    for name, stride in keras_decoder.DECODER:
        size = tuple(stride * extent for extent in x.shape[1:3])
        x = conv_transpose(x.clip(0), layers[name], size, (stride,) * 2, (1, 1), "same")
        x += weights[f"decoder/{name}/bias"]
    np.testing.assert_allclose(x, weights["reference/logits"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("port", ["Port", "TorchPort"])
def test_both_ports_compute_what_tensorflow_does(keras_decoder, port: str) -> None:
    distances = keras_decoder.distances_to_tensorflow(getattr(keras_decoder, port)())
    assert set(distances) >= {"logits", "mean", "gradient/latent"}
    assert max(distances.values()) < keras_decoder.TENSORFLOW


def test_a_shift_by_one_pixel_is_noticed(keras_decoder, monkeypatch) -> None:
    """Half the pads at each end and ``output_padding``: the right size, but not TensorFlow's."""

    def shifted(x, kernel, bias, stride, padding, data_format):
        assert (padding, data_format) == ("same", "NXC")
        total = kernel.shape[-1] - stride
        both, rest = -(-total // 2), total % 2
        return torch.nn.functional.conv_transpose2d(
            x.permute(0, 3, 1, 2), kernel, bias, stride, both, rest
        ).permute(0, 2, 3, 1)

    # Stride 1 has an even total here; 3 and 5 with stride 2 an odd one.
    monkeypatch.setattr(torch_ops.functional, "conv_transpose2d", shifted)
    distances = keras_decoder.distances_to_tensorflow(keras_decoder.Port())
    assert distances["logits"] > 1e3 * keras_decoder.TENSORFLOW


def test_windows_cover_the_volume_and_overlap_by_half(segmentation) -> None:
    for extent in range(8, 40):
        begins = segmentation.windows(extent, 8)
        assert (begins[0], begins[-1]) == (0, extent - 8)
        assert (begins.diff() <= 4).all()


def test_no_patch_reaches_the_held_out_part(segmentation) -> None:
    """The labels say which coronal slice a voxel is of."""
    brain = segmentation.load(segmentation.SMALL.millimetres)
    slices = torch.arange(brain.scan.shape[1])[:, None].expand_as(brain.scan)
    marked = segmentation.Brain(brain.scan, slices * (brain.labels > 0), brain.front)
    patches = segmentation.Patches(marked, segmentation.SMALL)
    seen = torch.cat([patches()[1].flatten() for _ in range(50)])
    assert seen.max() == brain.front - 1
    assert brain.front < brain.scan.shape[1] - 8


def test_the_loss_of_a_perfect_prediction_is_zero(segmentation) -> None:
    labels = torch.randint(len(segmentation.CLASSES), (2, 8, 8, 8))
    perfect = torch.nn.functional.one_hot(labels).movedim(-1, 1) * 100.0
    levels = [perfect, perfect[..., ::2, ::2, ::2]]
    assert segmentation.deeply_supervised(levels, labels).item() == pytest.approx(0, abs=1e-6)
    wrong = [level.roll(1, 1) for level in levels]
    # Dice 0, and a cross-entropy of 100.
    assert segmentation.deeply_supervised(wrong, labels).item() == pytest.approx(101, rel=1e-4)
