#include "athanor/store/redis_store.h"

#include <hiredis.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <thread>
#include <utility>

#include "athanor/base/clock.h"
#include "athanor/base/error.h"
#include "athanor/store/store_protocol.h"

namespace athanor {
namespace {

// KEYS: the value, and a stream with one entry once there is a value, which readers can wait for.
constexpr const char* set_script =
    "redis.call('SET', KEYS[1], ARGV[1], 'EX', 604800) "
    "if redis.call('EXISTS', KEYS[2]) == 0 then redis.call('XADD', KEYS[2], '*', 'v', '1') end "
    "redis.call('EXPIRE', KEYS[2], 604800) return ARGV[1]";
constexpr const char* add_script =
    "local sum = redis.call('INCRBY', KEYS[1], ARGV[1]) redis.call('EXPIRE', KEYS[1], 604800) "
    "if redis.call('EXISTS', KEYS[2]) == 0 then redis.call('XADD', KEYS[2], '*', 'v', '1') end "
    "redis.call('EXPIRE', KEYS[2], 604800) return tostring(sum)";
constexpr const char* compare_script =
    "local old = redis.call('GET', KEYS[1]) "
    "if old and old ~= ARGV[1] then return old end "
    "if not old and ARGV[1] ~= '' then return '' end "
    "redis.call('SET', KEYS[1], ARGV[2], 'EX', 604800) "
    "if redis.call('EXISTS', KEYS[2]) == 0 then redis.call('XADD', KEYS[2], '*', 'v', '1') end "
    "redis.call('EXPIRE', KEYS[2], 604800) return ARGV[2]";
// One round of a gathering after another: who comes anew, in another job, is not in the last one.
// KEYS: who is here (a hash by member), when each was last heard of (the same, in ms), the last round that
// was complete (as the first), a stream with an entry for each round. ARGV: members, the first one that is
// brought, for how many ms somebody is here who is not heard of, values. Returns whether the round is
// complete that has them, who is here already as another (-1: nobody), and the stream's last entry.
constexpr const char* gather_script =
    "local last = '0-0' local entry = redis.call('XREVRANGE', KEYS[4], '+', '-', 'COUNT', 1) "
    "if entry[1] then last = entry[1][1] end "
    "local first, brought, complete = tonumber(ARGV[2]), #ARGV - 3, redis.call('EXISTS', KEYS[3]) == 1 "
    "for i = 1, brought do complete = complete and "
    "redis.call('HGET', KEYS[3], first + i - 1) == ARGV[3 + i] end "
    "if complete then return {1, -1, last} end "
    "local time = redis.call('TIME') local now = time[1] * 1000 + math.floor(time[2] / 1000) "
    "local limit = now - tonumber(ARGV[3]) "
    "for i = 1, brought do local member = first + i - 1 local old = redis.call('HGET', KEYS[1], member) "
    "if old and old ~= ARGV[3 + i] and tonumber(redis.call('HGET', KEYS[2], member)) >= limit then "
    "return {0, member, last} end end "
    "for i = 1, brought do redis.call('HSET', KEYS[1], first + i - 1, ARGV[3 + i]) "
    "redis.call('HSET', KEYS[2], first + i - 1, now) end "
    "redis.call('EXPIRE', KEYS[1], 604800) redis.call('EXPIRE', KEYS[2], 604800) "
    "if redis.call('HLEN', KEYS[1]) < tonumber(ARGV[1]) then return {0, -1, last} end "
    "local heard = redis.call('HGETALL', KEYS[2]) local gone = 0 "
    "for i = 1, #heard, 2 do if tonumber(heard[i + 1]) < limit then gone = gone + 1 "
    "redis.call('HDEL', KEYS[1], heard[i]) redis.call('HDEL', KEYS[2], heard[i]) end end "
    "if gone > 0 then return {0, -1, last} end "
    "redis.call('RENAME', KEYS[1], KEYS[3]) redis.call('DEL', KEYS[2]) "
    "redis.call('EXPIRE', KEYS[3], 604800) "
    "last = redis.call('XADD', KEYS[4], 'MAXLEN', 2, '*', 'v', '1') "
    "redis.call('EXPIRE', KEYS[4], 604800) return {1, -1, last}";
constexpr int64_t sign_ns = 2'000'000'000;   // between signs of life of who waits
constexpr const char* silence_ms = "10000";  // of who has gone

struct FreeContext {
  void operator()(redisContext* context) const { redisFree(context); }
};
struct FreeReply {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
using Reply = std::unique_ptr<redisReply, FreeReply>;

timeval time_of(int64_t nanoseconds) {
  return {nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000 / 1000};
}

std::string text_of(const redisReply& reply) {
  return {reply.str, reply.len};
}

class RedisStore final : public Store {
 public:
  explicit RedisStore(StoreOptions options) : options_(std::move(options)), name_(to_text(options_.address)) {
    const Secret::Proof code = options_.secret.prove({bytes_of("athanor redis 1")});
    prefix_ = fmt::format("athanor/{}/", hex_of(std::span(code).first(8)));
    if (!options_.address.name.empty()) prefix_ += options_.address.name + '/';
    const Secret::Nonce visit = random_nonce();
    visit_ = hex_of(std::span(visit).first(8));
    const std::lock_guard lock(mutex_);
    connect();
  }

  void set(std::string_view key, std::string_view value) override {
    check(key, value);
    run_script(set_script, key, {std::string(value)});
  }

  std::optional<std::string> get(std::string_view key) override {
    check(key, {});
    const std::lock_guard lock(mutex_);
    return get_locked(key);
  }

  std::optional<std::string> wait(std::string_view key, int64_t timeout_ns) override {
    check(key, {});
    const std::lock_guard lock(mutex_);
    const int64_t deadline = monotonic_ns() + timeout_ns;
    while (true) {
      auto value = get_locked(key);
      if (value || monotonic_ns() >= deadline) return value;
      await_stream(key, deadline);
    }
  }

  int64_t add(std::string_view key, int64_t amount) override {
    check(key, {});
    return std::stoll(text_of(*run_script(add_script, key, {std::to_string(amount)})));
  }

  std::string compare_set(std::string_view key, std::string_view expected,
                          std::string_view desired) override {
    check(key, desired);
    return text_of(*run_script(compare_script, key, {std::string(expected), std::string(desired)}));
  }

  bool remove(std::string_view key) override {
    check(key, {});
    const std::lock_guard lock(mutex_);
    return command({"DEL", value_key(key), stream_key(key)}, 0)->integer > 0;
  }

  Gathered gather(const Gathering& gathering, int64_t timeout_ns) override {
    check(gathering.key, {});
    const int64_t deadline = monotonic_ns() + timeout_ns;
    const std::lock_guard lock(mutex_);
    while (true) {
      try {
        const Round round = come(gathering);
        if (gathering.wanted.empty()) return {};
        const bool over = monotonic_ns() >= deadline;
        if (round.complete || over) return take(gathering, round.complete);
        await_entry(round_key(gathering.key), round.last_entry, std::min(deadline, monotonic_ns() + sign_ns));
      } catch (const Error&) {
        // A server that went away may come back: whoever waits comes anew then.
        if (context_ || monotonic_ns() >= deadline) throw;
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
      }
    }
  }

 private:
  static void check(std::string_view key, std::string_view value) {
    check_request({StoreOperation::set, 0, 0, std::string(key), std::string(value)});
  }

  struct Round {
    bool complete = false;
    std::string last_entry;
  };
  Round come(const Gathering& gathering) {
    const std::string here = value_key(gathering.key);
    std::vector<std::string> words = {"EVAL",
                                      gather_script,
                                      "4",
                                      here,
                                      here + ":heard",
                                      here + ":complete",
                                      round_key(gathering.key),
                                      std::to_string(gathering.members),
                                      std::to_string(gathering.first),
                                      silence_ms};
    for (const std::string& value : gathering.values) words.push_back(visit_ + value);
    const Reply reply = command(words, 0);
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 3) lose("does not answer");
    if (reply->element[1]->integer >= 0)
      throw_user_error(fmt::format("the job's store at {} refuses '{}': number {} has come before, and was "
                                   "another",
                                   name_, gathering.key, reply->element[1]->integer),
                       "it was started twice, or another job uses the same secret and name");
    return {reply->element[0]->integer == 1, text_of(*reply->element[2])};
  }

  // The values, or who is missing.
  Gathered take(const Gathering& gathering, bool complete) {
    Gathered gathered;
    std::vector<uint32_t> missing;
    for (const MemberRange& range : gathering.wanted) {
      std::vector<std::string> request = {"HMGET", value_key(gathering.key) + (complete ? ":complete" : "")};
      for (uint32_t i = 0; i < range.count; ++i)
        request.push_back(std::to_string(range.begin + range.stride * i));
      const Reply reply = command(request, 0);
      if (reply->type != REDIS_REPLY_ARRAY || reply->elements != range.count) lose("does not answer");
      std::vector<StorePiece> values;
      for (uint32_t i = 0; i < range.count; ++i) {
        const bool there = reply->element[i]->type == REDIS_REPLY_STRING;
        if (!there) missing.push_back(range.begin + range.stride * i);
        if (there)
          values.push_back(
              std::make_shared<const std::string>(text_of(*reply->element[i]).substr(visit_.size())));
      }
      if (auto list = decode_values(encode_values(values))) gathered.values.push_back(std::move(*list));
    }
    if (complete && missing.empty()) return gathered;
    std::sort(missing.begin(), missing.end());
    missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
    gathered.values.clear();
    gathered.missing_count = static_cast<uint32_t>(missing.size());
    missing.resize(std::min<size_t>(missing.size(), 1000));
    gathered.missing = std::move(missing);
    return gathered;
  }

  [[noreturn]] void lose(const std::string& what) const {
    throw Error(ErrorKind::restart_worker, fmt::format("Redis at {}: {}", name_, what),
                "is it running and reachable from here?");
  }

  // Both keys of a script on one node of a cluster: what stands in braces decides.
  std::string value_key(std::string_view key) const { return fmt::format("{}{{{}}}", prefix_, key); }
  std::string stream_key(std::string_view key) const { return value_key(key) + ":there"; }
  std::string round_key(std::string_view key) const { return value_key(key) + ":rounds"; }

  void connect() {
    const int64_t deadline = monotonic_ns() + options_.connect_timeout_ns;
    while (true) {
      const int64_t left = std::max<int64_t>(1'000'000, deadline - monotonic_ns());
      context_.reset(
          redisConnectWithTimeout(options_.address.host.c_str(), options_.address.port, time_of(left)));
      if (context_ && context_->err == 0) break;
      const std::string problem = context_ ? context_->errstr : "no memory";
      if (monotonic_ns() + 100'000'000 >= deadline)
        lose(fmt::format("no connection within {:.1f} s: {}", seconds_of(options_.connect_timeout_ns),
                         problem));
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    const Reply reply = raw_command({"PING"}, 0);
    if (reply->type != REDIS_REPLY_ERROR || !text_of(*reply).starts_with("NOAUTH")) return;
    if (options_.password.empty() || raw_command({"AUTH", options_.password}, 0)->type == REDIS_REPLY_ERROR)
      throw_user_error(fmt::format("Redis at {} {}", name_,
                                   options_.password.empty() ? "wants a password" : "has another password"),
                       "set ATHANOR_REDIS_PASSWORD for all ranks");
  }

  // A connection that was lost is made anew for the next command; this one's fate is not known.
  Reply raw_command(const std::vector<std::string>& words, int64_t waits_ns) {
    redisSetTimeout(context_.get(), time_of(waits_ns + options_.answer_timeout_ns));
    std::vector<const char*> pointers;
    std::vector<size_t> lengths;
    for (const std::string& word : words) {
      pointers.push_back(word.data());
      lengths.push_back(word.size());
    }
    Reply reply(static_cast<redisReply*>(
        redisCommandArgv(context_.get(), static_cast<int>(words.size()), pointers.data(), lengths.data())));
    if (!reply) {
      const std::string problem = context_->errstr;
      context_.reset();
      lose(problem);
    }
    return reply;
  }

  Reply command(const std::vector<std::string>& words, int64_t waits_ns) {
    if (!context_) connect();
    Reply reply = raw_command(words, waits_ns);
    if (reply->type == REDIS_REPLY_ERROR) {
      if (text_of(*reply).starts_with("LOADING")) context_.reset();  // it has just come back
      lose(text_of(*reply));
    }
    return reply;
  }

  Reply run_script(const char* script, std::string_view key, const std::vector<std::string>& arguments) {
    std::vector<std::string> words = {"EVAL", script, "2", value_key(key), stream_key(key)};
    words.insert(words.end(), arguments.begin(), arguments.end());
    const std::lock_guard lock(mutex_);
    return command(words, 0);
  }

  std::optional<std::string> get_locked(std::string_view key) {
    const Reply reply = command({"GET", value_key(key)}, 0);
    if (reply->type != REDIS_REPLY_STRING) return std::nullopt;
    return text_of(*reply);
  }

  void await_stream(std::string_view key, int64_t deadline_ns) {
    await_entry(stream_key(key), "0", deadline_ns);
  }

  // Until there is an entry behind `last`.
  void await_entry(const std::string& stream, const std::string& last, int64_t deadline_ns) {
    const int64_t left = deadline_ns - monotonic_ns();
    if (left <= 0) return;
    const int64_t milliseconds = (left + 999'999) / 1'000'000;  // 0 would be for ever
    command({"XREAD", "BLOCK", std::to_string(milliseconds), "STREAMS", stream, last}, left);
  }

  const StoreOptions options_;
  const std::string name_;
  std::string prefix_;
  std::string visit_;  // before each value of a gathering: no two processes are one
  std::mutex mutex_;   // guards what follows
  std::unique_ptr<redisContext, FreeContext> context_;
};

}  // namespace

std::unique_ptr<Store> connect_redis(const StoreOptions& options) {
  return std::make_unique<RedisStore>(options);
}

}  // namespace athanor
