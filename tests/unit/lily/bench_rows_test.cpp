#include "apps/lily/bench_rows.h"

#include <gmock/gmock.h>

namespace lily::app {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ParseList, AscendingAndEachOnce) {
  EXPECT_THAT(*parse_list("7", 0, 10), ElementsAre(7));
  EXPECT_THAT(*parse_list("0,4096,32768", 0, 262'144), ElementsAre(0, 4096, 32768));
  EXPECT_THAT(*parse_list("8,1,8,2", 1, 8), ElementsAre(1, 2, 8));
}

TEST(ParseList, RefusesWhatIsNoListOfNumbersInRange) {
  for (const char* text : {"", ",", "1,", ",1", "1,,2", "x", "1x", "-1", "+1", " 1", "1 ", "1.5", "11", "0",
                           "1;2", "99999999999999999999"}) {
    const auto values = parse_list(text, 1, 10);
    ASSERT_FALSE(values.has_value()) << text;
    EXPECT_EQ(values.error().kind, ErrorKind::invalid_input);
    EXPECT_THAT(values.error().message, HasSubstr("from 1 to 10"));
    EXPECT_THAT(values.error().message, HasSubstr(std::string("'") + text + "'"));
  }
}

TEST(StatisticOf, MedianAndSpread) {
  EXPECT_EQ(statistic_of({5}).median, 5);
  EXPECT_EQ(statistic_of({5}).spread, 0);
  EXPECT_EQ(statistic_of({9, 10, 14}).median, 10);
  EXPECT_DOUBLE_EQ(statistic_of({14, 9, 10}).spread, 0.5);
  EXPECT_EQ(statistic_of({4, 1, 3, 2}).median, 2.5);
}

// By hand from the shape: what a token multiplies with in each kind of layer.
TEST(MultiplyAdds, AreThoseOfTheActiveWeights) {
  for (const Shape& shape : {kTiny, kQwen36, kQwen36.with_layers(8)}) {
    const uint64_t h = shape.hidden;
    const uint64_t delta =
        h * (shape.conv_channels() + shape.value_width() + 2 * shape.v_heads) + shape.value_width() * h;
    const uint64_t attention = h * (2 * shape.q_width() + 2 * shape.kv_width()) + shape.q_width() * h;
    const uint64_t moe = h * (shape.experts + 1 + 3 * shape.shared_ffn + 8 * 3 * shape.expert_ffn);
    EXPECT_EQ(multiply_adds_per_token(shape),
              shape.delta_net_layers() * delta + shape.attention_layers() * attention + shape.layers * moe);
    EXPECT_EQ(multiply_adds_of_head(shape), uint64_t{shape.vocab} * h);
  }
}

const DeviceLimits kLimits{.read_bytes_per_second = 1e9, .multiply_adds_per_second = 1e12, .multiply = "toy"};

TEST(MakeRow, DecodeIsAShareOfTheReadBandwidth) {
  const std::vector<BenchRun> runs{{.tokens = 20,
                                    .seconds = 2.0,
                                    .first_token = 0.2,
                                    .bytes_read = 1'000'000'000,
                                    .head_rows = 20,
                                    .ids = {}},
                                   {.tokens = 20,
                                    .seconds = 4.0,
                                    .first_token = 0.4,
                                    .bytes_read = 1'000'000'000,
                                    .head_rows = 20,
                                    .ids = {}},
                                   {.tokens = 20,
                                    .seconds = 2.5,
                                    .first_token = 0.1,
                                    .bytes_read = 1'000'000'000,
                                    .head_rows = 20,
                                    .ids = {}}};
  const BenchRow row = make_row({BenchPhase::decode, 0, 128, 2}, runs, kLimits, kTiny);
  EXPECT_DOUBLE_EQ(row.tok_s, 8);
  EXPECT_DOUBLE_EQ(row.spread, (10.0 - 5.0) / 8);
  EXPECT_DOUBLE_EQ(row.bytes_per_token, 5e7);
  EXPECT_DOUBLE_EQ(row.gb_s, 0.4);
  EXPECT_DOUBLE_EQ(row.share_of_limit, 0.4);
  EXPECT_DOUBLE_EQ(row.ttft_s, 0.2);
  EXPECT_EQ(row.measured.depth, 128U);
}

TEST(MakeRow, PrefillIsAShareOfTheMultiplyAdds) {
  const std::vector<BenchRun> runs{{.tokens = 200,
                                    .seconds = 2.0,
                                    .first_token = 2.0,
                                    .bytes_read = 4'000'000,
                                    .head_rows = 2,
                                    .ids = {}}};
  const BenchRow row = make_row({BenchPhase::prefill, 100, 0, 2}, runs, kLimits, kTiny);
  EXPECT_DOUBLE_EQ(row.tok_s, 100);
  EXPECT_DOUBLE_EQ(row.gb_s, 0.002);
  const double multiply_adds = 200.0 * static_cast<double>(multiply_adds_per_token(kTiny)) +
                               2.0 * static_cast<double>(multiply_adds_of_head(kTiny));
  EXPECT_NEAR(row.share_of_limit, multiply_adds / 2.0 / 1e12, 1e-12);
}

TEST(Fingerprint, DependsOnEveryTokenAndTheirOrderAndNotOnHowTheyCame) {
  const auto of = [](std::vector<std::vector<int32_t>> parts) {
    Fingerprint fingerprint;
    for (const auto& part : parts) {
      fingerprint.add(part);
    }
    return fingerprint.text();
  };
  EXPECT_EQ(of({}), "cbf29ce484222325");
  EXPECT_EQ(of({{1, 2, 3}}), of({{1}, {2, 3}}));
  EXPECT_NE(of({{1, 2, 3}}), of({{1, 3, 2}}));
  EXPECT_NE(of({{1, 2, 3}}), of({{1, 2}}));
  EXPECT_NE(of({{1}}), of({{257}}));
  EXPECT_EQ(of({{97}}), fmt::format("{:016x}", [] {  // FNV-1a of "a\0\0\0"
              uint64_t hash = 0xCBF29CE484222325;
              for (const unsigned char byte : {'a', '\0', '\0', '\0'}) {
                hash = (hash ^ byte) * 0x100000001B3;
              }
              return hash;
            }()));
}

}  // namespace
}  // namespace lily::app
