#include "backends/metal/pipelines.h"

#include "backends/metal/kernel_args.h"
#include "backends/metal/sources.h"

namespace lily::metal {

MatrixFormat format_of(const AffineMatrix& matrix) {
  const uint32_t kind = matrix.scale_type == DType::bf16  ? kScaleBf16
                        : matrix.scale_type == DType::f16 ? kScaleF16
                                                          : kScaleF32;
  return {matrix.bits, matrix.group, kind};
}

Result<std::unique_ptr<Pipelines>> Pipelines::open(Device& device) {
  std::unique_ptr<Pipelines> pipelines(new Pipelines);
  for (const LibrarySource& source : kernel_sources()) {
    LILY_TRY(pipelines->libraries_[source.name], device.library(source));
  }
  return pipelines;
}

Result<const Pipeline*> Pipelines::get(const Wanted& wanted) {
  std::string key = wanted.kernel;
  PipelineSpec spec{.kernel = wanted.kernel};
  for (const auto& value : wanted.constants) {
    key += std::visit([](auto v) { return fmt::format(" {}", v); }, value);
    spec.constants.push_back({static_cast<uint32_t>(spec.constants.size()), value});
  }
  std::unique_ptr<Pipeline>& made = made_[key];
  if (!made) {
    const auto library = libraries_.find(wanted.library);
    if (library == libraries_.end()) {
      return fail(ErrorKind::internal, "the build has no Metal library '{}'", wanted.library);
    }
    LILY_TRY(made, library->second->pipeline(spec));
    if (made->max_threads() < wanted.threads) {
      return fail(ErrorKind::unsupported,
                  "kernel '{}': needs {} threads in a threadgroup, the device runs {}", wanted.kernel,
                  wanted.threads, made->max_threads());
    }
  }
  return made.get();
}

}  // namespace lily::metal
