// Trains a small generator: codes of 8 numbers become images of 16 x 16 pixels. Python with the
// same operators and the same seed prints the same losses (tests/test_libtorch.py).
#include <convtbw/convtbw.h>
#include <torch/nn/module.h>
#include <torch/optim/adam.h>

#include <iomanip>
#include <iostream>

namespace {

// Doubles the extents: kernel 4, stride 2, one pixel of padding.
const convtbw::ConvTransposeAttributes kDouble{.strides = {2, 2},
                                               .pads_begin = {1, 1},
                                               .pads_end = {1, 1},
                                               .dilations = {1, 1},
                                               .data_format = "NCX",
                                               .weights_format = "IOX"};

struct Generator : torch::nn::Module {
  Generator() {
    const std::vector<int64_t> channels{8, 16, 16, 1};
    for (size_t layer = 0; layer + 1 < channels.size(); ++layer) {
      const std::string name = std::to_string(layer);
      weights.push_back(register_parameter(
          "weights" + name, 0.1 * torch::randn({channels[layer], channels[layer + 1], 4, 4})));
      biases.push_back(register_parameter("bias" + name, torch::zeros({channels[layer + 1]})));
    }
  }

  // codes: (N, 8, 2, 2).
  at::Tensor forward(at::Tensor codes) {
    at::Tensor image = codes;
    for (size_t layer = 0; layer < weights.size(); ++layer) {
      if (layer) image = image.relu();
      image = convtbw::conv_transpose(image, weights[layer], biases[layer], kDouble);
    }
    return image.tanh();
  }

  std::vector<at::Tensor> weights, biases;
};

// A disc on dark ground for each image, of another radius and place.
at::Tensor discs(int64_t count) {
  const at::Tensor pixel = torch::arange(16, torch::kFloat);
  const at::Tensor index = torch::arange(count, torch::kFloat).view({count, 1, 1, 1});
  const at::Tensor y = pixel.view({16, 1}) - 4 - index, x = pixel - 11 + index;
  return torch::where(y.square() + x.square() < (3 + index / 2).square(), 0.8, -0.8);
}

}  // namespace

int main() {
  torch::manual_seed(0);
  Generator generator;
  const at::Tensor codes = torch::randn({8, 8, 2, 2}), images = discs(8);
  torch::optim::Adam optimizer(generator.parameters(), 0.01);

  std::cout << std::setprecision(9);
  for (int step = 0; step <= 100; ++step) {
    const at::Tensor loss = (generator.forward(codes) - images).square().mean();
    if (step % 10 == 0) std::cout << "step " << step << " loss " << loss.item<float>() << std::endl;
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
  }
}
