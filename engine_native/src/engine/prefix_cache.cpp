#include "engine/prefix_cache.h"

#include <algorithm>

namespace kz {

std::list<PrefixCache::Entry>::iterator PrefixCache::find(const Key &key) {
    return std::find_if(entries_.begin(), entries_.end(),
                        [&](const Entry &e) { return e.key == key; });
}

bool PrefixCache::restore(const Key &key, KvCache &kv) {
    const auto found = find(key);
    if (found == entries_.end()) return false;
    entries_.splice(entries_.begin(), entries_, found);
    kv.set_prefix(found->rows, positions(key));
    return true;
}

void PrefixCache::keep(const Key &key, KvCache &kv) {
    const int n = positions(key);
    if (kv.prefix_floats(n) * sizeof(float) > budget_ || find(key) != entries_.end()) return;
    Entry entry{key, kv.prefix(n)};
    bytes_ += entry.bytes();
    entries_.push_front(std::move(entry));
    while (bytes_ > budget_) {
        bytes_ -= entries_.back().bytes();
        entries_.pop_back();
    }
}

}  // namespace kz
