// Gated grouped-query attention over pages of keys and values.
#include <array>

#include "backends/metal/kernel_args.h"
#include "backends/metal/workspace.h"

namespace lily::metal {

void DeviceModel::attention(Commands& commands, uint32_t layer, const Batch& batch, const PassViews& pass) {
  const auto& of = std::get<AttentionLayer>(layers_[layer].mixer);
  const Shape& s = plan_.shape;
  const Workspace& w = *space_;
  const std::array<std::pair<const Linear*, Rows>, 3> products{
      {{&of.q, Rows::to(View(w.mixed), 2 * s.q_width())},
       {&of.k, Rows::to(View(w.keys), s.kv_width())},
       {&of.v, Rows::to(View(w.values), s.kv_width())}}};
  enter(commands, products, batch, of.input_norm);
  const auto args_of = [&](const Segment& segment) {
    return AttendArgs{s.q_heads, s.kv_heads, of.index, s.attention_layers(), segment.rows, segment.position};
  };
  const auto rows_part = [&](const View& rows, const Segment& segment, size_t floats) {
    const size_t row = floats * sizeof(float);
    return rows.part((segment.first_row - batch.first_row) * row, segment.rows * row);
  };
  const auto queries = [&](const Segment& segment) {
    return rows_part(View(w.mixed), segment, 2 * size_t{s.q_width()});
  };
  const size_t part_floats = size_t{s.kv_heads} * kAttendParts * kGroupHeads * kPartFloats;
  for (const Segment& segment : batch.segments) {
    const size_t turn = 2 * kRotaryHalf * sizeof(float);
    launch(commands, kernels_->attend_prepare,
           {queries(segment), rows_part(View(w.keys), segment, s.kv_width()),
            rows_part(View(w.values), segment, s.kv_width()), of.q_norm, of.k_norm,
            pass.turns.part(segment.first_row * turn, segment.rows * turn), pass.pages, segment.table},
           args_of(segment), {groups_for(s.q_heads + 2 * s.kv_heads, 8), segment.rows}, 256);
  }
  commands.barrier();
  for (const Segment& segment : batch.segments) {
    if (batch.many) {
      launch(commands, kernels_->attend_many,
             {queries(segment), pass.pages, segment.table, rows_part(View(w.heads), segment, s.q_width())},
             args_of(segment), {s.kv_heads, groups_for(segment.rows, kQueryTokens)}, 256);
      continue;
    }
    const uint32_t context = segment.position + segment.rows;
    const uint32_t parts = std::min(groups_for(context, kAttendTokens), kAttendParts);
    launch(commands, kernels_->attend,
           {queries(segment), pass.pages, segment.table, rows_part(View(w.parts), segment, part_floats)},
           args_of(segment), {s.kv_heads, parts, segment.rows}, 256);
  }
  commands.barrier();
  if (!batch.many) {
    for (const Segment& segment : batch.segments) {
      launch(commands, kernels_->attend_combine,
             {queries(segment), rows_part(View(w.parts), segment, part_floats),
              rows_part(View(w.heads), segment, s.q_width())},
             args_of(segment), {s.q_heads, segment.rows}, 256);
    }
    commands.barrier();
  }
  const Rows out{.x = View(w.heads),
                 .y = rows_of(stream_, batch),
                 .count = batch.rows,
                 .x_stride = s.q_width(),
                 .y_stride = s.hidden};
  if (batch.many) {
    project_many(commands, of.out, out);
  } else {
    project(commands, of.out, out, of.input_norm);
  }
  commands.barrier();
}

}  // namespace lily::metal
