// Mixture of experts: each row with its nine paths for few rows; for many, tiles of the rows of each expert.
#include <array>

#include "backends/metal/kernel_args.h"
#include "backends/metal/workspace.h"

namespace lily::metal {

void DeviceModel::moe(Commands& commands, uint32_t layer, const Batch& batch, const PassViews& pass) {
  const MoeLayer& of = layers_[layer].moe;
  const Shape& s = plan_.shape;
  const Workspace& w = *space_;
  const std::array<std::pair<const Linear*, Rows>, 2> products{
      {{&of.router, Rows::to(View(w.router), s.experts + 1)},
       {&of.shared_gate, Rows::to(View(w.router).from(s.experts * sizeof(float)), s.experts + 1)}}};
  enter(commands, products, batch, of.post_norm);
  const size_t row = kTopExperts * sizeof(uint32_t);
  const View chosen =
      pass.experts.part((size_t{layer} * plan_.max_rows + batch.first_row) * row, batch.rows * row);
  launch(commands, kernels_->route, {View(w.router), chosen, View(w.weights)},
         RouteArgs{s.experts, batch.rows}, {batch.rows}, 32);
  commands.barrier();
  if (batch.many) {
    experts_many(commands, of, batch, chosen);
  } else {
    experts_few(commands, of, batch, chosen);
  }
  commands.barrier();
}

void DeviceModel::experts_few(Commands& commands, const MoeLayer& layer, const Batch& batch,
                              const View& chosen) {
  const Shape& s = plan_.shape;
  const Workspace& w = *space_;
  const View stream = rows_of(stream_, batch);
  ExpertArgs args{s.hidden, s.expert_ffn, batch.rows, 0};
  launch(commands, layer.few_enter,
         {layer.gate.codes, layer.gate.scales, layer.gate.biases, layer.up.codes, layer.up.scales,
          layer.up.biases, stream, layer.post_norm, chosen, View(w.inner)},
         args, {groups_for(s.expert_ffn, kExpertOutputs), kTopExperts, batch.rows}, 256);
  args.first_path = kTopExperts;
  launch(commands, layer.few_enter_shared,
         {layer.shared_gate_proj.codes, layer.shared_gate_proj.scales, layer.shared_gate_proj.biases,
          layer.shared_up.codes, layer.shared_up.scales, layer.shared_up.biases, stream, layer.post_norm,
          chosen, View(w.inner)},
         args, {groups_for(s.shared_ffn, kExpertOutputs), 1, batch.rows}, 256);
  commands.barrier();
  launch(commands, layer.few_leave,
         {layer.down.codes, layer.down.scales, layer.down.biases, layer.shared_down.codes,
          layer.shared_down.scales, layer.shared_down.biases, View(w.inner), chosen, View(w.weights), stream},
         args, {groups_for(s.hidden, kExpertOutputs), batch.rows}, 256);
}

void DeviceModel::experts_many(Commands& commands, const MoeLayer& layer, const Batch& batch,
                               const View& chosen) {
  const Shape& s = plan_.shape;
  const Workspace& w = *space_;
  const uint32_t uses = batch.rows * kTopExperts;
  // No more tiles than this, whatever the router chose: groups without a tile end at once.
  const uint32_t tiles = uses / kTileRows + s.experts;
  const uint32_t row_tiles = groups_for(batch.rows, kTileRows);
  const GroupArgs group{s.experts, batch.rows};
  launch(commands, kernels_->group_count, {chosen, View(w.counts)}, group, {s.experts / 8}, 256);
  commands.barrier();
  launch(commands, kernels_->group_scatter,
         {chosen, View(w.counts), View(w.uses), View(w.places), View(w.tiles)}, group, {s.experts / 8}, 256);
  commands.barrier();
  const size_t inner = size_t{s.expert_ffn} * sizeof(float);
  const size_t result = size_t{s.hidden} * sizeof(float);
  const ExpertArgs args{s.hidden, s.expert_ffn, batch.rows, 0};
  const View shared_inner = View(w.inner).part(uses * inner, batch.rows * inner);
  launch(commands, layer.many_enter,
         {layer.gate.codes, layer.gate.scales, layer.gate.biases, layer.up.codes, layer.up.scales,
          layer.up.biases, View(w.normed), View(w.uses), View(w.tiles), View(w.inner).part(0, uses * inner)},
         args, {groups_for(s.expert_ffn, kTileOutputs), tiles}, 128);
  launch(commands, layer.many_enter_shared,
         {layer.shared_gate_proj.codes, layer.shared_gate_proj.scales, layer.shared_gate_proj.biases,
          layer.shared_up.codes, layer.shared_up.scales, layer.shared_up.biases, View(w.normed), View(w.uses),
          View(w.tiles), shared_inner},
         args, {groups_for(s.shared_ffn, kTileOutputs), row_tiles}, 128);
  commands.barrier();
  const ProjectArgs down{s.hidden, s.expert_ffn, batch.rows, s.expert_ffn, s.hidden};
  launch(commands, layer.many_leave,
         {layer.down.codes, layer.down.scales, layer.down.biases, View(w.inner).part(0, uses * inner),
          View(w.results).part(0, uses * result), View(w.tiles)},
         down, {groups_for(s.hidden, kTileOutputs), tiles}, 128);
  launch(commands, layer.many_leave_shared,
         {layer.shared_down.codes, layer.shared_down.scales, layer.shared_down.biases, shared_inner,
          View(w.results).part(uses * result, batch.rows * result), View(w.tiles)},
         down, {groups_for(s.hidden, kTileOutputs), row_tiles}, 128);
  commands.barrier();
  launch(commands, kernels_->combine_experts,
         {View(w.results), View(w.places), View(w.weights), rows_of(stream_, batch)},
         CombineArgs{s.hidden, batch.rows}, {groups_for(s.hidden, 1024), batch.rows}, 256);
}

}  // namespace lily::metal
