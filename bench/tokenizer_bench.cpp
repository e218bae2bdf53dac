// tokenizer_bench FOLDER [benchmark options]: MB/s of the tokenizer whose files are in FOLDER.
#include <benchmark/benchmark.h>

#include <iostream>
#include <random>

#include "text/tokenizer.h"

namespace {

using lily::Tokenizer;

std::string repeated(std::string_view text, size_t bytes) {
  std::string out;
  while (out.size() < bytes) out += text;
  return out;
}

// A different word at every place, so that nothing is measured twice.
std::string random_words(size_t bytes, std::string_view letters, bool spaces) {
  std::mt19937 random(1);
  std::string out;
  while (out.size() < bytes) {
    const size_t length = 1 + random() % 9;
    for (size_t i = 0; i < length; ++i) out += letters[random() % letters.size()];
    if (spaces) out += ' ';
  }
  return out;
}

constexpr std::string_view kEnglish =
    "The harbour master kept a ledger in which every vessel, however small, was entered with the hour of its "
    "arrival, the state of the tide and the name of whoever held the tiller. \"It's a habit,\" he'd say, "
    "\"and "
    "habits outlive harbours.\" By 1937 there were forty-one volumes; nobody had opened the first "
    "eleven.\n\n";
constexpr std::string_view kCode =
    "def merge(left: list[int], right: list[int]) -> list[int]:\n    out, i, j = [], 0, 0\n    while i < "
    "len(left) and j < len(right):\n        if left[i] <= right[j]:\n            out.append(left[i]); i += "
    "1\n"
    "        else:\n            out.append(right[j]); j += 1\n    return out + left[i:] + right[j:]\n";
constexpr std::string_view kChinese =
    "港务长有一本账簿，每一艘船，无论多小，都要记下它抵达的时刻、潮水的状况和掌舵人的名字。他常说：“这是习惯"
    "，"
    "而习惯比港口活得更久。”到了一九三七年，账簿已有四十一卷；最前面的十一卷从来没有人翻开过。\n";
constexpr std::string_view kRussian =
    "Начальник порта вёл книгу, куда записывал каждое судно, даже самое маленькое, час его прихода, "
    "состояние "
    "прилива и имя того, кто держал румпель. «Привычка», — говорил он, — «а привычки переживают порты».\n";
constexpr std::string_view kHindi =
    "बंदरगाह के मुखिया एक बही रखते थे जिसमें हर जहाज़ का नाम, उसके आने का समय और ज्वार की दशा लिखी जाती थी।\n";

void encode(benchmark::State& state, const Tokenizer& tokenizer, const std::string& text) {
  size_t tokens = 0;
  for (auto _ : state) tokens = tokenizer.encode(text).size();
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
  state.counters["tokens"] = static_cast<double>(tokens);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: tokenizer_bench FOLDER [benchmark options]\n";
    return 2;
  }
  const std::string folder = argv[1];
  auto tokenizer = Tokenizer::load(folder);
  if (!tokenizer) {
    std::cerr << tokenizer.error().text() << "\n";
    return 1;
  }
  argv[1] = argv[0];
  --argc;
  ++argv;
  constexpr size_t kBytes = 1 << 20;
  const std::string letters = "etaoinshrdlcumwfgypbvk";
  const std::vector<std::pair<std::string, std::string>> texts = {
      {"english", repeated(kEnglish, kBytes)},
      {"code", repeated(kCode, kBytes)},
      {"chinese", repeated(kChinese, kBytes)},
      {"russian", repeated(kRussian, kBytes)},
      {"hindi", repeated(kHindi, kBytes)},
      {"random_words", random_words(kBytes, letters, true)},
      {"one_word_of_a", std::string(kBytes, 'a')},
      {"one_random_word", random_words(kBytes, letters, false)},
      {"spaces", std::string(kBytes, ' ')},
      {"newlines", std::string(kBytes, '\n')},
      {"punctuation", random_words(kBytes, "<>!?.,;:=-_(){}[]/", false)},
      {"angle_brackets", std::string(kBytes, '<')},
  };
  for (const auto& [name, text] : texts)
    benchmark::RegisterBenchmark(name.c_str(), [&, text_ = &text](benchmark::State& state) {
      encode(state, **tokenizer, *text_);
    })->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark("load", [&](benchmark::State& state) {
    for (auto _ : state) benchmark::DoNotOptimize(Tokenizer::load(folder));
  })->Unit(benchmark::kMillisecond);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
