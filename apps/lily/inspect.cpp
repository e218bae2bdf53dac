// lily inspect MODEL: what is in a checkpoint, what it needs in memory, every fault at once.
#include <boost/json.hpp>
#include <cstdio>
#include <map>
#include <memory>

#include "apps/lily/commands.h"
#include "apps/lily/model_source.h"
#include "apps/lily/say.h"
#include "weights/inspect.h"

namespace lily::app {
namespace {

namespace json = boost::json;

struct Options {
  std::string model;
  bool json = false;
  PlanOptions plan;
};

// Highest id + 1 of the folder's tokenizer, 0 where it has none: such a checkpoint computes on token ids. A
// faulty one is a fault of the checkpoint.
uint32_t tokenizer_size(const std::filesystem::path& folder, Inspection& found) {
  std::error_code error;
  if (std::filesystem::status(folder / "tokenizer.json", error).type() ==
      std::filesystem::file_type::not_found) {
    return 0;
  }
  auto tokenizer = load_tokenizer(folder, found.shape ? found.shape->vocab : UINT32_MAX);
  if (tokenizer) {
    return (*tokenizer)->size();
  }
  add_faults(tokenizer.error(), found.faults);
  return 0;
}

json::object to_json(const Inspection& found, uint32_t tokenizer) {
  json::object out{{"folder", found.folder}, {"files", found.files}, {"layout", to_string(found.layout)}};
  if (found.shape) {
    out["shape"] = found.shape->name;
    out["layers"] = found.shape->layers;
  }
  json::array formats;
  for (const FormatGroup& group : found.formats) {
    formats.push_back({{"format", group.format}, {"tensors", group.tensors}, {"bytes", group.bytes}});
  }
  out["formats"] = std::move(formats);
  out["total_bytes"] = found.total_bytes;
  out["mtp"] = found.mtp;
  out["tokenizer_size"] = tokenizer;
  if (found.plan) {
    const Plan& plan = *found.plan;
    out["memory"] = {{"weights", found.weight_bytes},
                     {"context", plan.context},
                     {"sequences", plan.sequences},
                     {"kv_bytes_per_token", plan.kv_bytes_per_token()},
                     {"recurrent_bytes_per_sequence", plan.recurrent_bytes()},
                     {"state_bytes", plan.sequences * plan.state_bytes(plan.context)}};
  }
  out["runnable"] = found.layout == Layout::mlx && found.faults.empty();
  out["faults"] = json::array(found.faults.begin(), found.faults.end());
  return out;
}

void print_memory(const Inspection& found) {
  const Plan& plan = *found.plan;
  const uint64_t states = plan.sequences * plan.state_bytes(plan.context);
  fmt::print("memory     weights {:.2f} GB, and {:.2f} GB of state for {} conversation{} of {} tokens\n",
             gigabytes(found.weight_bytes), gigabytes(states), plan.sequences, plan.sequences == 1 ? "" : "s",
             plan.context);
  fmt::print("           ({} bytes per token, {:.1f} MB per conversation besides)\n",
             plan.kv_bytes_per_token(), static_cast<double>(plan.recurrent_bytes()) / 1e6);
}

void print(const Inspection& found, uint32_t tokenizer) {
  fmt::print("folder     {}\n", found.folder);
  fmt::print("layout     {}\n", to_string(found.layout));
  if (found.shape) {
    fmt::print("shape      {}, {} layers ({} Gated DeltaNet, {} attention)\n", found.shape->name,
               found.shape->layers, found.shape->delta_net_layers(), found.shape->attention_layers());
  }
  for (const FormatGroup& group : found.formats) {
    fmt::print("{:10} {:5} {:32} {:10.3f} GB\n", &group == found.formats.data() ? "tensors" : "",
               group.tensors, group.format, gigabytes(group.bytes));
  }
  fmt::print("total      {:.3f} GB in {} file{}\n", gigabytes(found.total_bytes), found.files,
             found.files == 1 ? "" : "s");
  fmt::print("MTP layer  {}\n", found.mtp ? "yes" : "no");
  if (tokenizer != 0) {
    fmt::print("tokenizer  {} ids\n", tokenizer);
  } else {
    fmt::print("tokenizer  none that can be read: without one, only computing on token ids\n");
  }
  if (found.plan) {
    print_memory(found);
  }
  if (found.layout == Layout::published && found.faults.empty()) {
    fmt::print("next       lily convert {} DST: makes the 4-bit checkpoint that lily runs\n", found.folder);
  }
}

Result<void> run(const Options& options) {
  LILY_TRY(const std::filesystem::path folder, find_model(options.model));
  LILY_TRY(Inspection found, inspect_checkpoint(folder, options.plan));
  const uint32_t tokenizer = tokenizer_size(folder, found);
  if (options.json) {
    fmt::print("{}\n", json::serialize(to_json(found, tokenizer)));
  } else {
    print(found, tokenizer);
  }
  if (!found.faults.empty()) {
    return fail(Error{ErrorKind::invalid_input,
                      fmt::format("{} fault{}", found.faults.size(), found.faults.size() == 1 ? "" : "s"),
                      found.faults});
  }
  return {};
}

}  // namespace

void add_inspect(CommandLine& line) {
  auto options = std::make_shared<Options>();
  CLI::App* command = line.app.add_subcommand(
      "inspect", "What is in a checkpoint, what it needs in memory, every fault at once");
  command->add_option("MODEL", options->model, "checkpoint folder or owner/name")->required();
  command->add_flag("--json", options->json, "as one JSON object");
  command->add_option("--ctx", options->plan.context, "tokens of a conversation, for the memory it needs")
      ->check(CLI::Range(Limits::kMinContext, Limits::kMaxContext));
  command
      ->add_option("--parallel", options->plan.sequences, "conversations at once, for the memory they need")
      ->check(CLI::Range(1U, Limits::kMaxSequences));
  command->callback([&line, options] { line.chosen = [options] { return run(*options); }; });
}

}  // namespace lily::app
