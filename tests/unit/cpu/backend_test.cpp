// The backend as a whole on the small shape: the promises that hold whatever shares a pass, as equality of
// bits, for every instruction set.
#include "backends/cpu/backend.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "backends/cpu/blocks/cpu_blocks.h"
#include "backends/host/host_backend.h"
#include "tests/support/random_weights.h"
#include "tests/unit/cpu/isa_param.h"

namespace lily::cpu {
namespace {

using Logits = std::vector<float>;
using Tokens = std::vector<int32_t>;

const Shape kShape = kTiny.with_layers(4);

const ModelWeights& tiny_weights() {
  static const lily::test::RandomWeights weights(kShape);
  return weights.get();
}

Plan plan_of(uint32_t chunk) { return *make_plan(kShape, {.context = 2048, .sequences = 8, .chunk = chunk}); }

std::unique_ptr<host::HostBackend> make_backend(const Kernels& kernels, unsigned threads,
                                                const ModelWeights& weights = tiny_weights()) {
  auto backend =
      std::make_unique<host::HostBackend>(DeviceInfo{}, std::make_unique<CpuBlocks>(kernels, threads));
  const auto loaded = backend->load(weights, plan_of(1024), [](double) {});
  EXPECT_TRUE(loaded.has_value()) << loaded.error().message;
  return backend;
}

Tokens tokens_of(uint32_t count, uint32_t seed) {
  std::mt19937 engine(seed);
  Tokens tokens(count);
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>(engine() % kShape.vocab);
  }
  return tokens;
}

// The wanted logits of each slice.
std::vector<Logits> run(Backend& backend, const std::vector<Slice>& slices) {
  const auto ticket = backend.submit({.slices = slices});
  EXPECT_TRUE(ticket.has_value()) << ticket.error().message;
  auto output = backend.collect(*ticket);
  EXPECT_TRUE(output.has_value()) << output.error().message;
  std::vector<Logits> logits;
  for (SliceOutput& slice : output->slices) {
    EXPECT_TRUE(slice.finite);
    logits.push_back(std::move(slice.logits));
  }
  return logits;
}

Slice slice_of(SequenceState& state, std::span<const int32_t> tokens, Keep keep = Keep::all_rows) {
  return {.state = &state,
          .tokens = tokens,
          .sampling = {},
          .logits_rows = static_cast<uint32_t>(tokens.size()),
          .keep = keep};
}

// One sequence in chunks of `chunk` rows; logits of its last `wanted` tokens, which are a chunk of their own.
Logits alone(Backend& backend, std::span<const int32_t> tokens, uint32_t chunk, size_t wanted = 4) {
  const auto state = *backend.new_state(2048);
  const auto before = tokens.first(tokens.size() - wanted);
  for (size_t begin = 0; begin < before.size(); begin += chunk) {
    Slice slice = slice_of(*state, before.subspan(begin, std::min<size_t>(chunk, before.size() - begin)));
    slice.logits_rows = 0;
    run(backend, {slice});
  }
  return run(backend, {slice_of(*state, tokens.last(wanted))}).front();
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

class CpuBackend : public test::IsaTest {};

TEST_P(CpuBackend, ChunksDoNotChangeABit) {
  const auto backend = make_backend(kernels(), 2);
  // Long: more than a batch of rows and a partition of tokens.
  const std::vector<std::pair<uint32_t, std::vector<uint32_t>>> any{{70, {70, 1, 7, 64}},
                                                                    {550, {550, 100, 512}}};
  // Products of bf16: all chunks are long segments, or none is; and chunks of the delta rule are not cut.
  const std::vector<std::pair<uint32_t, std::vector<uint32_t>>> of_one_kind{
      {67, {31, 1, 7}}, {132, {128, 32, 64}}, {552, {548, 96, 512}}};
  for (const auto& [count, chunks] : kernels().halves ? of_one_kind : any) {
    const Tokens tokens = tokens_of(count, 1);
    const Logits first = alone(*backend, tokens, chunks[0]);
    for (const uint32_t chunk : chunks) {
      EXPECT_TRUE(same_bits(first, alone(*backend, tokens, chunk))) << count << " by " << chunk;
    }
  }
}

// Whether a segment is long is its own matter: short ones before and behind it, and other long ones.
TEST_P(CpuBackend, SegmentsOfAllLengthsDoNotChangeABitOfEachOther) {
  const auto backend = make_backend(kernels(), 2);
  const std::array<uint32_t, 6> rows{1, 40, 33, 2, 300, 31};
  std::vector<Tokens> tokens;
  std::vector<std::unique_ptr<SequenceState>> states;
  std::vector<Slice> slices;
  for (const uint32_t count : rows) {
    tokens.push_back(tokens_of(count, count));
    states.push_back(*backend->new_state(2048));
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    slices.push_back(slice_of(*states[i], tokens[i]));
    slices.back().logits_rows = 1;
  }
  const auto together = run(*backend, slices);
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto state = *backend->new_state(2048);
    Slice slice = slice_of(*state, tokens[i]);
    slice.logits_rows = 1;
    EXPECT_TRUE(same_bits(together[i], run(*backend, {slice}).front())) << rows[i];
  }
}

TEST_P(CpuBackend, CompanionsDoNotChangeABit) {
  const auto backend = make_backend(kernels(), 2);
  const std::array<Tokens, 3> tokens{tokens_of(40, 2), tokens_of(70, 3), tokens_of(30, 4)};
  std::array<Logits, 3> together;
  std::array<std::unique_ptr<SequenceState>, 3> states;
  for (auto& state : states) {
    state = *backend->new_state(2048);
  }
  // A chunk beside single rows, then all single rows.
  for (size_t done : {0, 10, 11, 12, 13, 29}) {
    const size_t rows = done == 0 ? 10 : done == 13 ? 16 : 1;
    std::vector<Slice> slices;
    for (size_t i = 0; i < 3; ++i) {
      slices.push_back(slice_of(*states[i], std::span(tokens[i]).subspan(done, rows)));
    }
    const auto logits = run(*backend, slices);
    for (size_t i = 0; i < 3; ++i) {
      together[i].insert(together[i].end(), logits[i].begin(), logits[i].end());
    }
  }
  for (size_t i = 0; i < 3; ++i) {
    const Logits single = alone(*backend, std::span(tokens[i]).first(30), 30, 30);
    EXPECT_TRUE(same_bits(together[i], single)) << i;
  }
}

TEST_P(CpuBackend, ThreadsDoNotChangeABit) {
  const Tokens tokens = tokens_of(80, 5);
  const Logits one = alone(*make_backend(kernels(), 1), tokens, 33);
  for (const unsigned threads : {2U, 3U, 5U}) {
    EXPECT_TRUE(same_bits(one, alone(*make_backend(kernels(), threads), tokens, 33))) << threads;
  }
}

TEST_P(CpuBackend, AnAcceptedDraftContinuesAsIfItHadBeenAllThereWas) {
  const auto backend = make_backend(kernels(), 2);
  const Tokens tokens = tokens_of(31, 6);
  const Logits want = alone(*backend, tokens, 31, 31);
  for (uint32_t accepted = 1; accepted <= 5; ++accepted) {
    const auto state = *backend->new_state(2048);
    run(*backend, {slice_of(*state, std::span(tokens).first(20))});
    Tokens draft(tokens.begin() + 20, tokens.begin() + 25);
    for (uint32_t i = accepted; i < 5; ++i) {
      draft[i] = 17;  // rejected
    }
    const Logits seen = run(*backend, {slice_of(*state, draft, Keep::until_accept)}).front();
    EXPECT_TRUE(same_bits(std::span(seen).first(accepted * kShape.vocab),
                          std::span(want).subspan(20 * kShape.vocab, accepted * kShape.vocab)));
    ASSERT_TRUE(state->accept(accepted).has_value());
    const Logits rest = run(*backend, {slice_of(*state, std::span(tokens).subspan(20 + accepted))}).front();
    EXPECT_TRUE(same_bits(rest, std::span(want).subspan((20 + accepted) * kShape.vocab))) << accepted;
  }
}

TEST_P(CpuBackend, TakesOtherFormats) {
  for (const uint32_t group : {32U, 64U}) {
    for (const DType type : {DType::f16, DType::f32}) {
      const lily::test::RandomWeights weights(kShape, {.bits = group == 32 ? 8U : 4U,
                                                       .group = group,
                                                       .router_bits = 4,
                                                       .scale_type = type,
                                                       .dense_type = type});
      const auto backend = make_backend(kernels(), 2, weights.get());
      const Tokens tokens = tokens_of(9, 7);
      EXPECT_TRUE(same_bits(alone(*backend, tokens, 9), alone(*backend, tokens, 2)));
    }
  }
}

// All variants compute the same function: they differ by rounding, which four layers keep small.
TEST_P(CpuBackend, AgreesWithTheScalarVariant) {
  const Tokens tokens = tokens_of(100, 8);
  const Logits want = alone(*make_backend(kScalarKernels, 2), tokens, 100);
  const Logits logits = alone(*make_backend(kernels(), 2), tokens, 100);
  double difference = 0;
  double size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += std::pow(double{logits[i]} - want[i], 2);
    size += std::pow(double{want[i]}, 2);
  }
  // docs/NUMERICS.md, "Two instruction sets".
  EXPECT_LT(std::sqrt(difference / size), kernels().halves ? 1.5e-2 : 5e-3);
}

// Which kernels ran is seen by wrapping them.
std::array<uint64_t, 6> calls{};
const Kernels* wrapped = nullptr;

TEST_P(CpuBackend, RunsTheKernelsThatWereForced) {
  calls = {};
  wrapped = &kernels();
  Kernels counting = kernels();
  counting.matmul = [](const MatmulArgs& args) {
    __atomic_add_fetch(&calls[args.matrix->digits == kHalves ? 3 : 0], 1, __ATOMIC_RELAXED);
    wrapped->matmul(args);
  };
  counting.delta_rule = [](const DeltaArgs& args) {
    __atomic_add_fetch(&calls[1], 1, __ATOMIC_RELAXED);
    wrapped->delta_rule(args);
  };
  counting.attend = [](const AttendArgs& args) {
    __atomic_add_fetch(&calls[2], 1, __ATOMIC_RELAXED);
    wrapped->attend(args);
  };
  if (wrapped->delta_chunks != nullptr) {
    counting.delta_chunks = [](const DeltaChunksArgs& args) {
      __atomic_add_fetch(&calls[4], 1, __ATOMIC_RELAXED);
      wrapped->delta_chunks(args);
    };
    counting.attend_rows = [](const AttendRowsArgs& args) {
      __atomic_add_fetch(&calls[5], 1, __ATOMIC_RELAXED);
      wrapped->attend_rows(args);
    };
  }
  alone(*make_backend(counting, 2), tokens_of(2, 9), 2, 2);
  EXPECT_GT(calls[0], 0U);
  EXPECT_EQ(calls[1], 3U * kShape.v_heads) << "once per delta-net layer and v head";
  EXPECT_EQ(calls[2], 2U * kShape.kv_heads) << "once per row and key-value head";
  EXPECT_EQ(calls[3], 0U);
  const auto backend = make_backend(counting, 2);
  alone(*backend, tokens_of(35, 9), 31);
  for (const size_t of_long : {3, 4, 5}) {
    EXPECT_EQ(calls[of_long], 0U) << "a segment of 31 rows is not long";
  }
  calls = {};
  alone(*backend, tokens_of(34, 9), 32, 2);
  for (const size_t of_long : {3, 4, 5}) {
    EXPECT_EQ(calls[of_long] != 0, kernels().halves) << "one of 32 is";
  }
  const bool by_chunks = kernels().delta_chunks != nullptr;
  EXPECT_EQ(calls[1], 3U * kShape.v_heads * (by_chunks ? 1 : 2)) << "of the two tokens behind it alone";
  EXPECT_EQ(calls[2], 2U * kShape.kv_heads * (by_chunks ? 1 : 17)) << "for each row";
}

TEST_P(CpuBackend, SaysWhatItRunsOn) {
  if (emulated()) {
    EXPECT_FALSE(make_cpu_backend({.threads = 1, .isa = GetParam()}).has_value()) << "for tests only";
    return;
  }
  const auto backend = make_cpu_backend({.threads = 1, .isa = GetParam()});
  ASSERT_TRUE(backend.has_value());
  EXPECT_EQ((*backend)->device().name, "cpu");
  EXPECT_TRUE((*backend)->device().description.ends_with(", 1 thread, " + GetParam()))
      << (*backend)->device().description;
}

LILY_FOR_EACH_ISA(CpuBackend);

// Tiles sum the same integers, and scale them in the same order.
TEST(Tiles, DoNotChangeABit) {
  if (!test::can_emulate_amx()) {
    GTEST_SKIP() << "tiles are emulated on processors with AVX-512 VNNI";
  }
  const Tokens tokens = tokens_of(300, 8);
  const Logits want = alone(*make_backend(*avx512vnni_kernels(), 2), tokens, 300);
  EXPECT_TRUE(same_bits(want, alone(*make_backend(*test::emulated_amx_kernels(), 2), tokens, 300)));
  if (const auto amx = choose_kernels("amx")) {
    EXPECT_TRUE(same_bits(want, alone(*make_backend(**amx, 2), tokens, 300)));
  }
}

TEST(MakeCpuBackend, ComputesWithAtMostOneThreadPerCore) {
  const auto backend = make_cpu_backend({.threads = usable_cores() + 3, .isa = "scalar"});
  ASSERT_TRUE(backend.has_value());
  const std::string& description = (*backend)->device().description;
  EXPECT_NE(description.find(fmt::format(", {} thread", usable_cores())), std::string::npos) << description;
}

TEST(MakeCpuBackend, RefusesAnUnknownInstructionSet) {
  const auto backend = make_cpu_backend({.threads = 1, .isa = "sse9"});
  ASSERT_FALSE(backend.has_value());
  EXPECT_EQ(backend.error().kind, ErrorKind::invalid_input);
}

// A batch of rows may end within a segment, but not within a chunk of the delta rule of one that is computed
// by chunks: that would be another sum, and an answer would depend on who shares its passes.
TEST(CpuBlocksBatches, EndBetweenChunksOfLongSegments) {
  const std::vector<host::Segment> segments{{nullptr, 0, 100, 3, false},
                                            {nullptr, 100, 3000, 10, false, ReadAs::many},
                                            {nullptr, 3100, 900, 0, false},
                                            {nullptr, 4000, 2100, 7, false, ReadAs::single}};
  for (const bool halves : {false, true}) {
    std::vector<Piece> pieces;
    uint32_t next = 0;  // row of the stream
    for_batches(segments, halves, pieces, [&](std::span<const Piece> batch, uint32_t first, uint32_t rows) {
      EXPECT_LE(rows, kBatchRows);
      for (const Piece& piece : batch) {
        const auto& of = *std::ranges::find_if(segments, [&](const host::Segment& segment) {
          return next >= segment.first_row && next < segment.first_row + segment.rows;
        });
        EXPECT_EQ(first + piece.first_row, next);
        EXPECT_EQ(of.first_row + piece.skipped, next);
        EXPECT_EQ(of.position + piece.skipped, piece.position);
        EXPECT_EQ(piece.halves, halves && of.read_as != ReadAs::single);
        next += piece.rows;
        if (piece.halves && next < of.first_row + of.rows) {
          EXPECT_EQ((piece.position + piece.rows) % kDeltaChunk, 0U) << next;
        }
      }
      EXPECT_EQ(next, first + rows);
    });
    EXPECT_EQ(next, 6100U);
  }
}

// The batches of a plan and of a smaller pass must fit the workspace that was estimated: run the largest.
TEST(CpuBlocksMemory, EstimateIsWhatTheBlocksAllocate) {
  CpuBlocks blocks(kScalarKernels, 1);
  const MemoryNeed small = blocks.estimate(tiny_weights(), plan_of(16));
  const MemoryNeed large = blocks.estimate(tiny_weights(), plan_of(1024));
  EXPECT_LT(small.workspace, large.workspace);
  EXPECT_LT(large.workspace, 64U << 20);
  EXPECT_EQ(large.mapped, tiny_weights().embed.table.total_bytes());
  EXPECT_GE(large.weights, packed_forms(tiny_weights()).total_bytes());
}

}  // namespace
}  // namespace lily::cpu
