// generation_config.json: no input may crash the parser, and what it accepts is within its bounds.
#include <cmath>
#include <cstdlib>

#include "weights/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto config = lily::parse_generation_config({reinterpret_cast<const char*>(data), size});
  if (!config) {
    if (config.error().message.empty()) {
      std::abort();
    }
    return 0;
  }
  bool good = !config->stop_ids.empty() && config->stop_ids.size() <= 64;
  for (const int32_t id : config->stop_ids) {
    good = good && id >= 0;
  }
  for (const auto& value : {config->temperature, config->top_p, config->min_p, config->presence_penalty,
                            config->repetition_penalty}) {
    good = good && (!value || std::isfinite(*value));
  }
  if (!good) {
    std::abort();
  }
  return 0;
}
