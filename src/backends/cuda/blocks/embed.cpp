#include "backends/cuda/model.h"

namespace lily::cuda {

Result<void> DeviceModel::embed_to(const StreamArgs& to, const int32_t* ids, const int32_t* const* sampled,
                                   uint32_t rows) {
  const EmbedTable& table = views().embed;
  const EmbedArgs args{.codes = table.codes,
                       .scales = table.scales,
                       .biases = table.biases,
                       .bits = table.bits,
                       .group = table.group,
                       .scale_kind = table.scale_kind,
                       .vocab = dims_.vocab,
                       .ids = ids,
                       .sampled = sampled,
                       .rows = rows,
                       .clear = experts_used(),
                       .clear_count = dims_.layers * kExpertWords,
                       .to = to};
  return check(launch_embed(args, queue_), "the embedding");
}

Result<void> DeviceModel::embed(const int32_t* ids, const int32_t* const* sampled, uint32_t rows) {
  return embed_to(stream_from(0, views().layers[0].input_norm()), ids, sampled, rows);
}

Result<void> DeviceModel::prepare(uint32_t layer, Next next, uint32_t first_row, uint32_t rows) {
  const LayerViews& views_of = views().layers[layer];
  const float* norm = next == Next::mixer ? views_of.input_norm()
                      : next == Next::moe ? views_of.moe.post_norm
                                          : views().final_norm;
  return check(launch_prepare(stream_from(first_row, norm), nullptr, rows, queue_), "the feed of a block");
}

}  // namespace lily::cuda
