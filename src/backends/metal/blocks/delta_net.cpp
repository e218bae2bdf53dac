// Gated DeltaNet: token by token for few rows, in chunks for many.
#include <algorithm>
#include <array>

#include "backends/metal/kernel_args.h"
#include "backends/metal/workspace.h"

namespace lily::metal {
namespace {

// The part of a view of rows that belongs to a segment.
View rows_part(const View& rows, const Segment& segment, const Batch& batch, size_t floats) {
  const size_t row = floats * sizeof(float);
  return rows.part((segment.first_row - batch.first_row) * row, segment.rows * row);
}

struct States {
  View delta, conv;
};
States states_of(const Shape& shape, const Segment& segment, uint32_t index) {
  const uint64_t delta = DeviceModel::delta_bytes(shape);
  const uint64_t conv = DeviceModel::conv_bytes(shape);
  const View layer = segment.recurrent.part(index * (delta + conv), delta + conv);
  return {layer.part(0, delta), layer.part(delta, conv)};
}

}  // namespace

void DeviceModel::delta_net(Commands& commands, uint32_t layer, const Batch& batch) {
  const auto& of = std::get<DeltaNetLayer>(layers_[layer].mixer);
  const Shape& s = plan_.shape;
  const Workspace& w = *space_;
  const std::array<std::pair<const Linear*, Rows>, 4> products{
      {{&of.qkv, Rows::to(View(w.mixed), s.conv_channels())},
       {&of.z, Rows::to(View(w.z), s.value_width())},
       {&of.a, Rows::to(View(w.ab), 2 * s.v_heads)},
       {&of.b, Rows::to(View(w.ab).from(s.v_heads * sizeof(float)), 2 * s.v_heads)}}};
  enter(commands, products, batch, of.input_norm);
  const Rows out{.x = View(w.heads),
                 .y = rows_of(stream_, batch),
                 .count = batch.rows,
                 .x_stride = s.value_width(),
                 .y_stride = s.hidden};
  if (batch.many) {
    delta_many(commands, of, batch);
    commands.barrier();
    project_many(commands, of.out, out);
  } else {
    delta_few(commands, of, batch);
    commands.barrier();
    project(commands, of.out, out, of.input_norm);
  }
  // Beside the output's product: nobody reads these inputs any more.
  for (const Segment& segment : batch.segments) {
    const DeltaArgs args{s.k_heads, s.v_heads, segment.rows, 0, 0};
    launch(
        commands, kernels_->conv_update,
        {rows_part(View(w.mixed), segment, batch, s.conv_channels()), states_of(s, segment, of.index).conv},
        args, {groups_for(s.conv_channels(), 256)}, 256);
  }
  commands.barrier();
}

void DeviceModel::delta_few(Commands& commands, const DeltaNetLayer& layer, const Batch& batch) {
  const Shape& s = plan_.shape;
  const Workspace& w = *space_;
  for (const Segment& segment : batch.segments) {
    const States states = states_of(s, segment, layer.index);
    launch(commands, kernels_->delta_step,
           {rows_part(View(w.mixed), segment, batch, s.conv_channels()), states.conv, layer.taps,
            rows_part(View(w.z), segment, batch, s.value_width()),
            rows_part(View(w.ab), segment, batch, 2 * size_t{s.v_heads}), layer.rates, layer.dt_bias,
            layer.norm, states.delta, rows_part(View(w.heads), segment, batch, s.value_width())},
           DeltaArgs{s.k_heads, s.v_heads, segment.rows, 0, 0}, {s.v_heads}, 512);
  }
}

void DeviceModel::delta_many(Commands& commands, const DeltaNetLayer& layer, const Batch& batch) {
  const Shape& s = plan_.shape;
  const Workspace& w = *space_;
  const Segment& segment = batch.segments[0];
  const States states = states_of(s, segment, layer.index);
  // Chunks begin at multiples of kDeltaChunk of the positions, wherever a prompt is cut into passes.
  const uint32_t first = std::min(segment.rows, kDeltaChunk - segment.position % kDeltaChunk);
  const uint32_t chunks = 1 + groups_for(segment.rows - first, kDeltaChunk);
  const DeltaArgs args{s.k_heads, s.v_heads, segment.rows, chunks, first};
  launch(commands, kernels_->chunk_conv, {View(w.mixed), states.conv, layer.taps, View(w.qkv)}, args,
         {groups_for(2 * s.k_heads + s.v_heads, 8), segment.rows}, 256);
  commands.barrier();
  launch(commands, kernels_->chunk_pairs,
         {View(w.qkv), View(w.ab), layer.rates, layer.dt_bias, View(w.u), View(w.w), View(w.q), View(w.k),
          View(w.p), View(w.decays)},
         args, {s.v_heads, chunks}, 256);
  commands.barrier();
  launch(commands, kernels_->chunk_scan,
         {View(w.u), View(w.w), View(w.q), View(w.k), View(w.p), View(w.decays), states.delta, View(w.out)},
         args, {s.v_heads, kDeltaSize / kDeltaColumns}, 256);
  commands.barrier();
  launch(commands, kernels_->chunk_finish, {View(w.out), View(w.z), layer.norm, View(w.heads)}, args,
         {s.v_heads / 8, segment.rows}, 256);
}

}  // namespace lily::metal
