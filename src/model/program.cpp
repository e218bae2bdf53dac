#include "model/program.h"

#include <fmt/format.h>

namespace lily {

std::vector<Step> make_program(const Shape& shape) {
  std::vector<Step> steps;
  steps.reserve(2 * shape.layers + 2);
  steps.push_back({StepKind::embed, 0});
  for (uint16_t layer = 0; layer < shape.layers; ++layer) {
    steps.push_back({shape.is_attention(layer) ? StepKind::attention : StepKind::delta_net, layer});
    steps.push_back({StepKind::moe, layer});
  }
  steps.push_back({StepKind::head, 0});
  return steps;
}

std::vector<Step> make_mtp_program() {
  return {{StepKind::attention, 0}, {StepKind::moe, 0}, {StepKind::head, 0}};
}

std::string to_string(const Step& step) {
  switch (step.kind) {
    case StepKind::embed:
      return "embed";
    case StepKind::head:
      return "head";
    case StepKind::delta_net:
      return fmt::format("layer {} delta_net", step.layer);
    case StepKind::attention:
      return fmt::format("layer {} attention", step.layer);
    case StepKind::moe:
      return fmt::format("layer {} moe", step.layer);
  }
  return "unknown step";
}

}  // namespace lily
