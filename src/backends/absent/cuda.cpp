#include "backends/absent/absent.h"

namespace lily {

Result<std::unique_ptr<Backend>> make_cuda_backend(const BackendOptions&) {
  return fail(ErrorKind::unsupported, "device 'cuda': not built in");
}

}  // namespace lily
