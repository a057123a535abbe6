package sampler

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"

	"batchfs/internal/testwait"
)

func mustTorch(t testing.TB, s Settings, starts int64) *torch {
	t.Helper()
	o, err := newTorch(s, startsOf(t, starts))
	must(t, err)
	return o
}

func torchState(t testing.TB) []byte {
	t.Helper()
	state, err := os.ReadFile("testdata/torch_rng_state.bin")
	must(t, err)
	return state
}

// mt19937 is the generator word by word, as in the paper.
type mt19937 struct {
	x [624]uint32
	i int
}

func newMT19937(seed uint32) *mt19937 {
	return &mt19937{x: *seedState(seed)}
}

func (g *mt19937) untempered() uint32 {
	x, i := &g.x, g.i
	y := x[i]&0x80000000 | x[(i+1)%624]&0x7fffffff
	x[i] = x[(i+397)%624] ^ y>>1
	if y&1 == 1 {
		x[i] ^= 0x9908b0df
	}
	g.i = (i + 1) % 624
	return x[i]
}

func (g *mt19937) skip(n int) *mt19937 {
	for range n {
		g.untempered()
	}
	return g
}

func (g *mt19937) draw(width int, starts int64) int64 {
	word := uint64(0)
	for range width {
		word = word<<32 | uint64(temper(g.untempered()))
	}
	return int64(word % uint64(starts))
}

// state returns what torch.get_rng_state() would. next is the saved index if all words are used up.
func (g *mt19937) state(next int) []byte {
	left, latest := 1, *g
	if g.i > 0 {
		left, next = 625-g.i, g.i
		latest.skip(left - 1)
	}
	raw := make([]byte, 5056)
	binary.LittleEndian.PutUint32(raw[8:], uint32(left))
	binary.LittleEndian.PutUint32(raw[12:], 1)
	binary.LittleEndian.PutUint64(raw[16:], uint64(next))
	for i, w := range latest.x {
		binary.LittleEndian.PutUint64(raw[24+8*i:], uint64(w))
	}
	return raw
}

// A saved state continues the stream from any word, even from the second word of a draw.
func TestTorchStateAnywhere(t *testing.T) {
	for _, drawn := range []int{0, 1, 2, 3, 226, 227, 228, 396, 397, 398, 622, 623, 624, 625, 1248, 5000} {
		for width, starts := range map[int]int64{1: 1 << 20, 2: 1 << 40} {
			for _, next := range []int{0, 624} { // states after manual_seed and after a draw
				g := newMT19937(7).skip(drawn)
				o := mustTorch(t, Settings{Order: Torch, BatchSize: 1, World: 1, TorchState: g.state(next)}, starts)
				for row := range uint64(2000) {
					if got, want := o.start(row), g.draw(width, starts); got != want {
						t.Fatalf("after %d words, width %d: row %d starts at %d, want %d", drawn, width, row, got, want)
					}
				}
			}
		}
	}
}

func TestTorchRejects(t *testing.T) {
	const want = "not the 5056 bytes of torch.get_rng_state()"
	withBytes := func(offset int, b ...byte) []byte {
		state := torchState(t) // left is 233, next is 392
		copy(state[offset:], b)
		return state
	}
	for _, test := range []struct {
		state []byte
		want  string
	}{
		{nil, ""},
		{withBytes(0), ""},
		{withBytes(8, 1, 0), ""},
		{withBytes(8, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0), ""},
		{[]byte{}, want + ".numpy().tofile(path): there are 0"},
		{withBytes(0)[:5055], "there are 5055"},
		{make([]byte, 5056), want},
		{withBytes(12, 0), "left = 233, seeded = 0 and next = 392; seeded must not be 0"},
		{withBytes(8, 0), "left = 0,"},
		{withBytes(8, 0x71, 2), "left = 625,"},
		{withBytes(8, 255, 255, 255, 255), "left = -1,"},
		{withBytes(16, 0x71, 2), "next = 625;"},
		{withBytes(23, 128), "next = 9223372036854776200;"},
		{withBytes(16, 0x89, 1), "next = 393; seeded must not be 0, and left and next must add up to 625"},
		{withBytes(16, 0, 0), "next = 0;"},
	} {
		_, err := newTorch(Settings{Order: Torch, BatchSize: 1, World: 1, TorchState: test.state}, startsOf(t, 9))
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("error %v, want %q", err, test.want)
		}
	}

	runs, _ := extentsOf(false, 10, 20)
	apart, err := windowStarts(runs, 3)
	must(t, err)
	_, err = newTorch(Settings{Order: Torch26, BatchSize: 1, World: 1}, apart)
	if err == nil || !strings.Contains(err.Error(), "torch-2.6 draws from one array of tokens, here are 2: use one") {
		t.Errorf("two runs: error %v", err)
	}
}

// Rows read in any order, by several readers at once, equal those drawn in order.
func TestTorchRandomAccess(t *testing.T) {
	for width, starts := range map[int]int64{1: 1 << 20, 2: 1 << 40} {
		s := Settings{Order: Torch, Seed: 42, BatchSize: 12, World: 1}
		rows := 2 * statesPerJump * mtWords / width // enough that some need jumps
		want, g := make([]int64, rows), newMT19937(42)
		for row := range want {
			want[row] = g.draw(width, starts)
		}
		check := func(o *torch, row int) {
			if got := o.start(uint64(row)); got != want[row] {
				t.Errorf("width %d: row %d starts at %d, want %d", width, row, got, want[row])
			}
		}
		sequential := mustTorch(t, s, starts)
		for row := range 100 * mtWords {
			check(sequential, row)
		}
		together := mustTorch(t, s, starts)
		var readers sync.WaitGroup
		for reader := range uint64(8) {
			readers.Go(func() {
				r := rand.New(rand.NewPCG(reader, 0))
				near := r.Perm(5 * mtWords)
				first := r.IntN(rows - len(near))
				for i, row := range near {
					check(together, first+row)
					check(together, first+i)
				}
				for range 20 {
					check(together, r.IntN(rows))
				}
			})
		}
		testwait.End(t, "the readers", readers.Wait)
		if n := len(together.recentStates); n > maxRecent {
			t.Errorf("%d blocks are kept, not %d at most", n, maxRecent)
		}
	}
}
