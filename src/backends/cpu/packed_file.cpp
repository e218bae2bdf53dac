#include "backends/cpu/packed_file.h"

#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <fstream>
#include <optional>

#include "base/hash.h"
#include "base/log.h"
#include "weights/faults.h"

namespace lily::cpu {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kPage = 4096;
constexpr uint32_t kSamples = 4;  // blocks of each matrix that are compared

struct Header {
  std::array<char, 8> magic;
  uint32_t version;
  uint32_t matrices;
  uint64_t forms;    // hash of all formats
  uint64_t bytes;    // of the whole file
  Hash128 contents;  // of all matrices
  int64_t written;   // the time of the last change, in seconds of std::filesystem's clock
  uint64_t check;    // hash of the fields above
};
constexpr std::array<char, 8> kMagic{'L', 'I', 'L', 'Y', 'P', 'A', 'C', 'K'};

// FNV-1a.
uint64_t hash_of(const void* data, size_t size, uint64_t hash = 0xcbf29ce484222325ULL) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < size; ++i) {
    hash = (hash ^ bytes[i]) * 0x100000001b3ULL;
  }
  return hash;
}

uint64_t to_page(uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

Header header_of(const ModelWeights& weights, PackedModel& model) {
  Header header{.magic = kMagic,
                .version = kPackedVersion,
                .matrices = 0,
                .forms = 0,
                .bytes = kPage,
                .contents = {},
                .written = 0,
                .check = 0};
  for_each_matrix(weights, model, [&](MatrixKind, const AffineMatrix&, PackedMatrix& m) {
    const std::array<uint32_t, 6> form{m.rows, m.cols,  m.experts,
                                       m.bits, m.group, static_cast<uint32_t>(m.scale_type)};
    header.forms = hash_of(form.data(), sizeof(form), header.forms);
    header.bytes += to_page(m.total_bytes());
    ++header.matrices;
  });
  return header;
}

// The time of the last change is set to a whole second, which hardly any other change has.
constexpr auto kResolution = std::chrono::seconds(2);  // of file systems that keep the least of it
// Where it cannot be set, every start reads and compares all of the file.
void set_written(const fs::path& path, int64_t seconds) {
  std::error_code ignored;
  fs::last_write_time(path, fs::file_time_type(std::chrono::seconds(seconds)), ignored);
}
std::optional<fs::file_time_type> last_change(const fs::path& path) {
  std::error_code error;
  const auto time = fs::last_write_time(path, error);
  return error ? std::nullopt : std::optional(time);
}

Hash128 hash_of_matrices(const ModelWeights& weights, PackedModel& model) {
  Hasher hasher;
  for_each_matrix(weights, model, [&](MatrixKind, const AffineMatrix&, PackedMatrix& m) {
    hasher.update({m.data, m.total_bytes()});
  });
  return hasher.digest();
}

// Whether some blocks at `data`, the first and the last among them, are those of `from`.
bool holds(const std::byte* data, const AffineMatrix& from, const PackedMatrix& form) {
  const size_t blocks = size_t{form.experts} * form.blocks();
  const size_t bytes = block_bytes(form);
  std::vector<std::byte> packed(bytes);
  for (size_t sample = 0; sample < kSamples; ++sample) {
    const size_t i = (blocks - 1) * sample / (kSamples - 1);
    const auto expert = from.expert(static_cast<uint32_t>(i / form.blocks()));
    pack_block(expert, form, static_cast<uint32_t>(i % form.blocks()), packed.data());
    if (std::memcmp(packed.data(), data + i * bytes, bytes) != 0) {
      return false;
    }
  }
  return true;
}

}  // namespace

Result<void> map_packed(const fs::path& path, const ModelWeights& weights, PackedModel& model) {
  LILY_TRY(MappedFile file, MappedFile::open(path));
  const auto bytes = file.bytes();
  const Header expected = header_of(weights, model);
  Header found{};
  if (bytes.size() < kPage) {
    return fail(ErrorKind::invalid_input, "{}: expected a packed model, found {} bytes",
                in_quotes(path.string()), bytes.size());
  }
  std::memcpy(&found, bytes.data(), sizeof(found));
  if (found.magic != kMagic) {
    return fail(ErrorKind::invalid_input, "{}: not a packed model, or damaged", in_quotes(path.string()));
  }
  if (found.version != expected.version) {  // first: another version has its other fields elsewhere
    return fail(ErrorKind::invalid_input, "{}: expected version {}, found {}", in_quotes(path.string()),
                expected.version, found.version);
  }
  if (found.check != hash_of(&found, offsetof(Header, check))) {
    return fail(ErrorKind::invalid_input, "{}: damaged", in_quotes(path.string()));
  }
  if (found.forms != expected.forms || found.matrices != expected.matrices || found.bytes != expected.bytes) {
    return fail(ErrorKind::invalid_input, "{}: packed from a model of other shapes or formats",
                in_quotes(path.string()));
  }
  if (bytes.size() != expected.bytes) {
    return fail(ErrorKind::invalid_input, "{}: expected {} bytes, found {}", in_quotes(path.string()),
                expected.bytes, bytes.size());
  }
  const std::byte* data = bytes.data() + kPage;
  bool same = true;
  for_each_matrix(weights, model, [&](MatrixKind, const AffineMatrix& from, PackedMatrix& to) {
    same = same && holds(data, from, to);
    to.data = data;
    data += to_page(to.total_bytes());
  });
  if (!same) {
    return fail(ErrorKind::invalid_input, "{}: packed from other weights, or damaged",
                in_quotes(path.string()));
  }
  const auto changed = last_change(path);
  if (changed != fs::file_time_type(std::chrono::seconds(found.written))) {
    log_info("{}: changed or copied since it was written; all of it is read and compared with its hash",
             in_quotes(path.string()));
    if (hash_of_matrices(weights, model) != found.contents) {
      return fail(ErrorKind::invalid_input, "{}: damaged", in_quotes(path.string()));
    }
    if (last_change(path) == changed) {  // else the hash is of what was there before
      set_written(path, found.written);
    }
  }
  model.file = std::move(file);
  return {};
}

Result<void> write_packed(const fs::path& path, const ModelWeights& weights, PackedModel& model) {
  Header header = header_of(weights, model);
  header.contents = hash_of_matrices(weights, model);
  const auto now = fs::file_time_type::clock::now().time_since_epoch();
  header.written = std::chrono::duration_cast<std::chrono::seconds>(now / kResolution * kResolution).count();
  header.check = hash_of(&header, offsetof(Header, check));
  std::error_code error;
  const fs::space_info space = fs::space(path.parent_path(), error);
  if (!error && space.available < header.bytes) {
    return fail(ErrorKind::limit, "{}: needs {:.2f} GB, the disk has {:.2f} GB free",
                in_quotes(path.string()), static_cast<double>(header.bytes) / 1e9,
                static_cast<double>(space.available) / 1e9);
  }
  const fs::path part = path.string() + fmt::format(".{}.part", ::getpid());
  std::ofstream out(part, std::ios::binary | std::ios::trunc);
  std::array<char, kPage> page{};
  std::memcpy(page.data(), &header, sizeof(header));
  out.write(page.data(), page.size());
  page.fill(0);
  for_each_matrix(weights, model, [&](MatrixKind, const AffineMatrix&, PackedMatrix& m) {
    const uint64_t bytes = m.total_bytes();
    out.write(reinterpret_cast<const char*>(m.data), static_cast<std::streamsize>(bytes));
    out.write(page.data(), static_cast<std::streamsize>(to_page(bytes) - bytes));
  });
  out.close();
  if (out) {
    set_written(part, header.written);
    fs::rename(part, path, error);
  }
  if (!out || error) {
    std::error_code ignored;
    fs::remove(part, ignored);
    return fail(ErrorKind::io, "{}: cannot be written", in_quotes(path.string()));
  }
  return {};
}

}  // namespace lily::cpu
