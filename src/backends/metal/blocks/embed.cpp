// Embedding: rows of the table, of ids that the host gave or that an earlier pass sampled.
#include "backends/metal/kernel_args.h"
#include "backends/metal/workspace.h"

namespace lily::metal {

void DeviceModel::embed(Commands& commands, const View& ids, uint32_t first_row, uint32_t rows) {
  const uint32_t hidden = plan_.shape.hidden;
  const size_t row = size_t{hidden} * sizeof(float);
  launch(
      commands, kernels_->embed,
      {table_.codes, table_.scales, table_.biases, ids, View(stream_).part(first_row * row, rows * row)},
      EmbedArgs{hidden, plan_.shape.vocab, table_format_.bits, table_format_.group, table_format_.scale_kind},
      {groups_for(hidden, 256), rows}, 256);
}

}  // namespace lily::metal
