#include "backends/metal/model.h"

#include <algorithm>
#include <cmath>

#include "backends/metal/kernel_args.h"
#include "backends/metal/workspace.h"

namespace lily::metal {

// Puts every tensor of a checkpoint into a Residency and says where its view goes.
struct Wiring {
  Residency& residency;

  void linear(const AffineMatrix& weights, Linear& to) const { residency.add(weights, to.matrix); }
  void mixer(const DeltaNetWeights& w, DeltaNetLayer& to) const {
    linear(w.in_proj_qkv, to.qkv);
    linear(w.in_proj_z, to.z);
    linear(w.in_proj_a, to.a);
    linear(w.in_proj_b, to.b);
    linear(w.out_proj, to.out);
    residency.add(w.input_norm.to_floats(), to.input_norm);
    residency.add(w.conv1d.to_floats(), to.taps);
    std::vector<float> rates = w.a_log.to_floats();
    std::transform(rates.begin(), rates.end(), rates.begin(), [](float x) { return std::exp(x); });
    residency.add(std::move(rates), to.rates);
    residency.add(w.dt_bias.to_floats(), to.dt_bias);
    residency.add(w.norm.to_floats(), to.norm);
  }
  void mixer(const AttentionWeights& w, AttentionLayer& to) const {
    linear(w.q_proj, to.q);
    linear(w.k_proj, to.k);
    linear(w.v_proj, to.v);
    linear(w.o_proj, to.out);
    residency.add(w.input_norm.to_floats(), to.input_norm);
    residency.add(w.q_norm.to_floats(), to.q_norm);
    residency.add(w.k_norm.to_floats(), to.k_norm);
  }
  void moe(const MoeWeights& w, MoeLayer& to) const {
    linear(w.router, to.router);
    linear(w.shared_gate, to.shared_gate);
    residency.add(w.gate, to.gate);
    residency.add(w.up, to.up);
    residency.add(w.down, to.down);
    residency.add(w.shared_gate_proj, to.shared_gate_proj);
    residency.add(w.shared_up_proj, to.shared_up);
    residency.add(w.shared_down_proj, to.shared_down);
    residency.add(w.post_norm.to_floats(), to.post_norm);
  }
  void layer(const LayerWeights& w, uint32_t index, Layer& to) const {
    if (const auto* delta = std::get_if<DeltaNetWeights>(&w.mixer)) {
      mixer(*delta, to.mixer.emplace<DeltaNetLayer>());
      std::get<DeltaNetLayer>(to.mixer).index = index - index / Shape::kAttentionInterval;
    } else {
      mixer(std::get<AttentionWeights>(w.mixer), to.mixer.emplace<AttentionLayer>());
      std::get<AttentionLayer>(to.mixer).index = index / Shape::kAttentionInterval;
    }
    moe(w.moe, to.moe);
  }
  void model(const ModelWeights& w, DeviceModel& to) const {
    residency.add(w.embed.table, to.table_);
    to.layers_.resize(w.layers.size());
    for (uint32_t i = 0; i < w.layers.size(); ++i) {
      layer(w.layers[i], i, to.layers_[i]);
    }
    residency.add(w.head.norm.to_floats(), to.final_norm_);
    linear(w.head.lm_head, to.lm_head_);
  }
};

// ---- Sizes ----------------------------------------------------------------------------------------------
uint64_t DeviceModel::delta_bytes(const Shape& shape) {
  return uint64_t{shape.v_heads} * Shape::kKeyDim * Shape::kValueDim * sizeof(float);
}
uint64_t DeviceModel::conv_bytes(const Shape& shape) {
  return uint64_t{Shape::kConvKernel - 1} * shape.conv_channels() * sizeof(float);
}
uint64_t DeviceModel::recurrent_bytes(const Shape& shape) {
  return shape.delta_net_layers() * (delta_bytes(shape) + conv_bytes(shape));
}

uint32_t DeviceModel::Workspace::batch_rows(const Plan& plan) {
  return std::max(kSmallRows, std::min(plan.chunk, kPieceRows));
}

std::vector<DeviceModel::Workspace::Sized> DeviceModel::Workspace::sizes(const Plan& plan) {
  const Shape& s = plan.shape;
  const uint64_t rows = batch_rows(plan);
  const uint64_t many = plan.chunk > kSmallRows ? rows : 1;  // what the kernels for many rows need
  const uint64_t chunks = many / kDeltaChunk + 2;
  const uint64_t of_chunks = chunks * s.v_heads * kDeltaChunk;
  const uint64_t tiles = many * kTopExperts / kTileRows + s.experts;
  using W = Workspace;
  std::vector<Sized> sizes{
      {&W::mixed, "mixed", rows * std::max(s.conv_channels(), 2 * s.q_width())},
      {&W::z, "z", rows * s.value_width()},
      {&W::ab, "a and b", rows * 2 * s.v_heads},
      {&W::keys, "keys of a batch", rows * s.kv_width()},
      {&W::values, "values of a batch", rows * s.kv_width()},
      {&W::heads, "heads", rows * std::max(s.value_width(), s.q_width())},
      {&W::parts, "parts of attention",
       uint64_t{kSmallRows} * s.kv_heads * kAttendParts * kGroupHeads * kPartFloats},
      {&W::router, "router logits", rows * (s.experts + 1)},
      {&W::weights, "weights of experts", rows * kPaths},
      {&W::inner, "inner values of experts", rows * kPaths * s.expert_ffn},
      {&W::head_in, "rows of the head", uint64_t{kHeadRows} * s.hidden},
      {&W::normed, "normed rows", many * s.hidden},
      {&W::qkv, "q, k and v", many * s.conv_channels()},
      {&W::u, "u", of_chunks * kDeltaSize},
      {&W::w, "w", of_chunks * kDeltaSize},
      {&W::q, "q of chunks", of_chunks * kDeltaSize},
      {&W::k, "k of chunks", of_chunks * kDeltaSize},
      {&W::out, "output of chunks", of_chunks * kDeltaSize},
      {&W::p, "scores of chunks", of_chunks * kDeltaChunk},
      {&W::decays, "decays of chunks", chunks * s.v_heads},
      {&W::counts, "uses of experts", s.experts},
      {&W::uses, "uses", many * kTopExperts},
      {&W::places, "places of uses", many * kTopExperts},
      {&W::tiles, "tiles of experts", 1 + 3 * tiles},
      {&W::results, "results of experts", many * kPaths * s.hidden},
  };
  for (Sized& sized : sizes) {
    sized.bytes *= sizeof(float);
  }
  return sizes;
}

MemoryNeed DeviceModel::estimate(const ModelWeights& weights, const Plan& plan, Mappings mappings,
                                 const Traits& traits) {
  DeviceModel model(plan, nullptr);
  Wiring{model.residency_}.model(weights, model);
  const Residency::Need residency = model.residency_.need(mappings, traits);
  MemoryNeed need;
  need.weights = residency.copied;
  need.mapped = residency.mapped;
  need.workspace =
      sizeof(float) * (uint64_t{plan.max_rows} * plan.shape.hidden + uint64_t{kHeadRows} * plan.shape.vocab);
  for (const Workspace::Sized& sized : Workspace::sizes(plan)) {
    need.workspace += sized.bytes;
  }
  return need;
}

// ---- Loading --------------------------------------------------------------------------------------------
DeviceModel::DeviceModel(const Plan& plan, std::unique_ptr<Pipelines> pipelines)
    : plan_(plan),
      pipelines_(std::move(pipelines)),
      space_(std::make_unique<Workspace>()),
      kernels_(std::make_unique<Kernels>()) {}
DeviceModel::~DeviceModel() = default;

Result<std::unique_ptr<DeviceModel>> DeviceModel::load(Device& device, const ModelWeights& weights,
                                                       const Plan& plan, Mappings mappings,
                                                       FunctionRef<void(double)> progress) {
  LILY_TRY(std::unique_ptr<Pipelines> pipelines, Pipelines::open(device));
  std::unique_ptr<DeviceModel> model(new DeviceModel(plan, std::move(pipelines)));
  Wiring{model->residency_}.model(weights, *model);
  LILY_TRY_VOID(model->make_kernels(weights));
  LILY_TRY_VOID(model->residency_.load(device, mappings, progress));
  LILY_TRY_VOID(model->allocate(device));
  return model;
}

Result<void> DeviceModel::allocate(Device& device) {
  LILY_TRY(stream_, device.buffer(size_t{plan_.max_rows} * plan_.shape.hidden * sizeof(float), "stream"));
  LILY_TRY(logits_, device.buffer(size_t{kHeadRows} * plan_.shape.vocab * sizeof(float), "logits"));
  for (const Workspace::Sized& sized : Workspace::sizes(plan_)) {
    LILY_TRY(space_.get()->*sized.buffer, device.buffer(sized.bytes, sized.name));
  }
  return {};
}

Result<void> DeviceModel::make_linear(const AffineMatrix& weights, Use use, Linear& linear) {
  const auto [bits, group, kind] = format_of(weights);
  const bool normed = use == Use::normed;
  const char* const names[3] = {"project_1", "project_2", "project_4"};
  for (size_t i = 0; i < 3; ++i) {
    LILY_TRY(linear.few[i], pipelines_->get({"project", names[i], {bits, group, kind, normed, !normed}}));
  }
  LILY_TRY(linear.many,
           pipelines_->get({"prefill_product", "tile_product", {bits, group, kind, false, !normed}, 128}));
  return {};
}

Result<void> DeviceModel::make_moe_kernels(const MoeWeights& weights, MoeLayer& layer) {
  LILY_TRY_VOID(make_linear(weights.router, Use::normed, layer.router));
  LILY_TRY_VOID(make_linear(weights.shared_gate, Use::normed, layer.shared_gate));
  const auto few = [&](const char* kernel, const AffineMatrix& one, const AffineMatrix& other) {
    const MatrixFormat a = format_of(one);
    const MatrixFormat b = format_of(other);
    return pipelines_->get(
        {"experts", kernel, {a.bits, a.group, a.scale_kind, b.bits, b.group, b.scale_kind}});
  };
  const auto many = [&](const AffineMatrix& gate, const AffineMatrix& up, bool grouped) {
    const MatrixFormat a = format_of(gate);
    const MatrixFormat b = format_of(up);
    return pipelines_->get({"prefill_experts",
                            "tile_gate_up",
                            {a.bits, a.group, a.scale_kind, b.bits, b.group, b.scale_kind, grouped},
                            128});
  };
  const auto leave = [&](const AffineMatrix& down, bool grouped) {
    const auto [bits, group, kind] = format_of(down);
    return pipelines_->get({"prefill_product", "tile_product", {bits, group, kind, grouped, false}, 128});
  };
  LILY_TRY(layer.few_enter, few("gate_up", weights.gate, weights.up));
  LILY_TRY(layer.few_enter_shared, few("gate_up", weights.shared_gate_proj, weights.shared_up_proj));
  LILY_TRY(layer.few_leave, few("down", weights.down, weights.shared_down_proj));
  LILY_TRY(layer.many_enter, many(weights.gate, weights.up, true));
  LILY_TRY(layer.many_enter_shared, many(weights.shared_gate_proj, weights.shared_up_proj, false));
  LILY_TRY(layer.many_leave, leave(weights.down, true));
  LILY_TRY(layer.many_leave_shared, leave(weights.shared_down_proj, false));
  return {};
}

Result<void> DeviceModel::make_layer_kernels(const LayerWeights& weights, Layer& layer) {
  if (const auto* w = std::get_if<DeltaNetWeights>(&weights.mixer)) {
    auto& to = std::get<DeltaNetLayer>(layer.mixer);
    LILY_TRY_VOID(make_linear(w->in_proj_qkv, Use::normed, to.qkv));
    LILY_TRY_VOID(make_linear(w->in_proj_z, Use::normed, to.z));
    LILY_TRY_VOID(make_linear(w->in_proj_a, Use::normed, to.a));
    LILY_TRY_VOID(make_linear(w->in_proj_b, Use::normed, to.b));
    LILY_TRY_VOID(make_linear(w->out_proj, Use::added, to.out));
  } else {
    const auto& from = std::get<AttentionWeights>(weights.mixer);
    auto& to = std::get<AttentionLayer>(layer.mixer);
    LILY_TRY_VOID(make_linear(from.q_proj, Use::normed, to.q));
    LILY_TRY_VOID(make_linear(from.k_proj, Use::normed, to.k));
    LILY_TRY_VOID(make_linear(from.v_proj, Use::normed, to.v));
    LILY_TRY_VOID(make_linear(from.o_proj, Use::added, to.out));
  }
  return make_moe_kernels(weights.moe, layer.moe);
}

Result<void> DeviceModel::make_kernels(const ModelWeights& weights) {
  table_format_ = format_of(weights.embed.table);
  for (size_t i = 0; i < layers_.size(); ++i) {
    LILY_TRY_VOID(make_layer_kernels(weights.layers[i], layers_[i]));
  }
  LILY_TRY_VOID(make_linear(weights.head.lm_head, Use::normed, lm_head_));
  Kernels& k = *kernels_;
  LILY_TRY(k.embed, pipelines_->get({"stream", "embed"}));
  LILY_TRY(k.norm_rows, pipelines_->get({"stream", "norm_rows"}));
  LILY_TRY(k.gather_rows, pipelines_->get({"stream", "gather_rows"}));
  LILY_TRY(k.copy_floats, pipelines_->get({"stream", "copy_floats"}));
  LILY_TRY(k.delta_step, pipelines_->get({"delta_step", "delta_step", {}, 512}));
  LILY_TRY(k.conv_update, pipelines_->get({"delta_step", "conv_update"}));
  LILY_TRY(k.attend_prepare, pipelines_->get({"attention", "attend_prepare"}));
  LILY_TRY(k.attend, pipelines_->get({"attention", "attend"}));
  LILY_TRY(k.attend_combine, pipelines_->get({"attention", "attend_combine"}));
  LILY_TRY(k.attend_many, pipelines_->get({"prefill_attention", "attend_many"}));
  LILY_TRY(k.chunk_conv, pipelines_->get({"prefill_delta", "chunk_conv"}));
  LILY_TRY(k.chunk_pairs, pipelines_->get({"prefill_delta", "chunk_pairs"}));
  LILY_TRY(k.chunk_scan, pipelines_->get({"prefill_delta", "chunk_scan"}));
  LILY_TRY(k.chunk_finish, pipelines_->get({"prefill_delta", "chunk_finish"}));
  // Kernels beside those of a format in one library: their constants are not looked at.
  const uint32_t any = 4;
  LILY_TRY(k.route, pipelines_->get({"experts", "route", {any, 64U, 0U, any, 64U, 0U}, 32}));
  LILY_TRY(k.group_count,
           pipelines_->get({"prefill_experts", "group_count", {any, 64U, 0U, any, 64U, 0U, true}}));
  LILY_TRY(k.group_scatter,
           pipelines_->get({"prefill_experts", "group_scatter", {any, 64U, 0U, any, 64U, 0U, true}}));
  LILY_TRY(k.combine_experts,
           pipelines_->get({"prefill_experts", "combine_experts", {any, 64U, 0U, any, 64U, 0U, true}}));
  return {};
}

// ---- Products -------------------------------------------------------------------------------------------
View DeviceModel::rows_of(const std::unique_ptr<Buffer>& stream, const Batch& batch) const {
  const size_t row = size_t{plan_.shape.hidden} * sizeof(float);
  return View(stream).part(batch.first_row * row, batch.rows * row);
}

void DeviceModel::project(Commands& commands, const Linear& linear, const Rows& rows,
                          const View& norm) const {
  const uint32_t kind = rows.count == 1 ? 0 : rows.count == 2 ? 1 : 2;
  const uint32_t each = 1U << kind;
  const ProjectArgs args{linear.matrix.rows, linear.matrix.cols, rows.count, rows.x_stride, rows.y_stride};
  launch(commands, linear.few[kind],
         {linear.matrix.codes, linear.matrix.scales, linear.matrix.biases, rows.x, norm, rows.y}, args,
         {groups_for(linear.matrix.rows, kProjectOutputs), groups_for(rows.count, each)}, 256);
}

void DeviceModel::project_many(Commands& commands, const Linear& linear, const Rows& rows) const {
  const ProjectArgs args{linear.matrix.rows, linear.matrix.cols, rows.count, rows.x_stride, rows.y_stride};
  launch(
      commands, linear.many,
      {linear.matrix.codes, linear.matrix.scales, linear.matrix.biases, rows.x, rows.y, View(space_->tiles)},
      args, {groups_for(linear.matrix.rows, kTileOutputs), groups_for(rows.count, kTileRows)}, 128);
}

void DeviceModel::norm_rows(Commands& commands, const View& x, const View& weight, uint32_t rows) const {
  launch(commands, kernels_->norm_rows, {x, weight, View(space_->normed)}, NormArgs{rows, plan_.shape.hidden},
         {groups_for(rows, 8)}, 256);
  commands.barrier();
}

void DeviceModel::enter(Commands& commands, std::span<const std::pair<const Linear*, Rows>> products,
                        const Batch& batch, const View& norm) const {
  if (batch.many) {
    norm_rows(commands, rows_of(stream_, batch), norm, batch.rows);
  }
  for (const auto& [linear, rows] : products) {
    Rows of = rows;
    of.count = batch.rows;
    of.x_stride = plan_.shape.hidden;
    if (batch.many) {
      of.x = View(space_->normed);
      project_many(commands, *linear, of);
    } else {
      of.x = rows_of(stream_, batch);
      project(commands, *linear, of, norm);
    }
  }
  commands.barrier();
}

void DeviceModel::copy(Commands& commands, const View& from, const View& to) {
  const auto count = static_cast<uint32_t>(from.bytes / sizeof(float));
  launch(commands, kernels_->copy_floats, {from, to}, CopyArgs{count}, {groups_for(count, 1024)}, 256);
}

}  // namespace lily::metal
