#include "weights/convert.h"

#include <algorithm>
#include <boost/json/object.hpp>
#include <mutex>
#include <optional>
#include <vector>

#include "base/check.h"
#include "base/threads.h"
#include "weights/faults.h"
#include "weights/json.h"
#include "weights/published.h"
#include "weights/quantize.h"
#include "weights/staged_folder.h"
#include "weights/writer.h"

namespace lily {
namespace {

namespace json = boost::json;
namespace fs = std::filesystem;

// Weights of one piece of work: large enough for long reads, small enough that memory is never an issue.
constexpr size_t kPieceWeights = size_t{1} << 20;
// Files that go along unchanged.
constexpr std::string_view kCopied[] = {"generation_config.json",
                                        "tokenizer.json",
                                        "tokenizer_config.json",
                                        "vocab.json",
                                        "merges.txt",
                                        "added_tokens.json",
                                        "chat_template.jinja",
                                        "chat_template.json",
                                        "special_tokens_map.json",
                                        "LICENSE"};

// What becomes of one PublishedSite: up to three tensors of the output, beginning with `first`.
struct Job {
  const PublishedSite* source;
  size_t first;
  DType stored;        // of scales, biases and dense tensors
  QuantFormat format;  // of a matrix
};

// Rows [row, row + count) of one expert.
struct Piece {
  uint32_t expert, row, count;
};

class Converter {
 public:
  Converter(const ConvertOptions& options, std::optional<DType> cast)
      : options_(options), cast_(cast), pool_(options.threads) {}

  void plan(const PublishedModel& model) {
    for (const PublishedSite& site : model.sites) {
      add_job(site);
      total_ += site_bytes(site);
    }
  }
  std::vector<TensorPlan> take_plans() { return std::move(plans_); }
  const json::object& overrides() const { return overrides_; }

  Result<void> run(const CheckpointWriter& writer, FunctionRef<void(uint64_t, uint64_t)> progress) {
    uint64_t done = 0;
    for (const Job& job : jobs_) {
      LILY_TRY_VOID(run_job(job, writer));
      if (options_.cancel != nullptr && options_.cancel->load()) {
        return fail(ErrorKind::cancelled, "cancelled: nothing is left behind");
      }
      done += site_bytes(*job.source);
      progress(done, total_);
    }
    return {};
  }

 private:
  static uint64_t site_bytes(const PublishedSite& site) {
    return site.rows() * site.site.cols * size_of(site.type);
  }

  void add_job(const PublishedSite& source) {
    const TensorSite& site = source.site;
    const bool keeps_type = site.name.ends_with(".A_log");  // as the MLX converter does
    Job job{&source, plans_.size(), keeps_type ? source.type : cast_.value_or(source.type), options_.format};
    const std::string path = std::string(kModelPrefix) + site.name;
    if (!source.is_matrix()) {
      std::vector<uint64_t> shape{site.rows};
      if (site.cols > 1) {
        shape = {site.rows, site.cols, 1};  // conv1d from [C, 1, 4]: the same bytes
      }
      plans_.push_back({path + site.suffix, job.stored, shape});
      jobs_.push_back(job);
      return;
    }
    if (site.router_like) {
      job.format = kRouterFormat;
    }
    if (job.format != options_.format || site.router_like) {
      overrides_[path] = {{"group_size", job.format.group}, {"bits", job.format.bits}};
    }
    const auto shape = [&](uint64_t cols) {
      return site.experts > 1 ? std::vector<uint64_t>{site.experts, site.rows, cols}
                              : std::vector<uint64_t>{site.rows, cols};
    };
    plans_.push_back({path + ".weight", DType::u32, shape(uint64_t{site.cols} * job.format.bits / 32)});
    plans_.push_back({path + ".scales", job.stored, shape(site.cols / job.format.group)});
    plans_.push_back({path + ".biases", job.stored, shape(site.cols / job.format.group)});
    jobs_.push_back(job);
  }

  Result<void> run_job(const Job& job, const CheckpointWriter& writer) {
    const TensorSite& site = job.source->site;
    const auto rows_per_piece = static_cast<uint32_t>(std::max<size_t>(1, kPieceWeights / site.cols));
    std::vector<Piece> pieces;
    for (uint32_t expert = 0; expert < site.experts; ++expert) {
      for (uint32_t row = 0; row < site.rows; row += rows_per_piece) {
        pieces.push_back({expert, row, std::min(rows_per_piece, site.rows - row)});
      }
    }
    std::mutex mutex;
    size_t failed = pieces.size();  // of several faults the first one in the file is reported
    Result<void> outcome;
    pool_.for_each(pieces.size(), 1, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        auto converted = job.source->is_matrix() ? convert_matrix(job, pieces[i], writer)
                                                 : convert_dense(job, pieces[i], writer);
        if (!converted) {
          const std::lock_guard lock(mutex);
          if (i < failed) {
            failed = i;
            outcome = std::move(converted);
          }
        }
      }
    });
    // The system maps pages around those that were asked for, also behind a piece that was let go already.
    for (const StoredTensor* part : job.source->parts) {
      release_pages(part->data);
    }
    return outcome;
  }

  // The weights of a piece in the type that the converter computes with, as float32. Source pages are let go.
  Result<void> load(const Job& job, const Piece& piece, std::vector<float>& weights) const {
    const PublishedSite& source = *job.source;
    const auto bytes = source.row_bytes(piece.expert, piece.row, piece.count);
    weights.resize(size_t{piece.count} * source.site.cols);
    load_floats(bytes, source.type, weights);
    release_pages(bytes);
    if (source.site.zero_centred_norm) {
      for (float& weight : weights) {  // w + 1, rounded to the type of the source
        weight = round_to(weight + 1.0F, source.type);
      }
    }
    if (job.stored != source.type) {
      for (float& weight : weights) {
        weight = round_to(weight, job.stored);
      }
    }
    if (const size_t bad = find_not_finite(weights); bad < weights.size()) {
      return fail(ErrorKind::invalid_input,
                  "tensor {}: the value at expert {}, row {}, column {} is not finite: is the file damaged?",
                  in_quotes(source.part_of(piece.expert).name), piece.expert,
                  source.first_row + piece.row + bad / source.site.cols, bad % source.site.cols);
    }
    return {};
  }

  static float round_to(float value, DType type) {
    if (type == DType::bf16) {
      return bf16_to_float(float_to_bf16(value));
    }
    return type == DType::f16 ? f16_to_float(float_to_f16(value)) : value;
  }

  Result<void> convert_dense(const Job& job, const Piece& piece, const CheckpointWriter& writer) const {
    std::vector<float> weights;
    LILY_TRY_VOID(load(job, piece, weights));
    std::vector<std::byte> bytes(weights.size() * size_of(job.stored));
    store_floats(weights, job.stored, bytes);
    return writer.write(job.first, size_t{piece.row} * job.source->site.cols * size_of(job.stored), bytes);
  }

  Result<void> convert_matrix(const Job& job, const Piece& piece, const CheckpointWriter& writer) const {
    const TensorSite& site = job.source->site;
    std::vector<float> weights;
    LILY_TRY_VOID(load(job, piece, weights));
    const size_t groups = weights.size() / job.format.group;
    std::vector<std::byte> codes(weights.size() * job.format.bits / 8);
    std::vector<float> scales(groups);
    std::vector<float> biases(groups);
    quantize_groups(weights, job.format, codes, scales, biases);
    const size_t first_row = size_t{piece.expert} * site.rows + piece.row;
    LILY_TRY_VOID(writer.write(job.first, first_row * site.cols * job.format.bits / 8, codes));
    std::vector<std::byte> bytes(groups * size_of(job.stored));
    const size_t offset = first_row * (site.cols / job.format.group) * size_of(job.stored);
    for (const size_t part : {1, 2}) {
      auto& values = part == 1 ? scales : biases;
      store_floats(values, job.stored, bytes);
      load_floats(bytes, job.stored, values);
      if (find_not_finite(values) < values.size()) {
        return fail(ErrorKind::invalid_input,
                    "tensor {}: values of expert {}, row {} or after it are too large for {} scales",
                    in_quotes(job.source->part_of(piece.expert).name), piece.expert, piece.row,
                    to_string(job.stored));
      }
      LILY_TRY_VOID(writer.write(job.first + part, offset, bytes));
    }
    return {};
  }

  const ConvertOptions& options_;
  std::optional<DType> cast_;
  ThreadPool pool_;
  std::vector<Job> jobs_;
  std::vector<TensorPlan> plans_;
  json::object overrides_;
  uint64_t total_ = 0;
};

Result<json::object> read_config(const fs::path& source) {
  LILY_TRY(const MappedFile file, MappedFile::open(source / "config.json"));
  return parse_json_object({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()},
                           in_quotes((source / "config.json").string()));
}

// The type that the MLX converter casts to: torch_dtype, else dtype of text_config; none: the source's.
std::optional<DType> cast_type(const json::object& config) {
  const json::value* name = config.if_contains("torch_dtype");
  if (name == nullptr || !name->is_string()) {
    const json::value* text = config.if_contains("text_config");
    name = text != nullptr && text->is_object() ? text->get_object().if_contains("dtype") : nullptr;
  }
  if (name == nullptr || !name->is_string()) {
    return std::nullopt;
  }
  const std::string_view type = name->get_string();
  if (type == "bfloat16") {
    return DType::bf16;
  }
  if (type == "float16") {
    return DType::f16;
  }
  return type == "float32" ? std::optional(DType::f32) : std::nullopt;
}

// All keys kept, except those of parts that are not there any more: as the MLX converter does.
std::string converted_config(json::object config, QuantFormat format, const json::object& overrides) {
  config.erase("vision_config");
  config.erase("_name_or_path");
  json::object quantization{{"group_size", format.group}, {"bits", format.bits}, {"mode", "affine"}};
  for (const auto& [path, override_format] : overrides) {
    quantization[path] = override_format;
  }
  config["quantization"] = quantization;
  config["quantization_config"] = std::move(quantization);
  return json_pretty(config, /*sorted=*/true);
}

Result<void> check_format(QuantFormat format, const PublishedModel& model) {
  for (const PublishedSite& site : model.sites) {
    if (site.is_matrix() && site.site.cols % format.group != 0) {
      return fail(ErrorKind::invalid_input, "groups of {} do not divide the {} columns of {}", format.group,
                  site.site.cols, site.site.name);
    }
  }
  return {};
}

Result<void> copy_files(const fs::path& source, const StagedFolder& folder) {
  std::error_code error;
  for (const std::string_view name : kCopied) {
    if (fs::exists(source / name, error)) {
      LILY_TRY_VOID(folder.copy_file(source / name, name));
    }
  }
  return {};
}

}  // namespace

Result<ConvertReport> convert_checkpoint(const fs::path& source, const fs::path& destination,
                                         const ConvertOptions& options,
                                         FunctionRef<void(uint64_t, uint64_t)> progress) {
  LILY_TRY(const ModelConfig config, read_model_config(source));
  LILY_TRY(json::object config_object, read_config(source));
  LILY_TRY(const Container container, Container::open(source));
  LILY_TRY(const PublishedModel model, bind_published(container, config));
  LILY_TRY_VOID(check_format(options.format, model));
  Converter converter(options, cast_type(config_object));
  converter.plan(model);
  LILY_TRY(StagedFolder folder, StagedFolder::create(destination));
  LILY_TRY_VOID(copy_files(source, folder));
  LILY_TRY_VOID(folder.write_file(
      "config.json", converted_config(std::move(config_object), options.format, converter.overrides())));
  LILY_TRY(CheckpointWriter writer, CheckpointWriter::create(folder.path(), converter.take_plans()));
  LILY_TRY_VOID(converter.run(writer, progress));
  LILY_TRY_VOID(writer.finish());
  LILY_TRY_VOID(folder.commit());
  return ConvertReport{config.shape, model.bound_bytes, writer.total_bytes(),
                       container.total_bytes() - model.bound_bytes, model.weights.mtp.has_value()};
}

}  // namespace lily
