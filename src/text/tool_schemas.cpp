#include "text/tool_schemas.h"

#include <algorithm>

namespace lily {

namespace {

namespace json = boost::json;

std::string_view view(const json::string& text) { return {text.data(), text.size()}; }

// Collects the types of one schema. Bounded in what it visits: schemas may refer to themselves.
class TypeCollector {
 public:
  explicit TypeCollector(const json::value& root) : root_(root) {}

  std::vector<JsonType> collect(const json::value& schema) {
    visit(schema);
    return std::move(types_);
  }

 private:
  static constexpr int kMostVisits = 256;
  static constexpr int kMostDepth = 16;

  void add(JsonType type) {
    if (std::find(types_.begin(), types_.end(), type) == types_.end()) types_.push_back(type);
  }

  void add_name(std::string_view name) {
    constexpr std::pair<std::string_view, JsonType> kNames[] = {
        {"null", JsonType::null},     {"boolean", JsonType::boolean}, {"integer", JsonType::integer},
        {"number", JsonType::number}, {"string", JsonType::string},   {"array", JsonType::array},
        {"object", JsonType::object},
    };
    for (const auto& [known, type] : kNames)
      if (name == known) add(type);
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

  void visit_reference(const json::object& schema) {
    const json::value* reference = schema.if_contains("$ref");
    if (reference == nullptr || !reference->is_string()) return;
    std::string_view path = view(reference->get_string());
    if (!path.starts_with('#')) return;
    path.remove_prefix(1);
    boost::system::error_code error;
    const json::value* target = root_.find_pointer({path.data(), path.size()}, error);
    if (!error && target != nullptr) visit(*target);
  }

  void visit(const json::value& value) {
    if (!value.is_object() || depth_ >= kMostDepth || ++visits_ > kMostVisits) return;
    ++depth_;
    const json::object& schema = value.get_object();
    const size_t before = types_.size();
    visit_reference(schema);
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

  const json::value& root_;
  std::vector<JsonType> types_;
  int visits_ = 0, depth_ = 0;
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
    Parameters& parameters = tools_[std::string(view(name->get_string()))];
    const json::value* schema = function->if_contains("parameters");
    if (schema == nullptr) schema = function->if_contains("input_schema");
    if (schema == nullptr || !schema->is_object()) continue;
    const json::value* properties = schema->get_object().if_contains("properties");
    if (properties == nullptr || !properties->is_object()) continue;
    for (const json::key_value_pair& property : properties->get_object())
      parameters[std::string(property.key())] = TypeCollector(*schema).collect(property.value());
  }
}

bool ToolSchemas::has_parameter(std::string_view tool, std::string_view parameter) const {
  const auto found = tools_.find(tool);
  return found != tools_.end() && found->second.contains(parameter);
}

const std::vector<JsonType>& ToolSchemas::types(std::string_view tool, std::string_view parameter) const {
  static const std::vector<JsonType> kNone;
  const auto found = tools_.find(tool);
  if (found == tools_.end()) return kNone;
  const auto types = found->second.find(parameter);
  return types == found->second.end() ? kNone : types->second;
}

}  // namespace lily
