#include "backends/absent/absent.h"

namespace lily {

Result<std::unique_ptr<Backend>> make_metal_emulated_backend(const BackendOptions&) {
  return fail(ErrorKind::unsupported,
              "device 'metal-emulated': only in development builds made with clang++");
}

}  // namespace lily
