#include "weights/inspect.h"

#include <map>

#include "weights/bind.h"
#include "weights/faults.h"
#include "weights/published.h"

namespace lily {
namespace {

// How a quantised module is stored, from its tensors alone: the number of bits follows from their sizes only
// together with the group, which the configuration has.
std::string module_format(const StoredTensor& codes, const StoredTensor& scales,
                          const std::optional<ModelConfig>& config, std::string_view path) {
  if (!config) {
    return fmt::format("{} codes, {} scales", codes.type_name, scales.type_name);
  }
  const QuantFormat format = config->format_of(path);
  return fmt::format("{}-bit, groups of {}, {} scales", format.bits, format.group, scales.type_name);
}

std::vector<FormatGroup> group_formats(const Container& container, const std::optional<ModelConfig>& config) {
  std::map<std::string, FormatGroup> groups;
  const auto add = [&](const std::string& format, const StoredTensor& tensor, uint64_t count) {
    FormatGroup& group = groups[format];
    group.format = format;
    group.tensors += count;
    group.bytes += tensor.data.size();
  };
  constexpr std::string_view kWeight = ".weight";
  for (const StoredTensor& tensor : container.tensors()) {
    const std::string_view name = tensor.name;
    if (is_vision(name)) {
      add("vision, ignored", tensor, 1);
      continue;
    }
    const std::string path(name.substr(0, name.rfind('.')));
    const StoredTensor* codes = container.find(path + std::string(kWeight));
    const StoredTensor* scales = container.find(path + ".scales");
    const bool in_module = name.ends_with(kWeight) || name.ends_with(".scales") || name.ends_with(".biases");
    if (in_module && codes != nullptr && scales != nullptr) {
      add(module_format(*codes, *scales, config, path), tensor, name.ends_with(kWeight) ? 1 : 0);
    } else {
      add(tensor.type_name, tensor, 1);
    }
  }
  std::vector<FormatGroup> out;
  out.reserve(groups.size());
  for (auto& [format, group] : groups) {
    out.push_back(std::move(group));
  }
  return out;
}

void inspect_tensors(const Container& container, const std::optional<ModelConfig>& config, Inspection& out) {
  out.layout = is_published_layout(container) ? Layout::published : Layout::mlx;
  out.files = container.files().size();
  out.total_bytes = container.total_bytes();
  out.formats = group_formats(container, config);
  for (const StoredTensor& tensor : container.tensors()) {
    out.mtp |= tensor.name.starts_with("mtp.") || tensor.name.starts_with("language_model.mtp.");
    out.weight_bytes += is_vision(tensor.name) ? 0 : tensor.data.size();
  }
  if (!config) {
    return;  // without sizes nothing can be bound
  }
  if (out.layout == Layout::published) {
    if (const auto bound = bind_published(container, *config); !bound) {
      add_faults(bound.error(), out.faults);
    }
    return;
  }
  ModelWeights weights;
  if (const auto bound = bind_weights(container, *config, weights); !bound) {
    add_faults(bound.error(), out.faults);
  }
}

}  // namespace

void add_faults(const Error& error, std::vector<std::string>& faults) {
  if (error.details.empty()) {
    faults.push_back(error.message);
  }
  for (const std::string& detail : error.details) {
    faults.push_back(fmt::format("{}: {}", error.message.substr(0, error.message.rfind(':')), detail));
  }
}

std::string_view to_string(Layout layout) {
  switch (layout) {
    case Layout::mlx:
      return "MLX, quantised";
    case Layout::published:
      return "published, not quantised";
    case Layout::unknown:
      return "unknown";
  }
  return "unknown";
}

Result<Inspection> inspect_checkpoint(const std::filesystem::path& folder, const PlanOptions& options) {
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    return fail(ErrorKind::not_found, "{}: there is no such folder", in_quotes(folder.string()));
  }
  if (auto checked = make_plan(kTiny, options); !checked) {  // the options, whatever the folder holds
    return fail(std::move(checked).error());
  }
  Inspection out;
  out.folder = folder.string();
  std::optional<ModelConfig> config;
  if (auto read = read_model_config(folder); read) {
    config = std::move(*read);
    out.shape = config->shape;
    if (const auto generation = read_generation_config(folder, *out.shape); !generation) {
      add_faults(generation.error(), out.faults);
    }
  } else {
    add_faults(read.error(), out.faults);
  }
  auto container = Container::open(folder);
  if (!container) {
    add_faults(container.error(), out.faults);
    return out;
  }
  inspect_tensors(*container, config, out);
  if (out.shape && out.layout == Layout::mlx) {
    LILY_TRY(out.plan, make_plan(*out.shape, options));
  }
  return out;
}

}  // namespace lily
