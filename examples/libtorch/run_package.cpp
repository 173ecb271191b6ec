// Runs what export_package.py compiled: run_package FOLDER. Descends along the gradients of
// step.pt2, then gives the trained parameters to forward.pt2. The packages call the operators by
// name: convtbw::convtbw loads them, no header is needed.
#include <ATen/ATen.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <iomanip>
#include <iostream>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: run_package FOLDER\n";
    return 2;
  }
  const std::string folder = argv[1];
  torch::inductor::AOTIModelPackageLoader forward(folder + "/forward.pt2");
  torch::inductor::AOTIModelPackageLoader step(folder + "/step.pt2");

  // The names that model.named_parameters() gave them, in its order.
  const std::vector<std::string> names{"0.weight", "0.bias", "2.weight", "2.bias"};
  const auto constants = forward.get_runner()->extract_constants_map(/*use_inactive=*/false);
  std::unordered_map<std::string, at::Tensor> parameters;
  for (const std::string& name : names) parameters[name] = constants.at(name).clone();

  at::manual_seed(0);
  const at::Tensor codes = at::randn({8, 8, 4, 4}), images = at::randn({8, 1, 16, 16}).tanh();

  std::cout << std::setprecision(9);
  for (int i = 0; i <= 50; ++i) {
    std::vector<at::Tensor> inputs{codes, images};
    for (const std::string& name : names) inputs.push_back(parameters[name]);
    const std::vector<at::Tensor> results = step.run(inputs);  // the loss, then each gradient
    if (i % 10 == 0) std::cout << "step " << i << " loss " << results[0].item<float>() << std::endl;
    for (size_t p = 0; p < names.size(); ++p)
      parameters[names[p]].sub_(results[1 + p], /*alpha=*/0.5);
  }

  forward.load_constants(parameters, /*use_inactive=*/false, /*check_full_update=*/true);
  // The batch is free, in forward.pt2.
  for (const int64_t batch : {8, 3}) {
    const at::Tensor outputs = forward.run({codes.slice(0, 0, batch)})[0];
    std::cout << "batch " << batch << " mean square " << outputs.square().mean().item<float>()
              << std::endl;
  }
}
