#include "engine/prefix_cache.h"

#include "testing.h"

using namespace kz;

namespace {

constexpr int kLayers = 2, kWidth = 4;
constexpr size_t kPosition = kLayers * 2 * kWidth * sizeof(float);  // bytes

// n positions filled with a value.
KvCache filled(int n, float value) {
    KvCache kv(kLayers, kWidth);
    kv.reserve(n);
    for (int layer = 0; layer < kLayers; layer++) {
        for (int i = 0; i < n; i++) {
            std::fill_n(kv.k(layer, i), kWidth, value + static_cast<float>(i));
            std::fill_n(kv.v(layer, i), kWidth, -value - static_cast<float>(i));
        }
    }
    kv.n_past = n;
    return kv;
}

// Ids of n positions; different firsts are different prefixes.
PrefixCache::Key key(int n, int32_t first) {
    PrefixCache::Key k(static_cast<size_t>(2 * n), 7);
    k[0] = first;
    return k;
}

}  // namespace

TEST(a_kept_prefix_comes_back) {
    PrefixCache cache;
    KvCache kv = filled(200, 5), other(kLayers, kWidth);
    cache.keep(key(150, 1), kv);  // longer than a page, shorter than what kv holds
    CHECK(!cache.restore(key(150, 2), other));
    CHECK(!cache.restore(key(149, 1), other));
    CHECK_EQ(other.n_past, 0);
    CHECK(cache.restore(key(150, 1), other));
    CHECK_EQ(other.n_past, 150);
    for (const int i : {0, 127, 128, 149}) {
        CHECK(other.k(1, i)[kWidth - 1] == kv.k(1, i)[kWidth - 1]);
        CHECK(other.v(0, i)[0] == kv.v(0, i)[0]);
    }
}

TEST(the_least_recently_used_goes_first) {
    PrefixCache cache(3 * 10 * kPosition);
    KvCache kv = filled(10, 1), out(kLayers, kWidth);
    for (int32_t i = 0; i < 3; i++) cache.keep(key(10, i), kv);
    CHECK(cache.restore(key(10, 0), out));
    cache.keep(key(10, 3), kv);
    CHECK(cache.restore(key(10, 0), out));
    CHECK(!cache.restore(key(10, 1), out));
    CHECK(cache.bytes() <= 3 * 10 * kPosition);
}

TEST(what_exceeds_the_budget_is_not_kept) {
    PrefixCache cache(10 * kPosition);
    KvCache kv = filled(11, 1), out(kLayers, kWidth);
    cache.keep(key(10, 1), kv);
    cache.keep(key(11, 2), kv);
    CHECK(!cache.restore(key(11, 2), out));
    CHECK(cache.restore(key(10, 1), out));
}

TEST(a_prefix_is_kept_once) {
    PrefixCache cache(3 * 10 * kPosition);
    KvCache kv = filled(10, 1), out(kLayers, kWidth);
    cache.keep(key(10, 1), kv);
    for (int i = 0; i < 5; i++) cache.keep(key(10, 2), kv);
    CHECK_EQ(cache.bytes(), 2 * 10 * kPosition);
    CHECK(cache.restore(key(10, 1), out));
}
