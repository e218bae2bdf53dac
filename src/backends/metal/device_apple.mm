// device.h on the frameworks of macOS. The only source file that other systems do not compile.
#import <Foundation/Foundation.h>
#import <Metal/Metal.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "backends/metal/apple.h"
#include "backends/metal/backend.h"
#include "backends/metal/checks.h"

namespace lily::metal {
namespace {

std::string text_of(NSString* text) { return text == nil ? "" : std::string(text.UTF8String); }
NSString* ns(std::string_view text) {
  return [[NSString alloc] initWithBytes:text.data() length:text.size() encoding:NSUTF8StringEncoding];
}
tl::unexpected<Error> failure(std::string_view what, NSError* error) {
  const bool memory = [error.domain isEqualToString:MTLCommandBufferErrorDomain] &&
                      error.code == static_cast<NSInteger>(MTLCommandBufferErrorOutOfMemory);
  return fail(memory ? ErrorKind::out_of_memory : ErrorKind::internal, "device 'metal': {}: {}", what,
              error == nil ? "no reason was given" : text_of(error.localizedDescription));
}

// The buffers that the device keeps at hand (macOS 15), so that a command buffer need not name each anew.
class Residency {
 public:
  Residency(id<MTLDevice> device, id<MTLCommandQueue> queue) {
    if (@available(macOS 15.0, *)) {
      NSError* error = nil;
      id<MTLResidencySet> set = [device newResidencySetWithDescriptor:[[MTLResidencySetDescriptor alloc] init]
                                                                error:&error];
      if (set != nil) {
        [queue addResidencySet:set];
        set_ = set;
      }
    }
  }
  void change(id<MTLBuffer> buffer, bool add) {
    if (@available(macOS 15.0, *)) {
      id<MTLResidencySet> set = static_cast<id<MTLResidencySet>>(set_);
      add ? [set addAllocation:buffer] : [set removeAllocation:buffer];
      changed_ = true;
    }
  }
  // Before work is queued that uses what was added.
  void settle() {
    if (@available(macOS 15.0, *)) {
      if (changed_) {
        [static_cast<id<MTLResidencySet>>(set_) commit];
        [static_cast<id<MTLResidencySet>>(set_) requestResidency];
        changed_ = false;
      }
    }
  }

 private:
  id set_ = nil;  // messages to nil do nothing
  bool changed_ = false;
};

struct Shared {
  id<MTLDevice> device;
  id<MTLCommandQueue> queue;
  std::unique_ptr<Residency> residency;
  uint64_t allocated = 0;
  uint64_t peak = 0;
};

class AppleBuffer final : public Buffer {
 public:
  AppleBuffer(id<MTLBuffer> buffer, size_t bytes, std::shared_ptr<Shared> shared, bool own)
      : buffer_(buffer), bytes_(bytes), shared_(std::move(shared)), own_(own) {
    shared_->residency->change(buffer_, true);
    shared_->allocated += own_ ? bytes_ : 0;
    shared_->peak = std::max(shared_->peak, shared_->allocated);
  }
  AppleBuffer(const AppleBuffer&) = delete;
  AppleBuffer& operator=(const AppleBuffer&) = delete;
  ~AppleBuffer() override {
    shared_->residency->change(buffer_, false);
    shared_->allocated -= own_ ? bytes_ : 0;
  }
  std::byte* contents() const override { return static_cast<std::byte*>(buffer_.contents); }
  size_t size() const override { return bytes_; }
  id<MTLBuffer> buffer() const { return buffer_; }

 private:
  id<MTLBuffer> buffer_;
  size_t bytes_;
  std::shared_ptr<Shared> shared_;
  bool own_;
};

class ApplePipeline final : public Pipeline {
 public:
  explicit ApplePipeline(id<MTLComputePipelineState> state) : state_(state) {}
  uint32_t max_threads() const override { return static_cast<uint32_t>(state_.maxTotalThreadsPerThreadgroup); }
  id<MTLComputePipelineState> state() const { return state_; }

 private:
  id<MTLComputePipelineState> state_;
};

class AppleLibrary final : public Library {
 public:
  AppleLibrary(id<MTLLibrary> library, std::string name) : library_(library), name_(std::move(name)) {}

  Result<std::unique_ptr<Pipeline>> pipeline(const PipelineSpec& spec) override {
    @autoreleasepool {
      MTLFunctionConstantValues* values = [[MTLFunctionConstantValues alloc] init];
      for (const FunctionConstant& constant : spec.constants) {
        constexpr MTLDataType kTypes[] = {MTLDataTypeBool, MTLDataTypeInt, MTLDataTypeUInt, MTLDataTypeFloat};
        std::visit(
            [&](auto value) {
              [values setConstantValue:&value type:kTypes[constant.value.index()] atIndex:constant.index];
            },
            constant.value);
      }
      const std::string what = "kernel '" + spec.kernel + "' of library '" + name_ + "'";
      NSError* error = nil;
      id<MTLFunction> function = [library_ newFunctionWithName:ns(spec.kernel) constantValues:values error:&error];
      if (function == nil) {
        return failure(what, error);
      }
      id<MTLComputePipelineState> state = [library_.device newComputePipelineStateWithFunction:function error:&error];
      if (state == nil) {
        return failure(what, error);
      }
      if (state.threadExecutionWidth != kSimdWidth || state.staticThreadgroupMemoryLength > kThreadgroupBytes) {
        return fail(ErrorKind::unsupported,
                    "device 'metal': {}: SIMD groups of {} and {} bytes of threadgroup memory, expected {} and at most {}",
                    what, state.threadExecutionWidth, state.staticThreadgroupMemoryLength, kSimdWidth, kThreadgroupBytes);
      }
      return std::make_unique<ApplePipeline>(state);
    }
  }

 private:
  id<MTLLibrary> library_;
  std::string name_;
};

class AppleCommands final : public Commands {
 public:
  AppleCommands(id<MTLCommandBuffer> commands, id<MTLComputeCommandEncoder> encoder, std::shared_ptr<Shared> shared)
      : commands_(commands), encoder_(encoder), shared_(std::move(shared)) {}
  AppleCommands(const AppleCommands&) = delete;
  AppleCommands& operator=(const AppleCommands&) = delete;
  ~AppleCommands() override { [encoder_ endEncoding]; }  // nil after commit

  void set_pipeline(const Pipeline& pipeline) override {
    state_ = static_cast<const ApplePipeline&>(pipeline).state();
    [encoder_ setComputePipelineState:state_];
  }
  void set_buffer(uint32_t index, const Buffer& buffer, size_t offset, size_t bytes) override {
    if (sound(fault_of_binding(index, buffer.size(), offset, bytes))) {
      [encoder_ setBuffer:static_cast<const AppleBuffer&>(buffer).buffer() offset:offset atIndex:index];
    }
  }
  void set_bytes(uint32_t index, const void* data, size_t bytes) override {
    if (sound(fault_of_bytes(index, bytes))) {
      [encoder_ setBytes:data length:bytes atIndex:index];
    }
  }
  void set_threadgroup_bytes(uint32_t index, size_t bytes) override {
    if (sound(fault_of_threadgroup(index, bytes))) {
      [encoder_ setThreadgroupMemoryLength:bytes atIndex:index];
    }
  }
  void dispatch(Size3 groups, Size3 threads) override {
    if (sound(fault_of_dispatch(groups, threads, state_.maxTotalThreadsPerThreadgroup))) {  // 0 without a pipeline
      [encoder_ dispatchThreadgroups:MTLSizeMake(groups.x, groups.y, groups.z)
               threadsPerThreadgroup:MTLSizeMake(threads.x, threads.y, threads.z)];
    }
  }
  void barrier() override { [encoder_ memoryBarrierWithScope:MTLBarrierScopeBuffers]; }

  Result<void> commit() override {
    if (encoder_ == nil) {
      return fail(ErrorKind::internal, "device 'metal': a command buffer was committed before");
    }
    @autoreleasepool {
      [encoder_ endEncoding];
      encoder_ = nil;
      if (!fault_.empty()) {
        return fail(ErrorKind::internal, "device 'metal': {}, in '{}'", fault_, text_of(commands_.label));
      }
      shared_->residency->settle();
      [commands_ commit];
      committed_ = true;
    }
    return {};
  }
  bool completed() const override { return commands_.status >= MTLCommandBufferStatusCompleted; }
  Result<void> wait() override {
    if (!committed_) {
      return fail(ErrorKind::internal, "device 'metal': command buffer '{}' was not committed", text_of(commands_.label));
    }
    @autoreleasepool {
      [commands_ waitUntilCompleted];
      if (commands_.status != MTLCommandBufferStatusCompleted) {
        return failure(text_of(commands_.label), commands_.error);
      }
    }
    return {};
  }
  double seconds() const override { return commands_.GPUEndTime - commands_.GPUStartTime; }

 private:
  // Whether there is no fault; keeps the first one for commit().
  bool sound(std::string fault) {
    const bool none = fault.empty();
    fault_ = fault_.empty() ? std::move(fault) : fault_;
    return none;
  }

  id<MTLCommandBuffer> commands_;
  id<MTLComputeCommandEncoder> encoder_;
  id<MTLComputePipelineState> state_ = nil;
  std::shared_ptr<Shared> shared_;
  std::string fault_;
  bool committed_ = false;
};

class AppleDevice final : public Device {
 public:
  explicit AppleDevice(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {
    id<MTLDevice> device = shared_->device;
    traits_ = {text_of(device.name), device.recommendedMaxWorkingSetSize, device.maxBufferLength,
               static_cast<uint64_t>(getpagesize())};
  }

  const Traits& traits() const override { return traits_; }

  Result<std::unique_ptr<Buffer>> buffer(size_t bytes, std::string_view label) override {
    @autoreleasepool {
      LILY_TRY_VOID(check_buffer(bytes, traits_, label));
      return wrap([shared_->device newBufferWithLength:bytes options:MTLResourceStorageModeShared], bytes, label, true);
    }
  }

  Result<std::unique_ptr<Buffer>> map(const void* address, size_t bytes, std::string_view label) override {
    @autoreleasepool {
      LILY_TRY_VOID(check_mapping(address, bytes, traits_, label));
      return wrap([shared_->device newBufferWithBytesNoCopy:const_cast<void*>(address)
                                                     length:bytes
                                                    options:MTLResourceStorageModeShared
                                                deallocator:nil],
                  bytes, label, false);
    }
  }

  Result<std::unique_ptr<Library>> library(const LibrarySource& source) override {
    @autoreleasepool {
      MTLCompileOptions* options = [[MTLCompileOptions alloc] init];
      options.languageVersion = MTLLanguageVersion3_1;
      // Not a number and infinity mean something in lily: no fast mathematics.
      if (@available(macOS 15.0, *)) {
        options.mathMode = MTLMathModeSafe;
      } else {
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wdeprecated-declarations"
        options.fastMathEnabled = NO;
#pragma clang diagnostic pop
      }
      NSError* error = nil;
      id<MTLLibrary> library = [shared_->device newLibraryWithSource:ns(source.text) options:options error:&error];
      if (library == nil) {
        return failure("library '" + source.name + "'", error);
      }
      return std::make_unique<AppleLibrary>(library, source.name);
    }
  }

  Result<std::unique_ptr<Commands>> commands(std::string_view label) override {
    @autoreleasepool {
      id<MTLCommandBuffer> commands = [shared_->queue commandBuffer];
      commands.label = ns(label);
      id<MTLComputeCommandEncoder> encoder =
          [commands computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent];
      if (encoder == nil) {
        return fail(ErrorKind::internal, "device 'metal': no command buffer for '{}'", label);
      }
      return std::make_unique<AppleCommands>(commands, encoder, shared_);
    }
  }

  uint64_t allocated_bytes() const override { return shared_->allocated; }
  uint64_t peak_bytes() const override { return shared_->peak; }

 private:
  Result<std::unique_ptr<Buffer>> wrap(id<MTLBuffer> buffer, size_t bytes, std::string_view label, bool own) {
    if (buffer == nil) {
      return fail(ErrorKind::out_of_memory, "device 'metal': buffer '{}': no memory for {} bytes, {} are in use", label,
                  bytes, shared_->allocated);
    }
    buffer.label = ns(label);
    return std::make_unique<AppleBuffer>(buffer, bytes, shared_, own);
  }

  std::shared_ptr<Shared> shared_;
  Traits traits_;
};

}  // namespace

Result<std::unique_ptr<Device>> open_apple_device() {
  @autoreleasepool {
    auto shared = std::make_shared<Shared>();
    shared->device = MTLCreateSystemDefaultDevice();
    if (shared->device == nil) {
      return fail(ErrorKind::unsupported, "device 'metal': this machine has none");
    }
    // Apple7 is the M1: the first with SIMD groups of 32 whose matrices are in the language, and shared memory.
    if (![shared->device supportsFamily:MTLGPUFamilyApple7] || !shared->device.hasUnifiedMemory ||
        shared->device.maxThreadgroupMemoryLength < kThreadgroupBytes) {
      return fail(ErrorKind::unsupported, "device 'metal': {} is no GPU of Apple silicon", text_of(shared->device.name));
    }
    shared->queue = [shared->device newCommandQueue];
    if (shared->queue == nil) {
      return fail(ErrorKind::internal, "device 'metal': no command queue");
    }
    shared->residency = std::make_unique<Residency>(shared->device, shared->queue);
    return std::make_unique<AppleDevice>(std::move(shared));
  }
}

}  // namespace lily::metal

namespace lily {

Result<std::unique_ptr<Backend>> make_metal_backend(const BackendOptions& options) {
  LILY_TRY(std::unique_ptr<metal::Device> device, metal::open_apple_device());
  return metal::make_backend(std::move(device), "metal", options);
}

}  // namespace lily
