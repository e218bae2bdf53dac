#include "weights/published.h"

#include <algorithm>
#include <unordered_set>

#include "base/check.h"
#include "weights/faults.h"

namespace lily {
namespace {

using Sizes = std::vector<uint64_t>;

std::string describe(std::string_view type, const Sizes& shape) {
  return fmt::format("{} [{}]", type, fmt::join(shape, ","));
}

bool is_dense_type(DType type) { return type == DType::bf16 || type == DType::f16 || type == DType::f32; }

bool ends_module(std::string_view name, std::string_view tail) {
  return name.size() > tail.size() && name.ends_with(tail);
}

class Binder {
 public:
  explicit Binder(const Container& container) : container_(container) {
    const auto has = [&](std::string_view prefix) {
      return std::any_of(container.tensors().begin(), container.tensors().end(),
                         [&](const StoredTensor& tensor) { return tensor.name.starts_with(prefix); });
    };
    nested_ = has("model.language_model.");
    has_mtp_ = has("mtp.");
  }
  bool has_mtp() const { return has_mtp_; }

  PublishedSite bind(const TensorSite& site) {
    PublishedSite out;
    out.site = site;
    out.part_rows = site.rows;
    const std::string path = published_name(site.name);
    constexpr std::string_view kSwitch = ".switch_mlp.";
    if (const size_t at = path.find(kSwitch); at != std::string::npos) {
      bind_experts(out, path.substr(0, at) + ".experts", path.substr(at + kSwitch.size()));
    } else if (out.is_matrix()) {
      out.parts = {take(path + ".weight", {site.rows, site.cols})};
    } else if (site.cols > 1) {
      out.parts = {take(path + site.suffix, {site.rows, 1, site.cols})};  // conv1d
    } else {
      out.parts = {take(path + site.suffix, {site.rows})};
    }
    check_types(out, path);
    return out;
  }

  void refuse_extra() {
    for (const StoredTensor& tensor : container_.tensors()) {
      if (!used_.contains(tensor.name) && !is_vision(tensor.name)) {
        faults_.add("tensor {}: unexpected, found {}", in_quotes(tensor.name),
                    describe(in_quotes(tensor.type_name), tensor.shape));
      }
    }
  }

  const Faults& faults() const { return faults_; }
  uint64_t bytes() const {
    uint64_t total = 0;
    for (const StoredTensor& tensor : container_.tensors()) {
      total += used_.contains(tensor.name) ? tensor.data.size() : 0;
    }
    return total;
  }

 private:
  // The multimodal checkpoint nests the text model one deeper than a text-only one.
  std::string published_name(const std::string& name) const {
    return nested_ && name.starts_with("model.") ? "model.language_model." + name.substr(6) : name;
  }

  const StoredTensor* take(const std::string& name, const Sizes& shape) {
    const StoredTensor* tensor = container_.find(name);
    const std::string expected = describe("BF16, F16 or F32", shape);
    if (tensor == nullptr) {
      faults_.add("tensor {}: expected {}, found nothing", in_quotes(name), expected);
      return nullptr;
    }
    used_.insert(tensor->name);
    if (!is_dense_type(tensor->type) || tensor->shape != shape) {
      faults_.add("tensor {}: expected {}, found {}", in_quotes(name), expected,
                  describe(in_quotes(tensor->type_name), tensor->shape));
      return nullptr;
    }
    return tensor;
  }

  void bind_experts(PublishedSite& out, const std::string& experts, std::string_view projection) {
    const TensorSite& site = out.site;
    const bool fused = container_.find(experts + ".gate_up_proj") != nullptr ||
                       container_.find(experts + ".down_proj") != nullptr ||
                       container_.find(fmt::format("{}.0.{}.weight", experts, projection)) == nullptr;
    if (!fused) {
      for (uint32_t expert = 0; expert < site.experts; ++expert) {
        out.parts.push_back(
            take(fmt::format("{}.{}.{}.weight", experts, expert, projection), {site.rows, site.cols}));
      }
    } else if (projection == "down_proj") {
      out.parts = {take(experts + ".down_proj", {site.experts, site.rows, site.cols})};
    } else {  // rows of gate, then rows of up
      out.part_rows = 2 * site.rows;
      out.first_row = projection == "up_proj" ? site.rows : 0;
      out.parts = {take_once(experts + ".gate_up_proj", {site.experts, out.part_rows, site.cols})};
    }
  }

  // As take(), for a tensor that two modules share: its fault is reported once.
  const StoredTensor* take_once(const std::string& name, const Sizes& shape) {
    if (shared_faulty_.contains(name)) {
      return nullptr;
    }
    const StoredTensor* tensor = take(name, shape);
    if (tensor == nullptr) {
      shared_faulty_.insert(name);
    }
    return tensor;
  }

  void check_types(PublishedSite& out, const std::string& path) {
    const StoredTensor* first = out.parts.front();
    for (const StoredTensor* part : out.parts) {
      if (first == nullptr || part == nullptr) {
        return;
      }
      if (part->type != first->type) {
        return faults_.add("module {}: its experts are {} and {}: expected one type", in_quotes(path),
                           first->type_name, part->type_name);
      }
    }
    out.type = first->type;
  }

  const Container& container_;
  bool nested_ = false;
  bool has_mtp_ = false;
  std::unordered_set<std::string_view> used_;
  std::unordered_set<std::string> shared_faulty_;
  Faults faults_;
};

}  // namespace

std::span<const std::byte> PublishedSite::row_bytes(uint32_t expert, uint32_t row, uint32_t count) const {
  LILY_CHECK(expert < site.experts && row + count <= site.rows);
  const size_t row_size = size_t{site.cols} * size_of(type);
  const bool stacked = parts.size() == 1;
  const size_t first = stacked ? size_t{expert} * part_rows + first_row + row : row;
  return part_of(expert).data.subspan(first * row_size, count * row_size);
}

bool is_vision(std::string_view name) {
  return name.starts_with("model.visual.") || name.starts_with("visual.") ||
         name.starts_with("vision_tower.");
}

bool is_published_layout(const Container& container) {
  return std::any_of(container.tensors().begin(), container.tensors().end(), [](const StoredTensor& tensor) {
    const std::string_view name = tensor.name;
    return name.starts_with("model.language_model.") || ends_module(name, ".mlp.experts.gate_up_proj") ||
           ends_module(name, ".mlp.experts.0.gate_proj.weight");
  });
}

Result<PublishedModel> bind_published(const Container& container, const ModelConfig& config) {
  if (config.quantized) {
    return fail(
        ErrorKind::invalid_input,
        "the checkpoint is quantised already (config.json says so): convert reads the published bf16 one");
  }
  if (!is_published_layout(container)) {
    return fail(ErrorKind::invalid_input,
                "the tensors are not named as in the published layout (model.language_model.layers.0...)");
  }
  Binder binder(container);
  PublishedModel out;
  out.weights = empty_weights(config.shape, binder.has_mtp());
  for (const TensorSite& site : tensor_table(config.shape, out.weights)) {
    out.sites.push_back(binder.bind(site));
  }
  binder.refuse_extra();
  if (!binder.faults().empty()) {
    return fail(binder.faults().error(ErrorKind::invalid_input, "tensors of the checkpoint"));
  }
  out.bound_bytes = binder.bytes();
  return out;
}

}  // namespace lily
