#include "weights/bind.h"

#include <algorithm>
#include <unordered_set>

#include "weights/faults.h"
#include "weights/published.h"

namespace lily {
namespace {

using Sizes = std::vector<uint64_t>;

std::string describe(std::string_view type, const Sizes& shape) {
  return fmt::format("{} [{}]", type, fmt::join(shape, ","));
}
std::string describe(const StoredTensor& tensor) {
  return describe(in_quotes(tensor.type_name), tensor.shape);
}

bool is_dense_type(DType type) { return type == DType::bf16 || type == DType::f16 || type == DType::f32; }

class Binder {
 public:
  Binder(const Container& container, const ModelConfig& config) : container_(container), config_(config) {
    for (const StoredTensor& tensor : container.tensors()) {
      if (tensor.name.starts_with(kModelPrefix)) {
        prefix_ = kModelPrefix;
        break;
      }
    }
  }

  bool has_mtp() const {
    return std::any_of(container_.tensors().begin(), container_.tensors().end(), [&](const StoredTensor& t) {
      return t.name.starts_with(prefix_ + "mtp.") || t.name.starts_with("mtp.");
    });
  }

  void bind(const TensorSite& site) {
    // The MTP layer also comes without the prefix that the rest has.
    std::string path = prefix_ + site.name;
    if (site.name.starts_with("mtp.") && !has_part(path, site) && has_part(site.name, site)) {
      path = site.name;
    }
    if (std::holds_alternative<DenseTensor*>(site.view)) {
      bind_dense(site, path);
    } else {
      bind_matrix(site, path);
    }
  }

  // Every tensor that no site took.
  void refuse_extra() {
    for (const StoredTensor& tensor : container_.tensors()) {
      if (!used_.contains(tensor.name) && !is_vision(tensor.name)) {
        faults_.add("tensor {}: unexpected, found {}", in_quotes(tensor.name), describe(tensor));
      }
    }
  }

  const Faults& faults() const { return faults_; }
  uint64_t bytes() const { return bytes_; }

 private:
  bool has_part(const std::string& path, const TensorSite& site) const {
    return container_.find(path + site.suffix) != nullptr;
  }

  // The tensor `name`, if it is there with the expected shape and an allowed type.
  const StoredTensor* take(const std::string& name, std::string_view types, const Sizes& shape) {
    const StoredTensor* tensor = container_.find(name);
    if (tensor == nullptr) {
      faults_.add("tensor {}: expected {}, found nothing", in_quotes(name), describe(types, shape));
      return nullptr;
    }
    used_.insert(tensor->name);
    const bool typed = types == "U32" ? tensor->type == DType::u32 : is_dense_type(tensor->type);
    if (!typed || tensor->shape != shape) {
      faults_.add("tensor {}: expected {}, found {}{}", in_quotes(name), describe(types, shape),
                  describe(*tensor), hint(*tensor, types, shape));
      return nullptr;
    }
    bytes_ += tensor->data.size();
    return tensor;
  }

  // What the difference usually means.
  static std::string_view hint(const StoredTensor& tensor, std::string_view types, const Sizes& shape) {
    if (types == "U32" && is_dense_type(tensor.type)) {
      return " (not quantised: 'lily convert' quantises the published checkpoint)";
    }
    if (shape.size() == 3 && tensor.shape == Sizes{shape[0], shape[2], shape[1]} && shape[2] == 1) {
      return " (the published layout: it goes through 'lily convert')";
    }
    return "";
  }

  void bind_dense(const TensorSite& site, const std::string& path) {
    Sizes shape{site.rows};
    if (site.cols > 1) {
      shape = {site.rows, site.cols, 1};  // conv1d: [channels, taps, 1]
    }
    const StoredTensor* tensor = take(path + site.suffix, "BF16, F16 or F32", shape);
    if (tensor != nullptr) {
      *std::get<DenseTensor*>(site.view) = {tensor->data.data(), tensor->type, site.rows, site.cols};
    }
  }

  void bind_matrix(const TensorSite& site, const std::string& path) {
    const QuantFormat format = config_.format_of(path);
    if (site.cols % format.group != 0) {
      faults_.add("module {}: groups of {} do not divide its {} columns", in_quotes(path), format.group,
                  site.cols);
    }
    const auto sizes = [&](uint32_t cols) {
      return site.experts > 1 ? Sizes{site.experts, site.rows, cols} : Sizes{site.rows, cols};
    };
    const Sizes groups = sizes(site.cols / format.group);
    const StoredTensor* codes = take(path + ".weight", "U32", sizes(site.cols * format.bits / 32));
    const StoredTensor* scales = take(path + ".scales", "BF16, F16 or F32", groups);
    const StoredTensor* biases = take(path + ".biases", "BF16, F16 or F32", groups);
    if (scales != nullptr && biases != nullptr && scales->type != biases->type) {
      faults_.add("module {}: scales are {}, biases {}: expected the same type", in_quotes(path),
                  scales->type_name, biases->type_name);
    }
    if (codes != nullptr && scales != nullptr && biases != nullptr) {
      *std::get<AffineMatrix*>(site.view) = {.codes = codes->data.data(),
                                             .scales = scales->data.data(),
                                             .biases = biases->data.data(),
                                             .scale_type = scales->type,
                                             .rows = site.rows,
                                             .cols = site.cols,
                                             .experts = site.experts,
                                             .bits = format.bits,
                                             .group = format.group};
    }
  }

  const Container& container_;
  const ModelConfig& config_;
  std::string prefix_;
  std::unordered_set<std::string_view> used_;
  Faults faults_;
  uint64_t bytes_ = 0;
};

}  // namespace

Result<uint64_t> bind_weights(const Container& container, const ModelConfig& config, ModelWeights& weights) {
  if (is_published_layout(container)) {
    return fail(ErrorKind::unsupported,
                "the checkpoint is in the published layout: make one that lily runs with 'lily convert'");
  }
  if (!config.quantized) {
    return fail(
        ErrorKind::unsupported,
        "config.json has no quantization entry: lily runs 4- and 8-bit checkpoints in the MLX layout, "
        "and makes one from the published checkpoint with 'lily convert'");
  }
  Binder binder(container, config);
  weights = empty_weights(config.shape, binder.has_mtp());
  weights.mapped = true;
  for (const TensorSite& site : tensor_table(config.shape, weights)) {
    binder.bind(site);
  }
  binder.refuse_extra();
  if (!binder.faults().empty()) {
    return fail(binder.faults().error(ErrorKind::invalid_input, "tensors of the checkpoint"));
  }
  return binder.bytes();
}

Result<std::unique_ptr<WeightFile>> WeightFile::open(const std::filesystem::path& folder,
                                                     Ownership ownership) {
  std::unique_ptr<WeightFile> file(new WeightFile());
  file->folder_ = folder;
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    return fail(ErrorKind::not_found, "{}: there is no such folder", in_quotes(folder.string()));
  }
  LILY_TRY(file->config_, read_model_config(folder));
  LILY_TRY(file->container_, Container::open(folder, ownership));
  auto bytes = bind_weights(file->container_, file->config_, file->weights_);
  if (!bytes) {
    Error fault = std::move(bytes).error();
    fault.message = fmt::format("{}: {}", in_quotes(folder.string()), fault.message);
    return fail(std::move(fault));
  }
  file->bound_bytes_ = *bytes;
  file->weights_.disposable = ownership == Ownership::disposable;
  return file;
}

}  // namespace lily
