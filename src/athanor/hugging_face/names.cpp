#include "athanor/hugging_face/names.h"

#include <fmt/format.h>

#include <map>

#include "athanor/base/error.h"
#include "athanor/hugging_face/config.h"
#include "athanor/model/model.h"

namespace athanor {
namespace {

class Plan {
 public:
  explicit Plan(const ModelConfig& model) {
    for (const BucketTable& table : bucket_tables(model)) {
      for (const BucketMember& member : table.members) {
        std::vector<int64_t> shape;
        for (int dim = 0; dim < member.shape.rank(); ++dim) shape.push_back(member.shape[dim]);
        shapes_.emplace(member.name, std::move(shape));
      }
    }
  }

  // What the following names begin with, there and here.
  void enter(std::string there, std::string here) {
    there_ = std::move(there);
    here_ = std::move(here);
  }

  // `end` ends the name there and all names here.
  void add(std::string_view name, std::initializer_list<std::string_view> logical, std::string_view end = {},
           bool transposed = false) {
    ExchangedTensor tensor{
        .name = fmt::format("{}{}{}", there_, name, end), .shape = {}, .transposed = transposed, .parts = {}};
    int64_t outputs = 0;
    for (const std::string_view member : logical) {
      const std::string part = fmt::format("{}{}{}", here_, member, end);
      const auto found = shapes_.find(part);
      ATHANOR_ASSERT(found != shapes_.end(), "{} is no parameter", part);
      outputs += found->second.front();
      tensor.parts.push_back({part, found->second});
      shapes_.erase(found);
    }
    tensor.shape = tensor.parts.front().shape;
    tensor.shape.front() = outputs;
    if (transposed) std::swap(tensor.shape.front(), tensor.shape.back());
    tensors_.push_back(std::move(tensor));
  }

  std::vector<ExchangedTensor> take() {
    ATHANOR_ASSERT(shapes_.empty(), "{} has no name", shapes_.begin()->first);
    return std::move(tensors_);
  }

 private:
  std::string there_, here_;
  std::map<std::string, std::vector<int64_t>> shapes_;  // of parameters without a place yet
  std::vector<ExchangedTensor> tensors_;
};

std::vector<ExchangedTensor> gpt2_tensors(const ModelConfig& model) {
  Plan plan(model);
  plan.add("transformer.wte.weight", {"embedding.token.weight"});
  plan.add("transformer.wpe.weight", {"embedding.position.weight"});
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    plan.enter(fmt::format("transformer.h.{}.", layer), fmt::format("block.{}.", layer));
    for (const std::string_view end : {".weight", ".bias"}) {
      const bool matrix = end == ".weight";
      plan.add("ln_1", {"attention_norm"}, end);
      plan.add("attn.c_attn", {"attention.query", "attention.key", "attention.value"}, end, matrix);
      plan.add("attn.c_proj", {"attention.output"}, end, matrix);
      plan.add("ln_2", {"mlp_norm"}, end);
      plan.add("mlp.c_fc", {"mlp.up"}, end, matrix);
      plan.add("mlp.c_proj", {"mlp.down"}, end, matrix);
    }
  }
  plan.enter({}, {});
  plan.add("transformer.ln_f.weight", {"final_norm.weight"});
  plan.add("transformer.ln_f.bias", {"final_norm.bias"});
  if (!model.tied_head) plan.add("lm_head.weight", {"head.weight"});
  return plan.take();
}

std::vector<ExchangedTensor> llama_tensors(const ModelConfig& model) {
  Plan plan(model);
  plan.add("model.embed_tokens.weight", {"embedding.token.weight"});
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    plan.enter(fmt::format("model.layers.{}.", layer), fmt::format("block.{}.", layer));
    plan.add("input_layernorm.weight", {"attention_norm.weight"});
    for (const auto& [theirs, ours] : {std::pair{"self_attn.q_proj", "attention.query"},
                                       {"self_attn.k_proj", "attention.key"},
                                       {"self_attn.v_proj", "attention.value"},
                                       {"self_attn.o_proj", "attention.output"},
                                       {"mlp.gate_proj", "mlp.gate"},
                                       {"mlp.up_proj", "mlp.up"},
                                       {"mlp.down_proj", "mlp.down"}}) {
      plan.add(theirs, {ours}, ".weight");
      if (model.bias) plan.add(theirs, {ours}, ".bias");
    }
    plan.add("post_attention_layernorm.weight", {"mlp_norm.weight"});
  }
  plan.enter({}, {});
  plan.add("model.norm.weight", {"final_norm.weight"});
  if (!model.tied_head) plan.add("lm_head.weight", {"head.weight"});
  return plan.take();
}

}  // namespace

std::vector<ExchangedTensor> exchanged_tensors(const ModelConfig& model) {
  return hugging_face_type_of(model) == "gpt2" ? gpt2_tensors(model) : llama_tensors(model);
}

std::string_view name_prefix(const ModelConfig& model) {
  return hugging_face_type_of(model) == "gpt2" ? "transformer." : "model.";
}

bool is_constant_buffer(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with("rotary_emb.inv_freq");
}

}  // namespace athanor
