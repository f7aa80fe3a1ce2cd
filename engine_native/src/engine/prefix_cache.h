// Talker keys and values of prompt beginnings that many utterances share: instruction, role,
// language, speaker.  Used by one thread.
#pragma once

#include <cstdint>
#include <list>
#include <vector>

#include "nn/lm/kv_cache.h"

namespace kz {

class PrefixCache {
  public:
    static constexpr size_t kBudget = size_t{64}
                                      << 20;  // bytes; the least recently used goes first

    explicit PrefixCache(size_t budget = kBudget) : budget_(budget) {}

    // The ids of a prefix: text and codec id of each position.
    using Key = std::vector<int32_t>;

    // Sets the first positions of kv and true, or false when they are not known.
    bool restore(const Key &key, KvCache &kv);
    // Keeps the first positions of kv, which has at least as many; known ones stay as they are.
    void keep(const Key &key, KvCache &kv);
    size_t bytes() const { return bytes_; }

  private:
    struct Entry {
        Key key;
        FloatBuffer rows;
        size_t bytes() const { return rows.size() * sizeof(float); }
    };
    static int positions(const Key &key) { return static_cast<int>(key.size() / 2); }

    std::list<Entry>::iterator find(const Key &key);

    size_t budget_, bytes_ = 0;
    std::list<Entry> entries_;  // most recently used first
};

}  // namespace kz
