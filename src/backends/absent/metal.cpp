#include "backends/absent/absent.h"

namespace lily {

Result<std::unique_ptr<Backend>> make_metal_backend(const BackendOptions&) {
  return fail(ErrorKind::unsupported, "device 'metal': not built in; it needs macOS on Apple silicon");
}

}  // namespace lily
