// The head: final norm and logits of chosen rows.
#include "backends/metal/kernel_args.h"
#include "backends/metal/workspace.h"

namespace lily::metal {

void DeviceModel::head(Commands& commands, const View& rows, uint32_t count) {
  const uint32_t hidden = plan_.shape.hidden;
  launch(commands, kernels_->gather_rows, {View(stream_), rows, View(space_->head_in)},
         NormArgs{count, hidden}, {groups_for(hidden, 1024), count}, 256);
  commands.barrier();
  project(commands, lm_head_,
          {.x = View(space_->head_in),
           .y = View(logits_),
           .count = count,
           .x_stride = hidden,
           .y_stride = plan_.shape.vocab},
          final_norm_);
  commands.barrier();
}

}  // namespace lily::metal
