#include "backends/cpu/packed_model.h"

#include <map>

#include "backends/host/host_backend.h"
#include "weights/container.h"

namespace lily::cpu {
namespace {

using Visit = FunctionRef<void(MatrixKind, const AffineMatrix&, PackedMatrix&)>;

void for_each_in_layer(const LayerWeights& from, PackedLayer& to, Visit visit) {
  if (const auto* delta = std::get_if<DeltaNetWeights>(&from.mixer)) {
    if (!std::holds_alternative<PackedDeltaNet>(to.mixer)) {
      to.mixer.emplace<PackedDeltaNet>();
    }
    auto& packed = std::get<PackedDeltaNet>(to.mixer);
    visit(MatrixKind::delta_qkv, delta->in_proj_qkv, packed.in_proj_qkv);
    visit(MatrixKind::delta_z, delta->in_proj_z, packed.in_proj_z);
    visit(MatrixKind::delta_gates, delta->in_proj_a, packed.in_proj_a);
    visit(MatrixKind::delta_gates, delta->in_proj_b, packed.in_proj_b);
    visit(MatrixKind::delta_out, delta->out_proj, packed.out_proj);
  } else {
    const auto& attention = std::get<AttentionWeights>(from.mixer);
    if (!std::holds_alternative<PackedAttention>(to.mixer)) {
      to.mixer.emplace<PackedAttention>();
    }
    auto& packed = std::get<PackedAttention>(to.mixer);
    visit(MatrixKind::attention_qkv, attention.q_proj, packed.q_proj);
    visit(MatrixKind::attention_qkv, attention.k_proj, packed.k_proj);
    visit(MatrixKind::attention_qkv, attention.v_proj, packed.v_proj);
    visit(MatrixKind::attention_out, attention.o_proj, packed.o_proj);
  }
  visit(MatrixKind::router, from.moe.router, to.moe.router);
  visit(MatrixKind::router, from.moe.shared_gate, to.moe.shared_gate);
  visit(MatrixKind::gate_up, from.moe.gate, to.moe.gate);
  visit(MatrixKind::gate_up, from.moe.up, to.moe.up);
  visit(MatrixKind::down, from.moe.down, to.moe.down);
  visit(MatrixKind::shared_gate_up, from.moe.shared_gate_proj, to.moe.shared_gate_proj);
  visit(MatrixKind::shared_gate_up, from.moe.shared_up_proj, to.moe.shared_up_proj);
  visit(MatrixKind::shared_down, from.moe.shared_down_proj, to.moe.shared_down_proj);
}

// What the rest of the system and of the process may want to keep.
constexpr uint64_t kOtherMemory = uint64_t{4} << 30;

class Packer {
 public:
  using GiveBack = void (*)(std::span<const std::byte> mapped);
  // `give_back`: what becomes of the source of a matrix when it is packed; null = nothing.
  Packer(ThreadPool& pool, GiveBack give_back, std::vector<AlignedBytes>& storage)
      : pool_(pool), give_back_(give_back), storage_(storage) {}

  Result<void> pack(const AffineMatrix& from, PackedMatrix& to) {
    if (const auto known = packed_.find(from.codes); known != packed_.end()) {
      to.data = known->second;
      return {};
    }
    LILY_TRY(AlignedBytes memory, AlignedBytes::allocate(to.total_bytes()));
    std::byte* data = memory.data();
    storage_.push_back(std::move(memory));
    const uint32_t blocks = to.blocks();
    pool_.for_each(size_t{to.experts} * blocks, 16, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        const auto block = static_cast<uint32_t>(i % blocks);
        pack_block(from.expert(static_cast<uint32_t>(i / blocks)), to, block, data + i * block_bytes(to));
      }
    });
    if (give_back_ != nullptr) {
      give_back_({from.codes, from.experts * from.code_bytes()});
      give_back_({from.scales, from.experts * from.scale_bytes()});
      give_back_({from.biases, from.experts * from.scale_bytes()});
    }
    packed_.emplace(from.codes, data);
    to.data = data;
    return {};
  }

 private:
  ThreadPool& pool_;
  GiveBack give_back_;
  std::vector<AlignedBytes>& storage_;
  std::map<const std::byte*, const std::byte*> packed_;  // by the codes they were packed from
};

}  // namespace

void for_each_matrix(const ModelWeights& from, PackedModel& to, Visit visit) {
  to.layers.resize(from.layers.size());
  for (size_t layer = 0; layer < from.layers.size(); ++layer) {
    for_each_in_layer(from.layers[layer], to.layers[layer], visit);
  }
  visit(MatrixKind::head, from.head.lm_head, to.head);
}

uint64_t PackedModel::total_bytes() const {
  uint64_t bytes = head.total_bytes();
  const auto add = [&](const auto&... matrices) { bytes += (uint64_t{matrices.total_bytes()} + ...); };
  for (const PackedLayer& layer : layers) {
    if (const auto* delta = std::get_if<PackedDeltaNet>(&layer.mixer)) {
      add(delta->in_proj_qkv, delta->in_proj_z, delta->in_proj_a, delta->in_proj_b, delta->out_proj);
    } else {
      const auto& attention = std::get<PackedAttention>(layer.mixer);
      add(attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj);
    }
    const PackedMoe& moe = layer.moe;
    add(moe.router, moe.gate, moe.up, moe.down, moe.shared_gate, moe.shared_gate_proj, moe.shared_up_proj,
        moe.shared_down_proj);
  }
  return bytes;
}

PackedModel packed_forms(const ModelWeights& weights) {
  PackedModel model;
  for_each_matrix(weights, model, [](MatrixKind kind, const AffineMatrix& from, PackedMatrix& to) {
    to = packed_form(from);
    to.digits = input_digits(kind);
    to.halves = halves_for_long_segments(kind);
  });
  return model;
}

Result<PackedModel> pack_model(const ModelWeights& weights, ThreadPool& pool,
                               FunctionRef<void(double)> progress) {
  PackedModel model = packed_forms(weights);
  const uint64_t bytes = model.total_bytes();
  // Pages are evicted where the file and the packed copy do not fit into memory together.
  const bool evict = host::memory_bytes() < 2 * bytes + kOtherMemory;
  Packer packer(pool,
                !weights.mapped      ? nullptr
                : weights.disposable ? dispose_pages
                : evict              ? evict_pages
                                     : release_pages,
                model.storage);
  const auto total = static_cast<double>(bytes);
  double done = 0;
  Result<void> result{};
  for_each_matrix(weights, model, [&](MatrixKind, const AffineMatrix& from, PackedMatrix& to) {
    if (result) {
      result = packer.pack(from, to);
      done += static_cast<double>(to.total_bytes());
      progress(done / total);
    }
  });
  LILY_TRY_VOID(result);
  return model;
}

}  // namespace lily::cpu
