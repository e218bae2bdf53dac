// The order of the blocks, written once. A backend walks it; between two steps only the residual stream
// passes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/shape.h"

namespace lily {

enum class StepKind : uint8_t {
  embed,      // token id -> residual stream
  delta_net,  // h += delta_net(norm(h))
  attention,  // h += attention(norm(h))
  moe,        // h += experts(norm(h)) + shared expert
  head,       // logits = lm_head(norm(h)), for the wanted rows
};

struct Step {
  StepKind kind;
  uint16_t layer;  // 0 for embed and head
};

// embed, (delta_net | attention, moe) for each layer, head.
std::vector<Step> make_program(const Shape& shape);

// The draft of one token further: attention and moe of the MTP layer, then the shared head. Its input, the
// projection of [norm(embedding) | norm(hidden)], is made by the caller of the program.
std::vector<Step> make_mtp_program();

// "layer 3 attention", "embed", "head".
std::string to_string(const Step& step);

}  // namespace lily
