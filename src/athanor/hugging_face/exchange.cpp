#include "athanor/hugging_face/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "athanor/base/error.h"
#include "athanor/checkpoint/tensor_conversion.h"
#include "athanor/hugging_face/names.h"

namespace athanor {
namespace {

// A tensor of the folder with the entries its parts are read from.
struct Assembled {
  ExchangedTensor tensor;
  std::vector<const WeightEntry*> parts;
  DType dtype = DType::fp32;
};

// Puts `part` [outputs, inputs] into the columns of `out` [inputs, all outputs] from `first` on.
void transpose_into(std::span<const std::byte> part, int64_t outputs, int64_t inputs, size_t size,
                    int64_t first, int64_t all_outputs, std::span<std::byte> out) {
  for (int64_t input = 0; input < inputs; ++input) {
    std::byte* target = out.data() + static_cast<size_t>(input * all_outputs + first) * size;
    const std::byte* source = part.data() + static_cast<size_t>(input) * size;
    for (int64_t output = 0; output < outputs; ++output) {
      std::memcpy(target, source, size);
      target += size;
      source += static_cast<size_t>(inputs) * size;
    }
  }
}

void produce(const WeightReader& weights, const Assembled& assembled, const TensorProducer::Sink& sink) {
  const size_t size = size_of(assembled.dtype);
  int64_t elements = 1;
  for (const int64_t extent : assembled.tensor.shape) elements *= extent;
  std::vector<std::byte> whole(static_cast<size_t>(elements) * size);
  int64_t first = 0;  // output, or element where nothing is transposed
  for (const WeightEntry* part : assembled.parts) {
    const int64_t count = part->elements();
    if (!assembled.tensor.transposed) {
      weights.read(
          *part, assembled.dtype,
          std::span(whole).subspan(static_cast<size_t>(first) * size, static_cast<size_t>(count) * size));
      first += count;
      continue;
    }
    std::vector<std::byte> bytes(static_cast<size_t>(count) * size);
    weights.read(*part, assembled.dtype, bytes);
    transpose_into(bytes, part->shape.at(0), part->shape.at(1), size, first, assembled.tensor.shape.back(),
                   whole);
    first += part->shape.at(0);
  }
  if (const int64_t bad = first_non_finite(assembled.dtype, whole); bad >= 0) {
    throw_user_error(fmt::format("'{}': {} has the value {:g} (element {} of {})", weights.path(),
                                 assembled.parts.front()->name, float_at(assembled.dtype, whole, bad), bad,
                                 assembled.tensor.name),
                     "these weights are spoilt; take an earlier checkpoint");
  }
  sink(whole);
}

std::vector<Assembled> assemble(const WeightReader& weights, const ModelConfig& model,
                                const ExportOptions& options) {
  std::vector<Assembled> all;
  std::string faults;
  for (ExchangedTensor& tensor : exchanged_tensors(model)) {
    Assembled assembled{.tensor = std::move(tensor), .parts = {}, .dtype = DType::fp32};
    DType widest = DType::bf16;
    for (const ExchangedTensor::Part& part : assembled.tensor.parts) {
      const std::string name = options.weight_prefix + part.name;
      const WeightEntry* entry = weights.find(name);
      if (entry == nullptr) {
        faults += fmt::format("\n  {} is missing", name);
      } else if (entry->shape != part.shape) {
        faults += fmt::format("\n  {} is [{}], the model's is [{}]", name, fmt::join(entry->shape, ","),
                              fmt::join(part.shape, ","));
      } else if (!is_convertible(entry->dtype)) {
        faults += fmt::format("\n  {} is {}", name, name_of(entry->dtype));
      } else {
        const bool first = assembled.parts.empty();
        // Parts of one tensor that have several types take one that holds both.
        if (first || size_of(entry->dtype) > size_of(widest)) {
          widest = entry->dtype;
        } else if (size_of(entry->dtype) == size_of(widest) && entry->dtype != widest) {
          widest = DType::fp32;
        }
        assembled.parts.push_back(entry);
      }
    }
    assembled.dtype = options.dtype.value_or(widest);
    all.push_back(std::move(assembled));
  }
  if (!faults.empty()) {
    throw_user_error(fmt::format("'{}' does not hold the weights of this model:{}", weights.path(),
                                 faults.substr(0, 2000)),
                     options.weight_prefix.empty()
                         ? "the configuration beside it must be that of its run"
                         : "averaged weights are kept where optimizer.average_decay is set");
  }
  return all;
}

}  // namespace

SaveReport import_weights(const WeightReader& weights, CheckpointFolder& folder,
                          const CheckpointState& state) {
  std::vector<TensorProducer> producers;
  for (const WeightEntry& entry : weights.entries()) {
    producers.push_back(
        {entry.name, entry.dtype, entry.shape, [&weights, &entry](const TensorProducer::Sink& sink) {
           std::vector<std::byte> bytes(static_cast<size_t>(entry.elements()) * size_of(entry.dtype));
           weights.read(entry, entry.dtype, bytes);
           if (const int64_t bad = first_non_finite(entry.dtype, bytes); bad >= 0) {
             throw_user_error(fmt::format("'{}': element {} of {} is {:g}", weights.path(), bad, entry.name,
                                          float_at(entry.dtype, bytes, bad)),
                              "these weights are spoilt; fetch them anew");
           }
           sink(bytes);
         }});
  }
  return folder.save_produced(0, producers, state);
}

ShardReport export_weights(FileEnvironment& files, const WeightReader& weights, const ModelConfig& model,
                           const std::string& folder, const ExportOptions& options) {
  const std::vector<Assembled> tensors = assemble(weights, model, options);
  std::vector<TensorProducer> producers;
  std::map<DType, int64_t> counts;
  for (const Assembled& assembled : tensors) {
    ++counts[assembled.dtype];
    producers.push_back({assembled.tensor.name, assembled.dtype, assembled.tensor.shape,
                         [&](const TensorProducer::Sink& sink) { produce(weights, assembled, sink); }});
  }
  // What the weights are said to be is the type of most of them.
  const DType dtype = std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) {
                        return a.second < b.second;
                      })->first;
  files.make_directories(folder);
  ShardReport report =
      write_safetensors_shards(files, folder, producers, {{"format", "pt"}}, options.max_shard_bytes);
  const auto add = [&](const std::string& name, const std::string& text) {
    const std::string path = join_path(folder, name);
    write_file_atomically(files, path,
                          [&](WritableFile& file) { file.append(std::as_bytes(std::span(text))); },
                          {.rename = RenameMode::keep_existing});
    report.files.push_back(path);
    report.bytes += static_cast<int64_t>(text.size());
  };
  for (const auto& [name, text] : options.other_files) add(name, text);
  add("generation_config.json", format_generation_config(options.tokens));
  add("config.json", format_hugging_face_config(model, dtype, options.tokens));
  return report;
}

}  // namespace athanor
