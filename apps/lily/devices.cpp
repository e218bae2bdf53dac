// lily devices: what this build can run on.
#include <fmt/core.h>

#include <algorithm>

#include "apps/lily/commands.h"
#include "backend/registry.h"

namespace lily::app {

void add_devices(CommandLine& line) {
  CLI::App* command = line.app.add_subcommand("devices", "List the devices that --device can name");
  command->callback([&line] {
    line.chosen = []() -> Result<void> {
      const std::vector<BackendListing> listings = list_backends();
      size_t width = 0;
      for (const BackendListing& listing : listings) {
        width = std::max(width, listing.name.size());
      }
      for (const BackendListing& listing : listings) {
        fmt::print("{:{}}  {:3}  {}\n", listing.name, width, listing.usable ? "yes" : "no", listing.note);
      }
      return {};
    };
  });
}

}  // namespace lily::app
