"""The mission: transposed convolution with all of its gradients, from `torch.ops.convtbw` alone."""

import torch
import torch.nn.functional as F

import torch_ops  # noqa: F401  registers torch.ops.convtbw


def test_transposed_convolution_and_its_gradients_from_the_operators_alone() -> None:
    torch.manual_seed(0)
    ops = torch.ops.convtbw
    src = torch.randn(2, 4, 3, 4, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(4, 3, 3, 2, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(6, dtype=torch.float64, requires_grad=True)
    attributes = {
        "strides": [2, 2], "pads_begin": [1, 0], "pads_end": [1, 0], "dilations": [1, 2],
        "groups": 2, "data_format": "NCX", "weights_format": "IOX",
    }  # fmt: skip

    def transposed(src: torch.Tensor, weights: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return ops.conv_transpose(src, weights, bias, **attributes, output_padding=[1, 0])

    expected = F.conv_transpose2d(
        src, weights, bias, stride=2, padding=(1, 0), output_padding=(1, 0), groups=2,
        dilation=(1, 2),
    )  # fmt: skip
    actual = transposed(src, weights, bias)
    torch.testing.assert_close(actual, expected)

    # The gradients that PyTorch computes: by autograd, and by calling the operators.
    diff_dst = torch.randn_like(expected)
    by_pytorch = torch.autograd.grad(expected, (src, weights, bias), diff_dst)
    by_autograd = torch.autograd.grad(actual, (src, weights, bias), diff_dst)
    by_operators = (
        ops.conv_transpose_backward_data(
            diff_dst, weights, **attributes, output_padding=[1, 0]
        ),
        ops.conv_transpose_backward_weights(
            src, diff_dst, **attributes, output_padding=[1, 0],
            weights_shape=list(weights.shape),
        ),
        diff_dst.sum((0, 2, 3)),
    )  # fmt: skip
    for expected_gradient, *gradients in zip(by_pytorch, by_autograd, by_operators, strict=True):
        for gradient in gradients:
            torch.testing.assert_close(gradient, expected_gradient)

    assert torch.autograd.gradcheck(transposed, (src, weights, bias), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(transposed, (src, weights, bias))
