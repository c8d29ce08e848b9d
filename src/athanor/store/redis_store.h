// The store of a job in a Redis server, for jobs of many hosts: one connection for each process that asks.
//
// Called by store.h's connect_store. Thread safety: as Store.
//
// Where the server wants a password, it is the job's secret. Keys of different jobs do not meet: they begin
// with a code of the secret. They expire after a week. A gathering is complete when all its members have
// come, and somebody who has gone away stays come.
#pragma once

#include <memory>

#include "athanor/store/store.h"

namespace athanor {

std::unique_ptr<Store> connect_redis(const StoreOptions& options);

}  // namespace athanor
