"""The cache that all in-memory caches are built on: bounded, and the least recently used goes first."""

from omnigraph.caches import LruCache


def test_the_least_recently_used_entry_is_evicted_first() -> None:
    cache: LruCache[str, int] = LruCache(2)
    cache.put("a", 1)
    cache.put("b", 2)

    assert cache.get("a") == 1
    assert cache.put("c", 3) == ["b"]
    assert cache.items() == [("a", 1), ("c", 3)]


def test_a_peek_is_no_use() -> None:
    cache: LruCache[str, int] = LruCache(2)
    cache.put("a", 1)
    cache.put("b", 2)

    assert cache.peek("a") == 1
    assert cache.put("c", 3) == ["a"]


def test_the_total_size_is_bounded_and_counts_a_replaced_value_once() -> None:
    cache: LruCache[str, str] = LruCache(size_max=10)
    cache.put("a", "old", 8)
    cache.put("a", "new", 6)
    assert cache.size == 6

    assert cache.put("b", "b", 5) == ["a"]
    assert (cache.size, cache.pop("b"), cache.pop("b"), cache.size) == (5, "b", None, 0)


def test_a_value_larger_than_the_whole_cache_is_evicted_at_once() -> None:
    cache: LruCache[str, str] = LruCache(size_max=10)

    assert cache.put("a", "a", 11) == ["a"]
    assert (len(cache), cache.size, "a" in cache) == (0, 0, False)
