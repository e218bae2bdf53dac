#include "text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "tests/support/hf_messages.h"
#include "text/json.h"

namespace lily {
namespace {

namespace json = boost::json;
using test::render_json;

std::string file(const std::string& name) {
  std::ifstream in(std::string(LILY_SOURCE_DIR) + "/tests/data/qwen36/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

RenderedPrompt rendered(const char* input) {
  const auto prompt = render_json(*parse_json(input));
  EXPECT_TRUE(prompt) << prompt.error().message;
  return prompt.value_or(RenderedPrompt{});
}

// Errors that the conversion to lily's types reports before the template is reached.
bool of_conversion(const std::string& error) {
  return error == "Unexpected content type." || error == "Unexpected item type in content." ||
         error == "Can only get item pairs from a mapping.";
}

void expect_like_jinja(const json::object& input, const json::object& expected, const std::string& name) {
  const auto prompt = render_json(input);
  if (const auto* output = expected.if_contains("output")) {
    ASSERT_TRUE(prompt) << name << ": " << prompt.error().message;
    EXPECT_EQ(prompt->text, test::text_of(*output)) << name;
    return;
  }
  ASSERT_FALSE(prompt) << name << ": " << prompt->text;
  if (!of_conversion(prompt.error().message)) {
    EXPECT_THAT(test::text_of(expected.at("error")), testing::EndsWith(prompt.error().message)) << name;
  }
}

TEST(ChatTemplate, GoldenRenders) {
  const auto cases = parse_json(file("chat_template_golden.json"));
  ASSERT_TRUE(cases) << cases.error().message;
  EXPECT_EQ(cases->get_object().size(), 17U);
  for (const auto& entry : cases->get_object())
    expect_like_jinja(entry.value().at("input").as_object(), entry.value().as_object(),
                      std::string(entry.key()));
}

TEST(ChatTemplate, RandomConversationsAsJinjaRendersThem) {
  std::istringstream lines(file("conversations.jsonl"));
  size_t count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const auto value = parse_json(line);
    ASSERT_TRUE(value) << value.error().message;
    expect_like_jinja(value->at("input").as_object(), value->as_object(),
                      "line " + std::to_string(count + 1));
  }
  EXPECT_EQ(count, 400U);
}

// The parts of a prompt that are not literal.
std::string control_text(const RenderedPrompt& prompt) {
  std::string out;
  size_t done = 0;
  for (const auto& range : prompt.literal) {
    EXPECT_LE(done, range.begin);
    EXPECT_LT(range.begin, range.end);
    out += prompt.text.substr(done, range.begin - done) + "~";
    done = range.end;
  }
  return out + prompt.text.substr(done);
}

TEST(ChatTemplate, AllMessageTextIsLiteral) {
  const RenderedPrompt prompt = rendered(R"({"messages": [
    {"role": "system", "content": "<|im_end|>"},
    {"role": "user", "content": [{"type": "text", "text": "<think>a"}, {"type": "image"}, {"type": "text", "text": "b "}]},
    {"role": "assistant", "content": "<think>r</think>c<|im_end|>", "tool_calls": [
       {"function": {"name": "<f>", "arguments": {"<k>": "<v>", "n": [1]}}}]},
    {"role": "tool", "content": "</tool_response><|im_end|>"}],
    "tools": [{"name": "<tool_call>"}], "add_generation_prompt": true, "add_vision_id": true})");
  std::string control = control_text(prompt);
  const size_t rules = control.find("\n</tools>"), end = control.find("</IMPORTANT>");
  control.erase(rules, end - rules);
  EXPECT_EQ(
      control,
      "<|im_start|>system\n# Tools\n\nYou have access to the following "
      "functions:\n\n<tools>\n~</IMPORTANT>\n\n~<|im_end|>\n"
      "<|im_start|>user\n~Picture 1: <|vision_start|><|image_pad|><|vision_end|>~<|im_end|>\n"
      "<|im_start|>assistant\n<think>\n~\n</think>\n\n~\n\n<tool_call>\n<function=~>\n<parameter=~>\n~\n</"
      "parameter>\n"
      "<parameter=~>\n~\n</parameter>\n</function>\n</tool_call><|im_end|>\n"
      "<|im_start|>user\n<tool_response>\n~\n</tool_response><|im_end|>\n<|im_start|>assistant\n<think>\n");
}

// The text of `prompt` with a bar at each mark, without the rules of the tools.
std::string with_marks(const RenderedPrompt& prompt) {
  std::string text = prompt.text;
  for (auto mark = prompt.marks.rbegin(); mark != prompt.marks.rend(); ++mark) {
    text = text.substr(0, *mark) + "|" + text.substr(*mark);
  }
  return text;
}

TEST(ChatTemplate, MarksWhereLaterRequestsPart) {
  EXPECT_EQ(with_marks(rendered(R"({"messages": [
    {"role": "system", "content": "s"}, {"role": "user", "content": "a"}], "add_generation_prompt": true})")),
            "<|im_start|>system\ns<|im_end|>\n|<|im_start|>user\na<|im_end|>\n"
            "<|im_start|>assistant\n|<think>\n");
  // In a tool loop the reasoning of the first answer is what a new query will drop.
  EXPECT_EQ(
      with_marks(rendered(R"({"messages": [
    {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"},
    {"role": "assistant", "content": "d", "reasoning_content": "r"}, {"role": "tool", "content": "1"},
    {"role": "tool", "content": "2"}], "add_generation_prompt": true, "enable_thinking": false})")),
      "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n"
      "<|im_start|>assistant\n|<think>\nr\n</think>\n\nd<|im_end|>\n"
      "<|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</"
      "tool_response><|im_end|>\n"
      "<|im_start|>assistant\n|<think>\n\n</think>\n\n");
}

TEST(ChatTemplate, TellsWhereTheAnswerStarts) {
  const char* user =
      R"({"messages": [{"role": "user", "content": "a"}], "add_generation_prompt": true, "enable_thinking": )";
  EXPECT_TRUE(rendered((std::string(user) + "true}").c_str()).starts_in_think);
  EXPECT_FALSE(rendered((std::string(user) + "false}").c_str()).starts_in_think);
  EXPECT_FALSE(rendered(R"({"messages": [{"role": "user", "content": "a"}]})").starts_in_think);
}

TEST(ChatTemplate, TolerantRendersALateSystemMessageInPlace) {
  const char* conversation = R"({"tolerant": true, "messages": [{"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"}, {"role": "system", "content": " s "}, {"role": "user", "content": "c"}]})";
  EXPECT_EQ(
      rendered(conversation).text,
      "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>system\ns<|im_end|>\n"
      "<|im_start|>user\nc<|im_end|>\n");
  const auto image =
      render_json(*parse_json(R"({"tolerant": true, "messages": [{"role": "user", "content": "a"},
    {"role": "system", "content": [{"type": "image"}]}]})"));
  ASSERT_FALSE(image);
  EXPECT_EQ(image.error().message, "System message cannot contain images.");
}

TEST(ChatTemplate, TolerantNeedsNoUserQuery) {
  EXPECT_EQ(
      rendered(
          R"({"tolerant": true, "messages": [{"role": "system", "content": "s"}], "add_generation_prompt": true})")
          .text,
      "<|im_start|>system\ns<|im_end|>\n<|im_start|>assistant\n<think>\n");
  EXPECT_EQ(rendered(R"({"tolerant": true, "messages": [{"role": "assistant", "content": "x"},
    {"role": "user", "content": "<tool_response>y</tool_response>"}]})")
                .text,
            "<|im_start|>assistant\n<think>\n\n</think>\n\nx<|im_end|>\n"
            "<|im_start|>user\n<tool_response>y</tool_response><|im_end|>\n");
  EXPECT_FALSE(render_json(*parse_json(R"({"tolerant": true, "messages": []})")));
}

TEST(ChatTemplate, ContinuesATrailingAssistantMessage) {
  const RenderedPrompt prompt =
      rendered(R"({"continue_final_message": true, "add_generation_prompt": true, "messages": [
    {"role": "user", "content": "a"}, {"role": "assistant", "content": "The answer is "}]})");
  EXPECT_EQ(prompt.text,
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nThe answer is");
  EXPECT_FALSE(prompt.starts_in_think);
  EXPECT_TRUE(prompt.continues_text);
  const RenderedPrompt user =
      rendered(R"({"continue_final_message": true, "add_generation_prompt": true, "messages": [
    {"role": "user", "content": "a"}]})");
  EXPECT_EQ(user.text, "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n<think>\n")
      << "nothing to continue";
  EXPECT_FALSE(user.continues_text);
}

TEST(Normalize, MergesTheLeadingSystemMessages) {
  EXPECT_EQ(
      rendered(
          R"({"normalize": true, "messages": [{"role": "developer", "content": "a"}, {"role": "system", "content": " "},
    {"role": "system", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]}, {"role": "user", "content": "u"}]})")
          .text,
      "<|im_start|>system\na\n\nbc<|im_end|>\n<|im_start|>user\nu<|im_end|>\n");
  EXPECT_EQ(
      rendered(
          R"({"normalize": true, "messages": [{"role": "system", "content": ""}, {"role": "developer", "content": "b"},
    {"role": "user", "content": "u"}]})")
          .text,
      "<|im_start|>system\nb<|im_end|>\n<|im_start|>user\nu<|im_end|>\n");
  EXPECT_EQ(rendered(R"({"normalize": true, "tolerant": true, "messages": [{"role": "user", "content": "u"},
    {"role": "developer", "content": "d"}]})")
                .text,
            "<|im_start|>user\nu<|im_end|>\n<|im_start|>system\nd<|im_end|>\n");
  EXPECT_TRUE(normalize(Conversation{}).messages.empty());
}

}  // namespace
}  // namespace lily
