#include <algorithm>
#include <boost/json/array.hpp>
#include <cmath>

#include "weights/config.h"
#include "weights/container.h"
#include "weights/faults.h"
#include "weights/json.h"

namespace lily {
namespace {

namespace json = boost::json;

constexpr int32_t kPublishedStopIds[] = {248'046, 248'044};  // <|im_end|>, <|endoftext|>

void add_stop_id(const json::value& value, std::vector<int32_t>& ids, Faults& faults) {
  const auto number = json_unsigned(value);
  if (!number || *number > INT32_MAX) {
    return faults.add("eos_token_id: {} is not a token id", json_text(value));
  }
  const auto id = static_cast<int32_t>(*number);
  if (std::find(ids.begin(), ids.end(), id) == ids.end()) {
    ids.push_back(id);
  }
}

void read_stop_ids(const json::object& root, std::vector<int32_t>& ids, Faults& faults) {
  const json::value* value = json_find(root, "eos_token_id");
  if (value == nullptr) {
    faults.add("eos_token_id: expected a token id or a list of them, found nothing");
  } else if (const json::array* list = value->if_array()) {
    if (list->empty() || list->size() > 64) {
      faults.add("eos_token_id: expected 1 to 64 token ids, found {}", list->size());
      return;
    }
    for (const json::value& id : *list) {
      add_stop_id(id, ids, faults);
    }
  } else {
    add_stop_id(*value, ids, faults);
  }
}

struct Bounds {
  double low, high;
};

void read_float(const json::object& root, std::string_view key, Bounds bounds, std::optional<float>& out,
                Faults& faults) {
  const json::value* value = json_find(root, key);
  if (value == nullptr) {
    return;
  }
  const auto number = json_number(*value);
  if (!number || !(*number >= bounds.low && *number <= bounds.high)) {
    return faults.add("{}: expected a number from {} to {}, found {}", key, bounds.low, bounds.high,
                      json_text(*value));
  }
  out = static_cast<float>(*number);
}

}  // namespace

Result<GenerationConfig> parse_generation_config(std::string_view text) {
  LILY_TRY(const json::object root, parse_json_object(text, "generation_config.json"));
  Faults faults;
  GenerationConfig out;
  read_stop_ids(root, out.stop_ids, faults);
  read_float(root, "temperature", {0, 100}, out.temperature, faults);
  read_float(root, "top_p", {0, 1}, out.top_p, faults);
  read_float(root, "min_p", {0, 1}, out.min_p, faults);
  read_float(root, "presence_penalty", {-2, 2}, out.presence_penalty, faults);
  read_float(root, "repetition_penalty", {0.01, 100}, out.repetition_penalty, faults);
  if (const json::value* top_k = json_find(root, "top_k"); top_k != nullptr) {
    const auto number = json_unsigned(*top_k);
    if (!number || *number > UINT32_MAX) {
      faults.add("top_k: expected a whole number, found {}", json_text(*top_k));
    } else {
      out.top_k = static_cast<uint32_t>(*number);
    }
  }
  if (const json::value* sample = json_find(root, "do_sample"); sample != nullptr) {
    if (sample->is_bool()) {
      out.do_sample = sample->get_bool();
    } else {
      faults.add("do_sample: expected true or false, found {}", json_text(*sample));
    }
  }
  if (!faults.empty()) {
    return fail(faults.error(ErrorKind::invalid_input, "generation_config.json"));
  }
  return out;
}

Result<GenerationConfig> read_generation_config(const std::filesystem::path& folder, const Shape& shape) {
  const std::filesystem::path path = folder / "generation_config.json";
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    GenerationConfig out;
    out.stop_ids.assign(std::begin(kPublishedStopIds), std::end(kPublishedStopIds));
    if (std::cmp_less(*std::max_element(out.stop_ids.begin(), out.stop_ids.end()), shape.vocab)) {
      return out;
    }
    return fail(ErrorKind::not_found, "{}: missing; it says which tokens end an answer",
                in_quotes(path.string()));
  }
  LILY_TRY(const MappedFile file, MappedFile::open(path));
  auto config =
      parse_generation_config({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()});
  if (!config) {
    Error fault = std::move(config).error();
    fault.message = fmt::format("{}: {}", in_quotes(folder.string()), fault.message);
    return fail(std::move(fault));
  }
  for (const int32_t id : config->stop_ids) {
    if (std::cmp_greater_equal(id, shape.vocab)) {
      return fail(ErrorKind::invalid_input, "{}: eos_token_id {} is not below the vocabulary of {}",
                  in_quotes(path.string()), id, shape.vocab);
    }
  }
  return config;
}

}  // namespace lily
