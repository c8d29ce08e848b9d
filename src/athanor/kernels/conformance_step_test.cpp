// Cases of what frames a step: loading the batch, the loss, gradient norms and optimizers.
#include "athanor/kernels/conformance_cases.h"

namespace athanor::testing {
namespace {

using enum OperationKind;

Tensor scalar(double value) {
  return Tensor(DType::fp64, {1}).assign({value});
}

// About one label in five is ignored.
Tensor make_labels(CaseBuilder& cases, int64_t B, int64_t S, int64_t vocabulary) {
  Tensor labels = cases.integers({B, S}, vocabulary);
  for (int64_t i = 3; i < labels.elements(); i += 5) labels.set(i, ignored_label);
  return labels;
}

void cross_entropy_cases(CaseBuilder& cases) {
  const TypeProfile& t = cases.types();
  const Attributes plain, all{.label_smoothing = 0.1, .z_loss = 1e-2, .soft_cap = 4};
  const auto one = [&](int64_t B, int64_t S, int64_t vocabulary, DType logits, DType dlogits,
                       int64_t padding) {
    const Shape shape{B, S, vocabulary};
    for (const Attributes& attributes : {plain, all}) {
      const std::string what = fmt::format("[{},{},{}] {} to {}{}", B, S, vocabulary, name_of(logits),
                                           name_of(dlogits), attributes == plain ? "" : ", all options");
      const Tensor x = cases.random(logits, shape, padding, -6, 6),
                   labels = make_labels(cases, B, S, vocabulary);
      const Tensor loss = cases.output(t.wide, {B, S});
      cases.add(cross_entropy, what + ", loss alone", {x, labels, Tensor()}, {loss, Tensor()}, attributes);
      Call& call = cases.add(cross_entropy, what, {x, labels, scalar(1.5)},
                             {loss, cases.output(dlogits, shape, padding)}, attributes);
      call.step.loss_scale = 4;
      if (logits == dlogits) cases.add_shared(Call(call), 1, 0);
      cases.add(cross_entropy, what + ", no valid token", {x, labels, scalar(0)},
                {loss, cases.output(dlogits, shape, padding)}, attributes);
    }
  };
  for (const DType logits : cases.distinct_types()) {
    for (const DType dlogits : cases.distinct_types()) {
      one(1, 0, 7, logits, dlogits, 0);
      one(1, 1, 1, logits, dlogits, 0);
      one(1, 7, 130, logits, dlogits, 3);
      one(3, 11, 7, logits, dlogits, 0);
      one(2, 65, 33, logits, dlogits, 5);
      if (logits == t.wide && dlogits == t.compute) one(1, 2, 50257, logits, dlogits, 0);
    }
  }
}

void count_valid_cases(CaseBuilder& cases) {
  for (const auto& [B, S] : token_shapes()) {
    cases.add_accumulating(count_valid, fmt::format("[{},{}]", B, S), {make_labels(cases, B, S, 50257)},
                           {cases.output(DType::fp64, {1})});
  }
}

void sum_cases(CaseBuilder& cases) {
  for (const int64_t elements : {0, 1, 7, 33, 130, 50257}) {
    for (const DType dtype : cases.distinct_types()) {
      cases.add_accumulating(sum, fmt::format("[1,{}]", elements),
                             {cases.random(dtype, {1, elements}, 0, 0, 3)}, {cases.output(DType::fp64, {1})});
    }
  }
}

void load_batch_cases(CaseBuilder& cases) {
  // Host memory of the step; the cases only point to it.
  static const std::vector<int32_t> words = [] {
    std::vector<int32_t> list(1000);
    for (size_t i = 0; i < list.size(); ++i) list[i] = static_cast<int32_t>(i * i % 977) - 100;
    return list;
  }();
  static const std::vector<int64_t> samples = {1LL << 40, 7, 1LL << 33};
  for (const auto& [B, S] : token_shapes()) {
    Call& call = cases.add(load_batch, fmt::format("[{},{}]", B, S), {}, {});
    for (int i = 0; i < 5; ++i) call.outputs.push_back(cases.output(DType::int32, {B, S}));
    call.outputs.push_back(cases.output(DType::int64, {B}));
    const int32_t* data = words.data();
    call.step.micro_batches = {HostBatch{}, HostBatch{},
                               HostBatch{data, data + 1, data + 2, data + 3, data + 4, samples.data()}};
    call.micro_batch = 2;
  }
}

// Members of odd sizes, one beyond any tile; each with its own role, decay and rate.
BucketTable make_table(const std::vector<int64_t>& lengths) {
  BucketTable table;
  for (size_t i = 0; i < lengths.size(); ++i) {
    BucketMember member;
    member.name = fmt::format("member.{}", i);
    member.shape = {lengths[i]};
    member.role = static_cast<ParameterRole>(i % 4);
    member.offset = table.length();
    member.weight_decay = i % 4 < 2 ? 0.1 : 0;
    member.learning_rate_factor = 1 + 0.5 * static_cast<double>(i);
    table.members.push_back(member);
  }
  return table;
}

const std::vector<std::vector<int64_t>> bucket_members = {{1}, {7, 33, 1, 130}, {130, 7, 50257, 33, 65}};

void squared_norms_cases(CaseBuilder& cases) {
  for (const auto& lengths : bucket_members) {
    const BucketTable table = make_table(lengths);
    for (const DType dtype : cases.distinct_types()) {
      cases
          .add(squared_norms, fmt::format("{} members", lengths.size()),
               {cases.random(dtype, {table.length()})},
               {cases.output(DType::fp64, {static_cast<int64_t>(lengths.size())})})
          .table = table;
    }
  }
}

void clip_cases(CaseBuilder& cases) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const int64_t members : {0, 1, 7, 130}) {
    for (const double maximum : {0.0, 0.5, 1e6}) {
      for (const double valid : {0.0, 12.0}) {
        for (const double bad : {0.0, infinity, std::numeric_limits<double>::quiet_NaN()}) {
          Tensor norms = cases.random(DType::fp64, {members}, 0, 0, 10);
          if (members > 0 && bad != 0) norms.set(members / 2, bad);
          const auto one = [&](double loss, double loss_limit, double norm_limit) {
            Attributes attributes;
            attributes.maximum_norm = maximum;
            StepInputs& step = cases
                                   .add(clip,
                                        fmt::format("{} members, maximum {}, {} tokens, {}, loss {} of {}",
                                                    members, maximum, valid, bad, loss, loss_limit),
                                        {norms, scalar(valid), scalar(loss)},
                                        {scalar(-1), scalar(-1), scalar(-1)}, attributes)
                                   .step;
            step.loss_scale = 4;
            step.loss_limit = loss_limit;
            step.norm_limit = norm_limit;
          };
          one(30, infinity, infinity);
          one(30, 2.6, 1000);
          one(30, 2.4, 1000);
          one(30, 2.6, 0.01);
        }
      }
    }
  }
}

// One update of a bucket; for lamb with the norms that lamb_norms finds.
void optimizer_cases(CaseBuilder& cases, OperationKind kind) {
  const TypeProfile& t = cases.types();
  for (const auto& lengths : bucket_members) {
    const BucketTable table = make_table(lengths);
    const Shape shape{table.length()};
    for (int variant = 0; variant < 4; ++variant) {
      const bool working = variant % 2 != 0, average = variant >= 2, skip = variant == 3;
      Attributes attributes{
          .epsilon = 1e-8, .beta1 = 0.9, .beta2 = 0.95, .average_decay = average ? 0.75 : 0.0};
      if (kind == sgd) attributes.momentum = 0.9;
      if (kind == sgd) attributes.nesterov = working;
      if (kind == lamb && working) attributes.trust_low = 0.5;
      if (kind == lamb && working) attributes.trust_high = 2;
      const Tensor master = cases.random(t.wide, shape), moment = cases.random(t.wide, shape, 0, -0.1, 0.1);
      const Tensor second = cases.random(t.wide, shape, 0, 0.01, 0.1);
      Call call;
      call.table = table;
      call.step.learning_rate = 0.125;
      call.step.optimizer_step = 3;
      call.step.loss_scale = 2;
      call.inputs = {cases.random(t.wide, shape), scalar(0.5), scalar(skip ? 1 : 0)};
      Call norms = call;
      norms.kind = lamb_norms;
      norms.attributes = attributes;
      for (const Tensor* state : {&master, &moment, &second}) norms.inputs.push_back(*state);
      norms.outputs = {Tensor(DType::fp64, {2 * static_cast<int64_t>(lengths.size())})};
      call.outputs = {master, moment, second, working ? cases.random(t.compute, shape) : Tensor(),
                      average ? cases.random(t.wide, shape) : Tensor()};
      if (kind == sgd) call.outputs.erase(call.outputs.begin() + 2);
      if (kind == lamb) {
        run_reference(norms);
        call.inputs.push_back(norms.outputs[0]);
      }
      if (kind == lamb_norms) call = norms;
      Call& added = cases.add(kind, fmt::format("{} members, variant {}", lengths.size(), variant),
                              call.inputs, call.outputs, attributes);
      added.table = call.table;
      added.step = call.step;
    }
  }
}

}  // namespace

bool add_step_cases(OperationKind kind, CaseBuilder& cases) {
  switch (kind) {
    case cross_entropy:
      cross_entropy_cases(cases);
      return true;
    case count_valid:
      count_valid_cases(cases);
      return true;
    case sum:
      sum_cases(cases);
      return true;
    case load_batch:
      load_batch_cases(cases);
      return true;
    case squared_norms:
      squared_norms_cases(cases);
      return true;
    case clip:
      clip_cases(cases);
      return true;
    case adamw:
    case sgd:
    case lamb_norms:
    case lamb:
      optimizer_cases(cases, kind);
      return true;
    default:
      return false;
  }
}

}  // namespace athanor::testing
