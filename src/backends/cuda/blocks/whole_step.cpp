#include <algorithm>
#include <vector>

#include "backends/cuda/model.h"

namespace lily::cuda {
namespace {

bool is_narrow(const PackedMatrix& w, uint32_t planes) { return w.planes == planes && w.wide == 0; }

StepLayer step_layer(const LayerViews& of, const float* next_norm) {
  StepLayer to{};
  to.router = of.moe.router.tiles;
  to.gate_up = of.moe.gate_up.tiles;
  to.down = of.moe.down.tiles;
  to.post_norm = of.moe.post_norm;
  to.next_norm = next_norm;
  if (const auto* w = std::get_if<DeltaNetLayer>(&of.mixer)) {
    to.in_proj = w->in_proj.tiles;
    to.out_proj = w->out_proj.tiles;
    to.conv = w->conv;
    to.decay_rate = w->decay_rate;
    to.dt_bias = w->dt_bias;
    to.norm = w->norm;
  } else {
    const auto& a = std::get<AttentionLayer>(of.mixer);
    to.in_proj = a.in_proj.tiles;
    to.out_proj = a.out_proj.tiles;
    to.q_norm = a.q_norm;
    to.k_norm = a.k_norm;
  }
  return to;
}

bool takes_formats(const ModelViews& views) {
  return is_narrow(views.lm_head, 1) &&
         std::all_of(views.layers.begin(), views.layers.end(), [](const LayerViews& layer) {
           return std::visit(
                      [](const auto& m) { return is_narrow(m.in_proj, 1) && is_narrow(m.out_proj, 1); },
                      layer.mixer) &&
                  is_narrow(layer.moe.router, 2) && is_narrow(layer.moe.gate_up, 1) &&
                  is_narrow(layer.moe.down, 1);
         });
}

}  // namespace

Result<void> DeviceModel::prepare_whole_step() {
  step_rows_ = 0;
  // Without bulk copies its warps would do little but copy.
  if (kWholeStepRows == 0 || traits_.compute_capability < 90 || !takes_formats(views()) ||
      !step_takes(dims_, traits_.multiprocessors)) {
    return {};
  }
  const auto launch_of = [&](uint32_t r) {
    return StepLaunch{traits_.multiprocessors, step_shared_bytes(dims_, r, traits_.multiprocessors)};
  };
  uint32_t rows = 0;
  for (bool resident = true; resident && rows < std::min(plan_.sequences, kWholeStepRows);) {
    const StepLaunch launch = launch_of(rows + 1);
    resident = launch.shared <= traits_.shared_bytes;
    if (resident) {
      LILY_TRY_VOID(check(prepare_step(dims_, rows + 1, launch, resident), "preparing a whole step"));
    }
    rows += resident ? 1 : 0;
  }
  std::vector<StepLayer> layers;
  for (uint32_t i = 0; i < dims_.layers; ++i) {
    layers.push_back(step_layer(views().layers[i], norm_after_moe(i)));
  }
  LILY_TRY_VOID(
      copy_to_device(step_layers_.bytes(), layers.data(), layers.size() * sizeof(StepLayer), queue_));
  LILY_TRY_VOID(finish(queue_));  // the table goes
  step_rows_ = rows;
  return {};
}

Result<void> DeviceModel::whole_step(const int32_t* ids, const int32_t* const* sampled,
                                     const Segment* segments, const uint32_t* row_segment, uint32_t rows) {
  if (++step_tag_ == 0) {  // all tags were used: no word may have one of them
    LILY_TRY_VOID(clear(step_board_.bytes(), step_board_.size(), queue_));
    step_tag_ = 1;
  }
  const StepArgs args{.dims = dims_,
                      .layers = step_layers_.as<StepLayer>(),
                      .embed = embed_args(ids, sampled, rows),
                      .head = views().lm_head.tiles,
                      .segments = segments,
                      .row_segment = row_segment,
                      .rotary = rotary_.as<float>(),
                      .partial = partial_.as<float>(),
                      .board = step_board_.as<uint64_t>(),
                      .tag = step_tag_,
                      .rows = rows,
                      .logits = logits(),
                      .experts_used = experts_used()};
  static_assert(kStepExpertWords == kExpertWords);
  const StepLaunch launch{traits_.multiprocessors, step_shared_bytes(dims_, rows, traits_.multiprocessors)};
  return check(launch_step(args, launch, queue_), "a whole step");
}

}  // namespace lily::cuda
