#include "engine/disk_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "model/plan.h"

namespace lily {
namespace {

constexpr std::string_view kMagic = "LILYKEPT";
constexpr uint32_t kVersion = 1;
constexpr size_t kHashBytes = 16;
constexpr size_t kFixedBytes = 8 + 4 + 4 + 2 * kHashBytes + 4 + 4;

void append(std::vector<std::byte>& out, uint64_t value, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) out.push_back(std::byte((value >> (8 * i)) & 0xffU));
}
void append(std::vector<std::byte>& out, Hash128 hash) {
  append(out, hash.high, 8);
  append(out, hash.low, 8);
}

// Takes values off the front of `bytes`, which has them.
class Taker {
 public:
  explicit Taker(std::span<const std::byte> bytes) : bytes_(bytes) {}
  uint64_t value(size_t bytes) {
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; ++i) value |= std::to_integer<uint64_t>(bytes_[i]) << (8 * i);
    bytes_ = bytes_.subspan(bytes);
    return value;
  }
  uint32_t u32() { return static_cast<uint32_t>(value(4)); }
  Hash128 hash() {
    Hash128 hash;
    hash.high = value(8);
    hash.low = value(8);
    return hash;
  }

 private:
  std::span<const std::byte> bytes_;
};

std::vector<std::byte> bytes_of(const DiskHead& head) {
  std::vector<std::byte> out(kMagic.size());
  std::memcpy(out.data(), kMagic.data(), kMagic.size());
  append(out, kVersion, 4);
  append(out, static_cast<uint32_t>(head.kind), 4);
  append(out, head.store);
  append(out, head.prefix);
  append(out, head.begin, 4);
  append(out, head.end, 4);
  for (const int32_t id : head.ids) append(out, static_cast<uint32_t>(id), 4);
  return out;
}

Hash128 hash_of(std::span<const std::byte> bytes) {
  Hasher hasher;
  hasher.update(bytes);
  return hasher.digest();
}

std::filesystem::path unfinished(const std::filesystem::path& path) {
  return path.string() + DiskWriter::kUnfinished;
}

}  // namespace

Descriptor::~Descriptor() {
  if (number_ >= 0) ::close(number_);
}

Result<DiskWriter> DiskWriter::create(const std::filesystem::path& path, const DiskHead& head) {
  DiskWriter writer;
  const std::filesystem::path name = unfinished(path);
  // Conversations are for their owner's eyes.
  writer.file_ = Descriptor(::open(name.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (writer.file_.get() < 0) return fail_errno("cannot create", name.string());
  writer.path_ = path;
  std::vector<std::byte> bytes = bytes_of(head);
  append(bytes, hash_of(bytes));
  LILY_TRY_VOID(writer.put(bytes));
  return writer;
}

DiskWriter::~DiskWriter() {
  if (file_.get() >= 0 && !path_.empty()) ::unlink(unfinished(path_).c_str());
}

Result<void> DiskWriter::put(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(file_.get(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return fail_errno("cannot write", unfinished(path_).string());
    bytes = bytes.subspan(static_cast<size_t>(count));
    bytes_ += static_cast<uint64_t>(count);
  }
  return {};
}

Result<void> DiskWriter::write(std::span<const std::byte> bytes) {
  hasher_.update(bytes);
  return put(bytes);
}

Result<void> DiskWriter::finish() {
  std::vector<std::byte> sum;
  append(sum, hasher_.digest());
  LILY_TRY_VOID(put(sum));
  const std::filesystem::path from = unfinished(path_);
  if (::fsync(file_.get()) != 0) return fail_errno("cannot flush", from.string());
  if (::rename(from.c_str(), path_.c_str()) != 0) return fail_errno("cannot rename", from.string());
  path_.clear();
  return {};
}

Result<void> flush_folder(const std::filesystem::path& folder) {
  const Descriptor open(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (open.get() < 0 || ::fsync(open.get()) != 0) return fail_errno("cannot flush", folder.string());
  return {};
}

Result<DiskReader> DiskReader::open(const std::filesystem::path& path) {
  DiskReader reader;
  reader.path_ = path;
  // O_NONBLOCK: a named pipe is found to be none of ours, and not waited for.
  reader.file_ = Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat status {};
  if (reader.file_.get() < 0 || ::fstat(reader.file_.get(), &status) != 0) {
    return fail_errno("cannot open", path.string());
  }
  if (!S_ISREG(status.st_mode))
    return fail(ErrorKind::invalid_input, "'{}' is no regular file", path.string());
  reader.size_ = static_cast<uint64_t>(status.st_size);
  LILY_TRY_VOID(reader.read_head());
  return reader;
}

Result<void> DiskReader::get(std::span<std::byte> into) {
  while (!into.empty()) {
    const ssize_t count = ::read(file_.get(), into.data(), into.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return fail_errno("cannot read", path_.string());
    if (count == 0) return fail(ErrorKind::invalid_input, "'{}' ends early", path_.string());
    into = into.subspan(static_cast<size_t>(count));
  }
  return {};
}

Result<void> DiskReader::read_head() {
  std::vector<std::byte> head(kFixedBytes);
  LILY_TRY_VOID(get(head));
  if (std::memcmp(head.data(), kMagic.data(), kMagic.size()) != 0) {
    return fail(ErrorKind::invalid_input, "'{}' is no file of lily's", path_.string());
  }
  Taker taker(std::span<const std::byte>(head).subspan(kMagic.size()));
  const uint32_t version = taker.u32();
  if (version != kVersion) {
    return fail(ErrorKind::unsupported, "'{}' is of version {}: expected {}", path_.string(), version,
                kVersion);
  }
  const uint32_t kind = taker.u32();
  head_.kind = static_cast<DiskKind>(kind);
  head_.store = taker.hash();
  head_.prefix = taker.hash();
  head_.begin = taker.u32();
  head_.end = taker.u32();
  const bool known =
      kind == static_cast<uint32_t>(DiskKind::checkpoint) || kind == static_cast<uint32_t>(DiskKind::rows);
  if (!known || head_.begin > head_.end || head_.end > Limits::kMaxContext) {
    return fail(ErrorKind::invalid_input, "'{}' is damaged: its head makes no sense", path_.string());
  }
  const size_t ids = head_.kind == DiskKind::checkpoint ? head_.end : 0;
  head.resize(kFixedBytes + ids * sizeof(int32_t));
  LILY_TRY_VOID(get(std::span(head).subspan(kFixedBytes)));
  Taker rest(std::span<const std::byte>(head).subspan(kFixedBytes));
  for (size_t i = 0; i < ids; ++i) head_.ids.push_back(static_cast<int32_t>(rest.u32()));
  std::array<std::byte, kHashBytes> sum{};
  LILY_TRY_VOID(get(sum));
  if (Taker(sum).hash() != hash_of(head)) {
    return fail(ErrorKind::invalid_input, "'{}' is damaged: the checksum of its head is wrong",
                path_.string());
  }
  const uint64_t around = head.size() + 2 * kHashBytes;
  if (size_ < around) return fail(ErrorKind::invalid_input, "'{}' ends early", path_.string());
  left_ = size_ - around;
  return {};
}

Result<void> DiskReader::read(std::span<std::byte> into) {
  if (into.size() > left_) return fail(ErrorKind::invalid_input, "'{}' ends early", path_.string());
  LILY_TRY_VOID(get(into));
  left_ -= into.size();
  hasher_.update(into);
  return {};
}

Result<void> DiskReader::finish() {
  if (left_ > 0) {
    return fail(ErrorKind::invalid_input, "'{}' holds {} bytes more than expected", path_.string(), left_);
  }
  std::array<std::byte, kHashBytes> sum{};
  LILY_TRY_VOID(get(sum));
  if (Taker(sum).hash() != hasher_.digest()) {
    return fail(ErrorKind::invalid_input, "'{}' is damaged: the checksum of its contents is wrong",
                path_.string());
  }
  return {};
}

Result<void> DiskReader::verify() {
  std::vector<std::byte> some(size_t{1} << 20U);
  while (left_ > 0) {
    const size_t count = std::min<uint64_t>(left_, some.size());
    LILY_TRY_VOID(read(std::span(some).first(count)));
  }
  return finish();
}

}  // namespace lily
