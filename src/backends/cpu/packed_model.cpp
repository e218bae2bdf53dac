#include "backends/cpu/packed_model.h"

#include <map>

#include "backends/host/host_backend.h"
#include "weights/container.h"

namespace lily::cpu {
namespace {

// Calls visit(source, target, digits) for every matrix of a layer: docs/NUMERICS.md has what one digit costs.
template <class Visit>
void for_each_matrix(const LayerWeights& from, PackedLayer& to, Visit visit) {
  if (const auto* delta = std::get_if<DeltaNetWeights>(&from.mixer)) {
    if (!std::holds_alternative<PackedDeltaNet>(to.mixer)) {
      to.mixer.emplace<PackedDeltaNet>();
    }
    auto& packed = std::get<PackedDeltaNet>(to.mixer);
    visit(delta->in_proj_qkv, packed.in_proj_qkv, Digits::two);
    visit(delta->in_proj_z, packed.in_proj_z, Digits::two);
    visit(delta->in_proj_a, packed.in_proj_a, Digits::two);
    visit(delta->in_proj_b, packed.in_proj_b, Digits::two);
    visit(delta->out_proj, packed.out_proj, Digits::two);
  } else {
    const auto& attention = std::get<AttentionWeights>(from.mixer);
    if (!std::holds_alternative<PackedAttention>(to.mixer)) {
      to.mixer.emplace<PackedAttention>();
    }
    auto& packed = std::get<PackedAttention>(to.mixer);
    visit(attention.q_proj, packed.q_proj, Digits::two);
    visit(attention.k_proj, packed.k_proj, Digits::two);
    visit(attention.v_proj, packed.v_proj, Digits::two);
    visit(attention.o_proj, packed.o_proj, Digits::two);
  }
  visit(from.moe.router, to.moe.router, Digits::two);
  visit(from.moe.shared_gate, to.moe.shared_gate, Digits::two);
  visit(from.moe.gate, to.moe.gate, Digits::two);
  visit(from.moe.up, to.moe.up, Digits::two);
  visit(from.moe.down, to.moe.down, Digits::two);
  visit(from.moe.shared_gate_proj, to.moe.shared_gate_proj, Digits::two);
  visit(from.moe.shared_up_proj, to.moe.shared_up_proj, Digits::two);
  visit(from.moe.shared_down_proj, to.moe.shared_down_proj, Digits::two);
}

template <class Visit>
void for_each_matrix(const ModelWeights& from, PackedModel& to, Visit visit) {
  to.layers.resize(from.layers.size());
  for (size_t layer = 0; layer < from.layers.size(); ++layer) {
    for_each_matrix(from.layers[layer], to.layers[layer], visit);
  }
  visit(from.head.lm_head, to.head, Digits::two);
}

// What the rest of the system and of the process may want to keep.
constexpr uint64_t kOtherMemory = uint64_t{4} << 30;

class Packer {
 public:
  // `evict`: the file and the packed copy do not fit into memory together.
  Packer(ThreadPool& pool, bool mapped, bool evict, std::vector<AlignedBytes>& storage)
      : pool_(pool), mapped_(mapped), evict_(evict), storage_(storage) {}

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
    if (mapped_) {
      give_back({from.codes, from.experts * from.code_bytes()});
      give_back({from.scales, from.experts * from.scale_bytes()});
      give_back({from.biases, from.experts * from.scale_bytes()});
    }
    packed_.emplace(from.codes, data);
    to.data = data;
    return {};
  }

 private:
  void give_back(std::span<const std::byte> mapped) const {
    evict_ ? evict_pages(mapped) : release_pages(mapped);
  }

  ThreadPool& pool_;
  bool mapped_;
  bool evict_;
  std::vector<AlignedBytes>& storage_;
  std::map<const std::byte*, const std::byte*> packed_;  // by the codes they were packed from
};

}  // namespace

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
  for_each_matrix(weights, model, [](const AffineMatrix& from, PackedMatrix& to, Digits digits) {
    to = packed_form(from, digits);
  });
  return model;
}

Result<PackedModel> pack_model(const ModelWeights& weights, ThreadPool& pool,
                               FunctionRef<void(double)> progress) {
  PackedModel model = packed_forms(weights);
  const uint64_t bytes = model.total_bytes();
  Packer packer(pool, weights.mapped, host::memory_bytes() < 2 * bytes + kOtherMemory, model.storage);
  const auto total = static_cast<double>(bytes);
  double done = 0;
  Result<void> result{};
  for_each_matrix(weights, model, [&](const AffineMatrix& from, PackedMatrix& to, Digits) {
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
