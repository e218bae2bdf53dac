#include "backends/metal/residency.h"

#include <algorithm>
#include <cstring>

namespace lily::metal {
namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kCopyBytes = size_t{1}
                              << 30;  // most bytes of one buffer of copies, unless a piece is larger

size_t align(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
uintptr_t address_of(const std::byte* data) { return reinterpret_cast<uintptr_t>(data); }

}  // namespace

void Residency::add(const AffineMatrix& matrix, Matrix& to) {
  to.rows = matrix.rows;
  to.cols = matrix.cols;
  pieces_.push_back({matrix.codes, matrix.experts * matrix.code_bytes(), &to.codes});
  pieces_.push_back({matrix.scales, matrix.experts * matrix.scale_bytes(), &to.scales});
  pieces_.push_back({matrix.biases, matrix.experts * matrix.scale_bytes(), &to.biases});
}

void Residency::add(std::vector<float> values, View& to) { values_.push_back({std::move(values), &to}); }

// Kernels read words: a piece at another address is copied. A window ends with its file, where a whole page
// lies between two pieces, and where a buffer would be too large.
std::vector<Residency::Window> Residency::windows(Mappings mappings, const Traits& traits,
                                                  std::vector<const Piece*>& copied) const {
  std::vector<const Piece*> order;
  for (const Piece& piece : pieces_) {
    order.push_back(&piece);
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const Piece* a, const Piece* b) { return a->data < b->data; });
  std::vector<Window> windows;
  const uint64_t page = traits.page_bytes;
  size_t file_of_window = 0;
  for (const Piece* piece : order) {
    const auto file = std::find_if(mappings.begin(), mappings.end(), [&](std::span<const std::byte> bytes) {
      return piece->data >= bytes.data() && piece->data + piece->bytes <= bytes.data() + bytes.size();
    });
    const uintptr_t first = address_of(piece->data) / page * page;
    const uintptr_t end = (address_of(piece->data) + piece->bytes + page - 1) / page * page;
    if (file == mappings.end() || address_of(piece->data) % 4 != 0 || end - first > traits.max_buffer_bytes) {
      copied.push_back(piece);
      continue;
    }
    const auto file_index = static_cast<size_t>(file - mappings.begin());
    Window* window = windows.empty() ? nullptr : &windows.back();
    if (window == nullptr || file_index != file_of_window ||
        first > address_of(window->begin) + window->bytes ||
        end - address_of(window->begin) > traits.max_buffer_bytes) {
      windows.push_back({piece->data - (address_of(piece->data) - first), 0, {}});
      window = &windows.back();
      file_of_window = file_index;
    }
    window->bytes = std::max<size_t>(window->bytes, end - address_of(window->begin));
    window->pieces.push_back(piece);
  }
  return windows;
}

Residency::Need Residency::need(Mappings mappings, const Traits& traits) const {
  Need need;
  std::vector<const Piece*> copied;
  for (const Window& window : windows(mappings, traits, copied)) {
    need.mapped += window.bytes;
  }
  for (const Piece* piece : copied) {
    need.copied += align(piece->bytes);
  }
  for (const Values& values : values_) {
    need.copied += align(values.floats.size() * sizeof(float));
  }
  return need;
}

Result<void> Residency::copy(Device& device, std::span<const Piece* const> pieces,
                             FunctionRef<void(double)> progress) {
  for (size_t first = 0; first < pieces.size();) {
    size_t end = first;
    size_t bytes = 0;
    while (end < pieces.size() && (end == first || bytes + align(pieces[end]->bytes) <= kCopyBytes)) {
      bytes += align(pieces[end++]->bytes);
    }
    LILY_TRY(std::unique_ptr<Buffer> buffer, device.buffer(bytes, "copied weights"));
    size_t offset = 0;
    for (; first < end; ++first) {
      const Piece& piece = *pieces[first];
      std::memcpy(buffer->contents() + offset, piece.data, piece.bytes);
      *piece.to = {buffer.get(), offset, piece.bytes};
      offset += align(piece.bytes);
    }
    buffers_.push_back(std::move(buffer));
    progress(static_cast<double>(end) / static_cast<double>(pieces.size()));
  }
  return {};
}

Result<void> Residency::load(Device& device, Mappings mappings, FunctionRef<void(double)> progress) {
  std::vector<const Piece*> copied;
  for (const Window& window : windows(mappings, device.traits(), copied)) {
    LILY_TRY(std::unique_ptr<Buffer> buffer, device.map(window.begin, window.bytes, "mapped weights"));
    for (const Piece* piece : window.pieces) {
      *piece->to = {buffer.get(), static_cast<size_t>(piece->data - window.begin), piece->bytes};
    }
    buffers_.push_back(std::move(buffer));
  }
  LILY_TRY_VOID(copy(device, copied, progress));
  size_t total = 0;
  for (const Values& values : values_) {
    total += align(values.floats.size() * sizeof(float));
  }
  LILY_TRY(std::unique_ptr<Buffer> buffer,
           device.buffer(std::max<size_t>(total, kAlignment), "norms and gates"));
  size_t offset = 0;
  for (const Values& values : values_) {
    const size_t bytes = values.floats.size() * sizeof(float);
    std::memcpy(buffer->contents() + offset, values.floats.data(), bytes);
    *values.to = {buffer.get(), offset, bytes};
    offset += align(bytes);
  }
  buffers_.push_back(std::move(buffer));
  progress(1.0);
  return {};
}

}  // namespace lily::metal
