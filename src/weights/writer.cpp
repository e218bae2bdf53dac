#include "weights/writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "weights/faults.h"
#include "weights/json.h"

namespace lily {
namespace {

namespace json = boost::json;
namespace fs = std::filesystem;

struct Place {
  size_t file;
  uint64_t begin;  // of the tensor's data, in the file
};

struct OpenFile {
  fs::path path;
  int descriptor = -1;
  uint64_t size = 0;
};

// The length of the header, the header, and its padding to 8 bytes.
std::string header_of(std::span<const TensorPlan> tensors) {
  json::object header;
  header["__metadata__"] = {{"format", "mlx"}};
  uint64_t offset = 0;
  for (const TensorPlan& tensor : tensors) {
    header[tensor.name] = {{"dtype", to_string(tensor.type)},
                           {"shape", json::array(tensor.shape.begin(), tensor.shape.end())},
                           {"data_offsets", {offset, offset + tensor.bytes()}}};
    offset += tensor.bytes();
  }
  std::string text = json::serialize(header);
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string out(8, '\0');
  for (size_t i = 0; i < 8; ++i) {
    out[i] = static_cast<char>(static_cast<uint64_t>(text.size()) >> (8 * i));
  }
  return out + text;
}

Result<void> write_at(const OpenFile& file, uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::pwrite(file.descriptor, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      return fail_errno("cannot write", file.path.string());
    }
    bytes = bytes.subspan(static_cast<size_t>(count));
    offset += static_cast<uint64_t>(count);
  }
  return {};
}

Result<void> reserve(const OpenFile& file) {
#if defined(__linux__)
  if (::fallocate(file.descriptor, 0, 0, static_cast<off_t>(file.size)) == 0) {
    return {};
  }
  if (errno != EOPNOTSUPP && errno != ENOSYS) {
    return fail_errno(fmt::format("cannot reserve {} bytes for", file.size), file.path.string());
  }
#endif
  if (::ftruncate(file.descriptor, static_cast<off_t>(file.size)) != 0) {
    return fail_errno(fmt::format("cannot size to {} bytes", file.size), file.path.string());
  }
  return {};
}

Result<OpenFile> create_file(const fs::path& path, uint64_t size) {
  OpenFile file{path, ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666), size};
  if (file.descriptor < 0) {
    return fail_errno("cannot create", path.string());
  }
  if (auto reserved = reserve(file); !reserved) {
    ::close(file.descriptor);
    return fail(std::move(reserved).error());
  }
  return file;
}

// How many tensors each file takes: in order, up to `shard_bytes`; a larger tensor has a file of its own.
std::vector<size_t> split(const std::vector<TensorPlan>& tensors, uint64_t shard_bytes) {
  std::vector<size_t> counts;
  uint64_t filled = 0;
  for (const TensorPlan& tensor : tensors) {
    if (counts.empty() || filled + tensor.bytes() > shard_bytes) {
      counts.push_back(0);
      filled = 0;
    }
    ++counts.back();
    filled += tensor.bytes();
  }
  return counts;
}

}  // namespace

uint64_t TensorPlan::bytes() const {
  uint64_t total = size_of(type);
  for (const uint64_t size : shape) {
    total *= size;
  }
  return total;
}

struct CheckpointWriter::Impl {
  fs::path folder;
  std::vector<TensorPlan> tensors;
  std::vector<Place> places;  // of each tensor
  std::vector<OpenFile> files;
  uint64_t total = 0;
  mutable std::atomic<uint64_t> written{0};

  ~Impl() {
    for (const OpenFile& file : files) {
      if (file.descriptor >= 0) {
        ::close(file.descriptor);
      }
    }
  }

  Result<void> add_file(size_t first, size_t count, size_t file_count) {
    const std::string header = header_of(std::span(tensors).subspan(first, count));
    uint64_t size = header.size();
    for (size_t i = first; i < first + count; ++i) {
      places.push_back({files.size(), size});
      size += tensors[i].bytes();
    }
    const std::string name =
        file_count == 1 ? "model.safetensors"
                        : fmt::format("model-{:05}-of-{:05}.safetensors", files.size() + 1, file_count);
    LILY_TRY(OpenFile file, create_file(folder / name, size));
    files.push_back(std::move(file));
    return write_at(files.back(), 0, std::as_bytes(std::span(header)));
  }

  Result<void> write_index() const {
    json::object map;
    for (size_t i = 0; i < tensors.size(); ++i) {
      map[tensors[i].name] = files[places[i].file].path.filename().string();
    }
    const json::object root{{"metadata", {{"total_size", total}}}, {"weight_map", std::move(map)}};
    const std::string text = json_pretty(root, /*sorted=*/true);
    LILY_TRY(const OpenFile file, create_file(folder / "model.safetensors.index.json", text.size()));
    auto written_index = write_at(file, 0, std::as_bytes(std::span(text)));
    if (written_index && ::fsync(file.descriptor) != 0) {
      written_index = fail_errno("cannot flush", file.path.string());
    }
    ::close(file.descriptor);
    return written_index;
  }
};

CheckpointWriter::CheckpointWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CheckpointWriter::CheckpointWriter(CheckpointWriter&&) noexcept = default;
CheckpointWriter& CheckpointWriter::operator=(CheckpointWriter&&) noexcept = default;
CheckpointWriter::~CheckpointWriter() = default;

Result<CheckpointWriter> CheckpointWriter::create(const fs::path& folder, std::vector<TensorPlan> tensors,
                                                  uint64_t shard_bytes) {
  auto impl = std::make_unique<Impl>();
  impl->folder = folder;
  impl->tensors = std::move(tensors);
  for (const TensorPlan& tensor : impl->tensors) {
    impl->total += tensor.bytes();
  }
  const std::vector<size_t> counts = split(impl->tensors, shard_bytes);
  size_t first = 0;
  for (const size_t count : counts) {
    LILY_TRY_VOID(impl->add_file(first, count, counts.size()));
    first += count;
  }
  return CheckpointWriter(std::move(impl));
}

const std::vector<TensorPlan>& CheckpointWriter::tensors() const { return impl_->tensors; }
uint64_t CheckpointWriter::total_bytes() const { return impl_->total; }

Result<void> CheckpointWriter::write(size_t index, uint64_t offset, std::span<const std::byte> bytes) const {
  LILY_CHECK(index < impl_->tensors.size() && offset + bytes.size() <= impl_->tensors[index].bytes());
  const Place& place = impl_->places[index];
  LILY_TRY_VOID(write_at(impl_->files[place.file], place.begin + offset, bytes));
  impl_->written.fetch_add(bytes.size(), std::memory_order_relaxed);
  return {};
}

Result<void> CheckpointWriter::finish() {
  LILY_CHECK(impl_->written.load() == impl_->total);
  for (OpenFile& file : impl_->files) {
    if (::fsync(file.descriptor) != 0) {
      return fail_errno("cannot flush", file.path.string());
    }
    if (::close(std::exchange(file.descriptor, -1)) != 0) {
      return fail_errno("cannot close", file.path.string());
    }
  }
  return impl_->files.size() > 1 ? impl_->write_index() : Result<void>{};
}

}  // namespace lily
