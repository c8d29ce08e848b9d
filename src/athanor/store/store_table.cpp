#include "athanor/store/store_table.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

namespace athanor {
namespace {

constexpr size_t most_missing = 1000;  // that are named
constexpr uint64_t entry_bytes = 128;  // what an entry costs beside its texts

// When a wait of so many milliseconds is over; what is no time is no wait.
int64_t deadline_after(int64_t now_ns, int64_t milliseconds) {
  constexpr int64_t most = std::numeric_limits<int64_t>::max() / 4 / 1'000'000;
  return now_ns + std::clamp<int64_t>(milliseconds, 0, most) * 1'000'000;
}

std::string_view body_of(const StorePiece& piece) {
  return std::string_view(*piece).substr(piece_header_bytes);
}

}  // namespace

void StoreTable::reply(StoreClientId client, uint64_t number, StoreStatus status,
                       std::vector<StorePiece> pieces) {
  answer_(client, {status, number, std::move(pieces)});
}

void StoreTable::refuse(StoreClientId client, uint64_t number, const std::string& why) {
  reply(client, number, StoreStatus::refused, {encode_piece(why)});
}

void StoreTable::change(StoreClientId client, const StoreRequest& request, std::string_view value) {
  const auto found = values_.find(request.key);
  const uint64_t before =
      found == values_.end() ? 0 : request.key.size() + body_of(found->second).size() + entry_bytes;
  const uint64_t after = request.key.size() + value.size() + entry_bytes;
  if (after > before && !has_room(after - before)) return refuse(client, request.number, "the store is full");
  bytes_ += after - before;
  const StorePiece piece = encode_piece(value);
  values_[request.key] = piece;
  reply(client, request.number, StoreStatus::value, {piece});
  const auto waiting = waits_.find(request.key);
  if (waiting == waits_.end()) return;
  const std::vector<Wait> waits = std::move(waiting->second);
  waits_.erase(waiting);
  for (const Wait& wait : waits) reply(wait.client, wait.number, StoreStatus::value, {piece});
}

void StoreTable::handle(StoreClientId client, StoreRequest request, int64_t now_ns) {
  const auto found = values_.find(request.key);
  const bool there = found != values_.end();
  switch (request.operation) {
    case StoreOperation::set:
      return change(client, request, request.value);
    case StoreOperation::get:
      return there ? reply(client, request.number, StoreStatus::value, {found->second})
                   : reply(client, request.number, StoreStatus::nothing);
    case StoreOperation::wait:
      if (there) return reply(client, request.number, StoreStatus::value, {found->second});
      waits_[request.key].push_back({client, request.number, deadline_after(now_ns, request.amount)});
      return;
    case StoreOperation::add: {
      int64_t number = 0;
      if (there) {
        const std::string_view text = body_of(found->second);
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
        if (error != std::errc{} || end != text.data() + text.size())
          return refuse(client, request.number, fmt::format("'{}' is not a number", request.key));
      }
      int64_t sum = 0;
      if (__builtin_add_overflow(number, request.amount, &sum))
        return refuse(client, request.number, fmt::format("'{}' would be too large a number", request.key));
      return change(client, request, std::to_string(sum));
    }
    case StoreOperation::compare_set: {
      // Its value: the length of what is expected, that, and what is wanted.
      const auto parts = decode_values(std::move(request.value));
      if (!parts || parts->size() != 2) return refuse(client, request.number, "not a comparison");
      const std::string_view expected = (*parts)[0];
      if (there ? body_of(found->second) != expected : !expected.empty())
        return there ? reply(client, request.number, StoreStatus::value, {found->second})
                     : reply(client, request.number, StoreStatus::nothing);
      return change(client, request, (*parts)[1]);
    }
    case StoreOperation::remove:
      if (!there) return reply(client, request.number, StoreStatus::nothing);
      bytes_ -= request.key.size() + body_of(found->second).size() + entry_bytes;
      values_.erase(found);
      return reply(client, request.number, StoreStatus::value);
    case StoreOperation::gather:
      return gather(client, request, now_ns);
  }
}

void StoreTable::gather(StoreClientId client, StoreRequest& request, int64_t now_ns) {
  auto gathering = decode_gathering(request.key, request.value);
  if (!gathering) return refuse(client, request.number, "not a gathering");
  Assembly& assembly = assemblies_[request.key];
  if (assembly.values.empty()) {
    const uint64_t bytes = gathering->members * sizeof(StorePiece) + entry_bytes + request.key.size();
    if (!has_room(bytes)) return refuse(client, request.number, "the store is full");
    bytes_ += bytes;
    assembly.values.resize(gathering->members);
  }
  if (assembly.values.size() != gathering->members)
    return refuse(client, request.number,
                  fmt::format("it says {} members, and those before it {}", gathering->members,
                              assembly.values.size()));
  // Who may have been here already, and whose answer was lost, comes again with the same.
  uint64_t bytes = 0;
  for (size_t i = 0; i < gathering->values.size(); ++i) {
    const StorePiece& before = assembly.values[gathering->first + i];
    if (before && *before != gathering->values[i])
      return refuse(client, request.number,
                    fmt::format("number {} has come before, and was another", gathering->first + i));
    bytes += gathering->values[i].size() + entry_bytes;
  }
  // What will be sent to those who want it costs as much again, and entry and index of each range.
  for (const MemberRange& range : gathering->wanted)
    if (!assembly.wanted.contains(range)) bytes += entry_bytes + range.count * uint64_t{64};
  if (!has_room(bytes)) return refuse(client, request.number, "the store is full");
  bytes_ += bytes;
  for (size_t i = 0; i < gathering->values.size(); ++i)
    come(assembly, gathering->first + static_cast<uint32_t>(i),
         std::make_shared<const std::string>(std::move(gathering->values[i])));

  Visit visit{client,
              request.number,
              deadline_after(now_ns, request.amount),
              gathering->first,
              static_cast<uint32_t>(gathering->values.size()),
              {},
              0};
  for (const MemberRange& range : gathering->wanted) {
    Wanted* const wanted = want(assembly, range);
    visit.wanted.push_back(wanted);
    if (wanted->missing == 0) continue;
    ++visit.incomplete;
    wanted->visitors.push_back(next_visit_);
  }
  if (visit.incomplete > 0) {
    assembly.visits.emplace(next_visit_++, std::move(visit));
    return;
  }
  std::vector<StorePiece> pieces;
  for (const Wanted* const wanted : visit.wanted) pieces.push_back(wanted->piece);
  reply(client, request.number, StoreStatus::value, std::move(pieces));
}

StoreTable::Wanted* StoreTable::want(Assembly& assembly, const MemberRange& range) {
  auto& wanted = assembly.wanted[range];
  if (!wanted) {
    wanted = std::make_unique<Wanted>();
    wanted->range = range;
    for (uint32_t i = 0; i < range.count; ++i)
      wanted->missing += assembly.values[range.begin + range.stride * i] == nullptr ? 1u : 0u;
  }
  if (wanted->missing == 0) complete(assembly, *wanted);
  return wanted.get();
}

void StoreTable::come(Assembly& assembly, uint32_t member, StorePiece value) {
  if (assembly.values[member]) return;
  assembly.values[member] = std::move(value);
  for (const auto& [range, wanted] : assembly.wanted) {
    if (range.begin > member) break;  // they are in the order of their beginnings
    if (range.holds(member) && --wanted->missing == 0) complete(assembly, *wanted);
  }
}

void StoreTable::complete(Assembly& assembly, Wanted& wanted) {
  if (!wanted.piece) {
    std::vector<StorePiece> values(wanted.range.count);
    for (uint32_t i = 0; i < wanted.range.count; ++i)
      values[i] = assembly.values[wanted.range.begin + wanted.range.stride * i];
    wanted.piece = encode_piece(encode_values(values));
  }
  const std::vector<uint64_t> visitors = std::exchange(wanted.visitors, {});
  for (const uint64_t id : visitors) {
    const auto found = assembly.visits.find(id);
    if (found == assembly.visits.end() || --found->second.incomplete > 0) continue;
    std::vector<StorePiece> pieces;
    for (const Wanted* const each : found->second.wanted) pieces.push_back(each->piece);
    reply(found->second.client, found->second.number, StoreStatus::value, std::move(pieces));
    assembly.visits.erase(found);
  }
}

// Those who have been told of them already will find out by themselves.
void StoreTable::withdraw(Assembly& assembly, const Visit& visit) {
  for (uint32_t member = visit.first; member < visit.first + visit.count; ++member) {
    if (!assembly.values[member]) continue;
    assembly.values[member].reset();
    for (const auto& [range, wanted] : assembly.wanted) {
      if (range.begin > member) break;
      if (!range.holds(member)) continue;
      ++wanted->missing;
      if (!wanted->piece) continue;
      // Complete until now: who is still here because of other ranges waits for this one again.
      wanted->piece.reset();
      for (auto& [id, other] : assembly.visits) {
        const auto times = std::count(other.wanted.begin(), other.wanted.end(), wanted.get());
        other.incomplete += static_cast<size_t>(times);
        wanted->visitors.insert(wanted->visitors.end(), static_cast<size_t>(times), id);
      }
    }
  }
}

void StoreTable::forget(StoreClientId client) {
  for (auto waiting = waits_.begin(); waiting != waits_.end();) {
    std::erase_if(waiting->second, [&](const Wait& wait) { return wait.client == client; });
    waiting = waiting->second.empty() ? waits_.erase(waiting) : std::next(waiting);
  }
  for (auto& [key, assembly] : assemblies_) {
    for (auto here = assembly.visits.begin(); here != assembly.visits.end();) {
      const auto each = here++;
      if (each->second.client != client) continue;
      const Visit visit = std::move(each->second);
      assembly.visits.erase(each);
      withdraw(assembly, visit);
    }
  }
}

bool StoreTable::is_due_by(int64_t time_ns) const {
  const auto is_due = [&](const auto& wait) { return wait.deadline_ns <= time_ns; };
  return std::any_of(waits_.begin(), waits_.end(),
                     [&](const auto& waiting) {
                       return std::any_of(waiting.second.begin(), waiting.second.end(), is_due);
                     }) ||
         std::any_of(assemblies_.begin(), assemblies_.end(), [&](const auto& assembly) {
           const auto& visits = assembly.second.visits;
           return std::any_of(visits.begin(), visits.end(),
                              [&](const auto& visit) { return is_due(visit.second); });
         });
}

void StoreTable::expire(int64_t now_ns) {
  std::vector<Wait> over;
  for (auto waiting = waits_.begin(); waiting != waits_.end();) {
    std::erase_if(waiting->second, [&](const Wait& wait) {
      if (wait.deadline_ns > now_ns) return false;
      over.push_back(wait);
      return true;
    });
    waiting = waiting->second.empty() ? waits_.erase(waiting) : std::next(waiting);
  }
  for (const Wait& wait : over) reply(wait.client, wait.number, StoreStatus::timed_out);
  for (auto& [key, assembly] : assemblies_) {
    for (auto here = assembly.visits.begin(); here != assembly.visits.end();) {
      const auto each = here++;
      if (each->second.deadline_ns > now_ns) continue;
      const Visit visit = std::move(each->second);
      assembly.visits.erase(each);
      std::vector<uint32_t> missing;
      for (const Wanted* const wanted : visit.wanted) {
        if (wanted->missing == 0) continue;
        for (uint32_t i = 0; i < wanted->range.count; ++i) {
          const uint32_t member = wanted->range.begin + wanted->range.stride * i;
          if (!assembly.values[member]) missing.push_back(member);
        }
      }
      std::sort(missing.begin(), missing.end());
      missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
      const auto count = static_cast<uint32_t>(missing.size());
      missing.resize(std::min(missing.size(), most_missing));
      reply(visit.client, visit.number, StoreStatus::timed_out,
            {encode_piece(encode_missing(count, missing))});
    }
  }
}

}  // namespace athanor
