// config.json: no input may crash the parser, and what it accepts is one of the two shapes and formats that
// exist.
#include <cstdlib>

#include "weights/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto config = lily::parse_model_config({reinterpret_cast<const char*>(data), size});
  if (!config) {
    if (config.error().message.empty()) {
      std::abort();
    }
    return 0;
  }
  const auto valid = [](const lily::QuantFormat& format) {
    return (format.bits == 4 || format.bits == 8) &&
           (format.group == 32 || format.group == 64 || format.group == 128);
  };
  bool good = lily::check_layers(config->shape.layers).has_value() && valid(config->format);
  for (const auto& [path, format] : config->overrides) {
    good = good && valid(format) && config->format_of(path) == format;
  }
  if (!good) {
    std::abort();
  }
  return 0;
}
