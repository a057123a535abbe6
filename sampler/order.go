package sampler

import "math/bits"

// An order is a pure function from a row's number in its source to the row's start. It is safe for
// concurrent use.
type order interface {
	start(row uint64) int64
}

// An epochOrder takes every window of a host's share once per epoch.
type epochOrder struct {
	share       hostShare
	permutation permutation
}

func (o *epochOrder) start(row uint64) int64 {
	n := uint64(o.share.windows)
	return o.share.windowStart(int64(o.permutation.permute(row/n, row%n)))
}

// A permutation maps the rows of each epoch one-to-one to windows. It is safe for concurrent use.
type permutation interface {
	// permute returns the window of a row; both count from 0 in the epoch.
	permute(epoch, row uint64) (window uint64)

	// inverse returns the row of a window.
	inverse(epoch, window uint64) (row uint64)
}

type sequential struct{}

func (sequential) permute(_, row uint64) uint64 { return row }

func (sequential) inverse(_, window uint64) uint64 { return window }

// A random draws starts uniformly: row s from the first word of Philox4x64-10 at counter (s, 0, 0,
// 0) that Lemire's method accepts ("Fast Random Integer Generation in an Interval", 2019). If it
// rejects all four, those at (s, 1, 0, 0) follow, and so on.
type random struct {
	starts *starts
	key    [2]uint64 // seed, and FNV-1a-64 of a name; see newOrder
}

func (r *random) start(row uint64) int64 {
	n := uint64(r.starts.count)
	threshold := -n % n // 2^64 mod n
	for attempt := uint64(0); ; attempt++ {
		for _, w := range philox4x64([4]uint64{row, attempt}, r.key) {
			if start, low := bits.Mul64(w, n); low >= threshold {
				return r.starts.nth(int64(start))
			}
		}
	}
}

// philox4x64 is Philox4x64-10 from Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy
// as 1, 2, 3" (2011).
func philox4x64(c [4]uint64, key [2]uint64) [4]uint64 {
	for range 10 {
		hi0, lo0 := bits.Mul64(0xD2E7470EE14C6C93, c[0])
		hi1, lo1 := bits.Mul64(0xCA5A826395121157, c[2])
		c = [4]uint64{hi1 ^ c[1] ^ key[0], lo1, hi0 ^ c[3] ^ key[1], lo0}
		key[0] += 0x9E3779B97F4A7C15
		key[1] += 0xBB67AE8584CAA73B
	}
	return c
}
