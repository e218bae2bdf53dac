// The packed form, element by element, and what is given back of a mapped file.
#include "backends/cpu/packed_model.h"

#include <gmock/gmock.h>

#include <cstring>
#include <fstream>

#include "backends/cpu/blocks/cpu_blocks.h"
#include "backends/cpu/packed_file.h"

#include "tests/support/checkpoint_builder.h"
#include "tests/support/random_weights.h"
#include "weights/formats/affine.h"

namespace lily::cpu {
namespace {

// Where packed.h says that a code lies.
uint32_t code_at(const std::byte* group_codes, uint32_t bits, uint32_t output, uint32_t input) {
  const size_t vector = bits == 8 ? input / 8 * 2 + input % 2 : input / 8;
  const auto byte = static_cast<uint32_t>(group_codes[vector * 64 + size_t{output} * 4 + input % 8 / 2]);
  return bits == 8 ? byte : input % 2 == 0 ? byte & 15U : byte >> 4;
}

void expect_packed(const AffineMatrix& m, const PackedMatrix& packed) {
  ASSERT_EQ(reinterpret_cast<uintptr_t>(packed.data) % 64, 0U);
  const uint32_t groups = m.cols / m.group;
  const size_t size = scale_bytes(packed.scale_type);
  std::vector<uint8_t> codes(m.cols);
  for (uint32_t row = 0; row < packed.blocks() * 16; ++row) {
    const std::byte* block = packed.data + row / 16 * block_bytes(packed);
    if (row < m.rows) {
      decode_codes(m, row, codes);
    } else {
      std::fill(codes.begin(), codes.end(), uint8_t{0});
    }
    for (uint32_t g = 0; g < groups; ++g) {
      const std::byte* at = block + g * group_bytes(packed);
      const AffineGroup want = row < m.rows ? load_group(m, row, g) : AffineGroup{0, 0};
      ASSERT_EQ(load_float(at, packed.scale_type, row % 16), want.scale);
      ASSERT_EQ(load_float(at + 16 * size, packed.scale_type, row % 16), want.bias);
      for (uint32_t i = 0; i < m.group; ++i) {
        ASSERT_EQ(code_at(at + 32 * size, m.bits, row % 16, i), codes[g * m.group + i])
            << "row " << row << " input " << g * m.group + i;
      }
    }
  }
}

TEST(Packed, HoldsEveryCodeScaleAndBias) {
  ThreadPool pool(2);
  const Shape shape = kTiny.with_layers(4);
  for (const uint32_t bits : {4U, 8U}) {
    for (const auto& [group, type] :
         {std::pair{32U, DType::f16}, std::pair{64U, DType::bf16}, std::pair{128U, DType::f32}}) {
      const lily::test::RandomWeights weights(
          shape, {.bits = bits, .group = group, .router_bits = 12 - bits, .scale_type = type});
      const auto model = pack_model(weights.get(), pool, [](double) {});
      ASSERT_TRUE(model.has_value());
      const MoeWeights& moe = weights.get().layers[0].moe;
      const PackedMoe& packed = model->layers[0].moe;
      for (const uint32_t expert : {0U, 5U, shape.experts - 1}) {
        ASSERT_NO_FATAL_FAILURE(expect_packed(moe.down.expert(expert), packed.down.expert(expert)));
      }
      ASSERT_NO_FATAL_FAILURE(expect_packed(moe.router, packed.router));
      ASSERT_NO_FATAL_FAILURE(expect_packed(moe.shared_gate, packed.shared_gate));  // one output
    }
  }
}

TEST(Packed, ReportsItsSizeAndProgress) {
  ThreadPool pool(1);
  const lily::test::RandomWeights weights(kTiny.with_layers(4));
  double last = 0;
  const auto model = pack_model(weights.get(), pool, [&](double done) {
    EXPECT_GT(done, last);
    last = done;
  });
  ASSERT_TRUE(model.has_value());
  EXPECT_EQ(last, 1.0);
  uint64_t bytes = 0;
  for (const AlignedBytes& storage : model->storage) {
    bytes += storage.size();
  }
  EXPECT_EQ(model->total_bytes(), bytes);
  EXPECT_EQ(packed_forms(weights.get()).total_bytes(), bytes);
}

TEST(Packed, LayersThatShareBytesShareThemPacked) {
  ThreadPool pool(1);
  const lily::test::RandomWeights weights(kTiny.with_layers(8), {.share_layers = true});
  const auto model = pack_model(weights.get(), pool, [](double) {});
  ASSERT_TRUE(model.has_value());
  EXPECT_EQ(model->layers[0].moe.gate.data, model->layers[5].moe.gate.data);
}

// ---- the file ----

class PackedFile : public ::testing::Test {
 protected:
  std::string write() const {
    PackedModel model = *pack_model(weights_.get(), *pool_, [](double) {});
    const auto written = write_packed(path(), weights_.get(), model);
    return written ? "" : written.error().text();
  }
  std::filesystem::path path() const { return folder_.path() / "packed"; }
  // Why the file is refused for these weights; "" if it is mapped.
  std::string refusal(const ModelWeights& weights) const {
    PackedModel model = packed_forms(weights);
    const auto mapped = map_packed(path(), weights, model);
    return mapped ? "" : mapped.error().text();
  }
  void flip(size_t at) const {
    std::fstream file(path(), std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(static_cast<std::streamoff>(at));
    const auto byte = static_cast<char>(file.get() ^ 1);
    file.seekp(static_cast<std::streamoff>(at));
    file.put(byte);
  }

  lily::test::TempFolder folder_;
  std::unique_ptr<ThreadPool> pool_ = std::make_unique<ThreadPool>(1);
  lily::test::RandomWeights weights_{kTiny.with_layers(4)};
};

TEST_F(PackedFile, HoldsWhatWasPacked) {
  ASSERT_EQ(write(), "");
  PackedModel packed = *pack_model(weights_.get(), *pool_, [](double) {});
  PackedModel mapped = packed_forms(weights_.get());
  ASSERT_TRUE(map_packed(path(), weights_.get(), mapped).has_value());
  std::vector<const std::byte*> from;
  for_each_matrix(weights_.get(), packed,
                  [&](MatrixKind, const AffineMatrix&, PackedMatrix& m) { from.push_back(m.data); });
  size_t i = 0;
  for_each_matrix(weights_.get(), mapped, [&](MatrixKind, const AffineMatrix&, PackedMatrix& m) {
    EXPECT_EQ(std::memcmp(m.data, from[i++], m.total_bytes()), 0);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(m.data) % 64, 0U);
  });
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 1) << "no other file";
}

TEST_F(PackedFile, OfOtherWeightsIsRefused) {
  ASSERT_EQ(write(), "");
  EXPECT_EQ(refusal(weights_.get()), "");
  const lily::test::RandomWeights other(kTiny.with_layers(4), {.seed = 2});
  EXPECT_THAT(refusal(other.get()), ::testing::HasSubstr("other weights"));
  const lily::test::RandomWeights group(kTiny.with_layers(4), {.group = 32});
  EXPECT_THAT(refusal(group.get()), ::testing::HasSubstr("other shapes or formats"));
  const lily::test::RandomWeights longer(kTiny.with_layers(8));
  EXPECT_THAT(refusal(longer.get()), ::testing::HasSubstr("other shapes or formats"));
}

TEST_F(PackedFile, Damage) {
  EXPECT_THAT(refusal(weights_.get()), ::testing::HasSubstr("cannot open"));
  ASSERT_EQ(write(), "");
  flip(0);
  EXPECT_THAT(refusal(weights_.get()), ::testing::HasSubstr("not a packed model"));
  flip(0);
  flip(8);
  EXPECT_THAT(refusal(weights_.get()), ::testing::HasSubstr("expected version"));
  flip(8);
  flip(24);
  EXPECT_THAT(refusal(weights_.get()), ::testing::HasSubstr("damaged"));
  flip(24);
  flip(4096);  // the first block of the first matrix
  EXPECT_THAT(refusal(weights_.get()), ::testing::HasSubstr("damaged"));
  flip(4096);
  EXPECT_EQ(refusal(weights_.get()), "");
  const PackedMatrix head = packed_forms(weights_.get()).head;  // the last in the file
  const size_t pages = (head.total_bytes() + 4095) / 4096 * 4096;
  const size_t unseen = std::filesystem::file_size(path()) - pages + block_bytes(head);
  flip(unseen);  // the second block, which is not compared
  EXPECT_THAT(refusal(weights_.get()), ::testing::EndsWith("damaged"));
  flip(unseen);
  EXPECT_EQ(refusal(weights_.get()), "");
  const auto written = std::filesystem::last_write_time(path());
  flip(unseen);
  std::filesystem::last_write_time(path(), written);
  EXPECT_EQ(refusal(weights_.get()), "") << "a file that was not touched is not read again";
  flip(unseen);
  std::filesystem::resize_file(path(), std::filesystem::file_size(path()) - 1);
  EXPECT_THAT(refusal(weights_.get()), ::testing::HasSubstr("bytes, found"));
  std::filesystem::resize_file(path(), 100);
  EXPECT_THAT(refusal(weights_.get()), ::testing::HasSubstr("found 100 bytes"));
}

TEST_F(PackedFile, IsMadeAndThenUsedByTheBackend) {
  const auto plan = make_plan(kTiny.with_layers(4), {.context = 64, .sequences = 1, .chunk = 8});
  std::vector<float> first;
  for (int start = 0; start < 3; ++start) {
    if (start == 2) {
      flip(4096);  // ignored, and made again
    }
    CpuBlocks blocks(kScalarKernels, 1, path());
    ASSERT_TRUE(blocks.load(weights_.get(), *plan, [](double) {}).has_value());
    EXPECT_EQ(refusal(weights_.get()), "") << start;
    std::vector<float> stream(kTiny.hidden, 0.5F);
    std::vector<float> logits(kTiny.vocab);
    const uint32_t row = 0;
    blocks.head({&row, 1}, stream.data(), logits.data());
    first = start == 0 ? logits : first;
    EXPECT_EQ(logits, first);
  }
}

}  // namespace
}  // namespace lily::cpu
