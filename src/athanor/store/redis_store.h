// The store of a job in a Redis server, for jobs of many hosts: one connection for each process that asks.
//
// Called by store.h's connect_store. Thread safety: as Store.
//
// Keys of different jobs do not meet: they begin with a code of the secret, and the name in the address. They
// expire after a week. A gathering is complete when all its members are there at once, whatever they want;
// who waits gives a sign of life every two seconds and has gone when none was heard for ten. What an earlier
// job left behind is no part of it.
#pragma once

#include <memory>

#include "athanor/store/store.h"

namespace athanor {

std::unique_ptr<Store> connect_redis(const StoreOptions& options);

}  // namespace athanor
