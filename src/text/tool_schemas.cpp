#include "text/tool_schemas.h"

#include <algorithm>
#include <charconv>
#include <set>

namespace lily {

namespace {

namespace json = boost::json;

std::string_view view(const json::string& text) { return {text.data(), text.size()}; }

// %41 and the like in a reference, which is a URI.
std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned byte = 0;
    const char* digits = text.data() + i + 1;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      out += static_cast<char>(byte);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

// What a schema says of the types of one value, or of the properties of an object. Bounded in what it visits:
// schemas may refer to themselves.
class SchemaReader {
 public:
  using Properties = std::map<std::string, std::vector<JsonType>, std::less<>>;
  explicit SchemaReader(const json::value& root) : root_(root) {}

  std::vector<JsonType> types(const json::value& schema) {
    types_.clear();
    visits_ = 0;
    visit(schema);
    return types_;
  }

  // Those of the root, and of what it is put together from. A property that is declared twice may be either.
  void properties(Properties& out, std::vector<JsonType>& others) { properties(root_, out, others, 0); }

 private:
  static constexpr int kMostVisits = 256;
  static constexpr int kMostDepth = 16;
  static constexpr const char* kCombined[] = {"allOf", "anyOf", "oneOf"};

  static void merge(const std::vector<JsonType>& from, std::vector<JsonType>& to) {
    for (const JsonType type : from)
      if (std::find(to.begin(), to.end(), type) == to.end()) to.push_back(type);
  }
  void add(JsonType type) { merge({type}, types_); }

  void add_name(std::string_view name) {
    constexpr std::pair<std::string_view, JsonType> kNames[] = {
        {"null", JsonType::null},     {"boolean", JsonType::boolean}, {"integer", JsonType::integer},
        {"number", JsonType::number}, {"string", JsonType::string},   {"array", JsonType::array},
        {"object", JsonType::object},
    };
    // Google's schemas write them in capitals.
    const auto same = [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a - 'A' + 'a' : a) == b; };
    for (const auto& [known, type] : kNames)
      if (std::equal(name.begin(), name.end(), known.begin(), known.end(), same)) add(type);
  }

  void add_kind(const json::value& value) {
    switch (value.kind()) {
      case json::kind::null:
        return add(JsonType::null);
      case json::kind::bool_:
        return add(JsonType::boolean);
      case json::kind::int64:
      case json::kind::uint64:
        return add(JsonType::integer);
      case json::kind::double_:
        return add(JsonType::number);
      case json::kind::string:
        return add(JsonType::string);
      case json::kind::array:
        return add(JsonType::array);
      case json::kind::object:
        return add(JsonType::object);
    }
  }

  void visit_all(const json::object& schema, const char* key) {
    const json::value* list = schema.if_contains(key);
    if (list == nullptr || !list->is_array()) return;
    for (const json::value& item : list->get_array()) visit(item);
  }

  // What `$ref` points to in the same schema; null: nothing.
  const json::value* referred(const json::object& schema) const {
    const json::value* reference = schema.if_contains("$ref");
    if (reference == nullptr || !reference->is_string()) return nullptr;
    std::string_view path = view(reference->get_string());
    if (!path.starts_with('#')) return nullptr;
    path.remove_prefix(1);
    boost::system::error_code error;
    const json::value* target = root_.find_pointer(percent_decoded(path), error);
    return error ? nullptr : target;
  }

  void visit(const json::value& value) {
    if (!value.is_object() || depth_ >= kMostDepth || ++visits_ > kMostVisits) return;
    ++depth_;
    const json::object& schema = value.get_object();
    const size_t before = types_.size();
    if (const json::value* target = referred(schema)) visit(*target);
    if (const json::value* type = schema.if_contains("type")) {
      if (type->is_string()) add_name(view(type->get_string()));
      if (type->is_array())
        for (const json::value& name : type->get_array())
          if (name.is_string()) add_name(view(name.get_string()));
    }
    for (const char* key : {"anyOf", "oneOf", "allOf"}) visit_all(schema, key);
    if (types_.size() == before) visit_values(schema);
    if (types_.size() == before && schema.contains("properties")) add(JsonType::object);
    if (types_.size() == before && schema.contains("items")) add(JsonType::array);
    const json::value* nullable = schema.if_contains("nullable");
    if (nullable != nullptr && nullable->is_bool() && nullable->get_bool()) add(JsonType::null);
    --depth_;
  }

  void visit_values(const json::object& schema) {
    if (const json::value* one = schema.if_contains("const")) add_kind(*one);
    const json::value* list = schema.if_contains("enum");
    if (list == nullptr || !list->is_array()) return;
    for (const json::value& item : list->get_array()) add_kind(item);
  }

  void properties(const json::value& value, Properties& out, std::vector<JsonType>& others, int depth) {
    if (!value.is_object() || depth >= kMostDepth || !parts_.insert(&value).second) return;
    const json::object& schema = value.get_object();
    const json::value* own = schema.if_contains("properties");
    if (own != nullptr && own->is_object())
      for (const json::key_value_pair& property : own->get_object())
        merge(types(property.value()), out[std::string(property.key())]);
    if (const json::value* rest = schema.if_contains("additionalProperties")) merge(types(*rest), others);
    if (const json::value* target = referred(schema)) properties(*target, out, others, depth + 1);
    for (const char* key : kCombined) {
      const json::value* list = schema.if_contains(key);
      if (list == nullptr || !list->is_array()) continue;
      for (const json::value& item : list->get_array()) properties(item, out, others, depth + 1);
    }
  }

  const json::value& root_;
  std::vector<JsonType> types_;
  int visits_ = 0, depth_ = 0;
  std::set<const json::value*> parts_;  // whose properties are known
};

}  // namespace

ToolSchemas::ToolSchemas(const json::array& tools) {
  for (const json::value& tool : tools) {
    if (!tool.is_object()) continue;
    const json::object* function = &tool.get_object();
    if (const json::value* inner = function->if_contains("function"); inner != nullptr && inner->is_object())
      function = &inner->get_object();
    const json::value* name = function->if_contains("name");
    if (name == nullptr || !name->is_string() || name->get_string().empty()) continue;
    Tool& declared = tools_[std::string(view(name->get_string()))];
    const json::value* schema = function->if_contains("parameters");
    if (schema == nullptr) schema = function->if_contains("input_schema");
    if (schema != nullptr) SchemaReader(*schema).properties(declared.parameters, declared.others);
  }
}

bool ToolSchemas::has_parameter(std::string_view tool, std::string_view parameter) const {
  const auto found = tools_.find(tool);
  return found != tools_.end() && found->second.parameters.contains(parameter);
}

const std::vector<JsonType>& ToolSchemas::types(std::string_view tool, std::string_view parameter) const {
  static const std::vector<JsonType> kNone;
  const auto found = tools_.find(tool);
  if (found == tools_.end()) return kNone;
  const auto types = found->second.parameters.find(parameter);
  return types == found->second.parameters.end() ? found->second.others : types->second;
}

}  // namespace lily
