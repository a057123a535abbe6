package sampler

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
)

// A torch draws the starts of nanoGPT's get_batch, bit for bit: torch.manual_seed(seed + rank),
// then torch.randint(N-T, (B,)) on the CPU for each batch. Torch26 differs if 2^28 <= N-T < 2^32.
// States are immutable.
type torch struct {
	starts              *starts
	rankRows, worldRows uint64   // rows in a batch of this rank, and of all ranks
	wordsPerDraw        uint64   // 1 or 2
	initial             *mtState // state number 0, which begins with the first draw

	mu           sync.Mutex      // guards recentStates; no other lock is taken under it
	recentStates []numberedState // most recently used first; at most maxRecent
}

// maxRecent is how many readers can read distant parts of a sequence without a jump for each state.
const maxRecent = 64

type numberedState struct {
	number uint64
	*mtState
}

func newTorch(s Settings, from *starts) (t *torch, err error) {
	if n := len(from.extents) - from.tooShort; n > 1 {
		return nil, fmt.Errorf("order %s draws from one array of tokens, here are %d: use one file or join = true", s.Order, n)
	}
	t = &torch{starts: from, rankRows: uint64(s.BatchSize), worldRows: uint64(s.BatchSize) * uint64(s.World), wordsPerDraw: 1}
	if n := from.count; n >= 1<<32 || n >= 1<<28 && s.Order == Torch {
		t.wordsPerDraw = 2
	}
	x, next := seedState(uint32(s.Seed)+uint32(s.Rank)), mtWords
	if s.TorchState != nil {
		if x, next, err = parseTorchState(s.TorchState); err != nil {
			return nil, fmt.Errorf("torch_state: not the 5056 bytes of torch.get_rng_state().numpy().tofile(path): %w", err)
		}
	}
	var words [2 * mtWords]uint32
	copy(words[:], x[:])
	generate(words[:])
	t.initial = (*mtState)(words[next:])
	return t, nil
}

// parseTorchState returns the latest words of a saved generator, and the index of the next word to
// draw: mtWords if all are used up.
func parseTorchState(raw []byte) (x *mtState, next int, err error) {
	var s struct { // CPUGeneratorImplState of PyTorch
		Seed         uint64
		Left, Seeded int32
		Next         uint64
		Words        [mtWords]uint64
		Normal       [40]byte // cache of randn
	}
	if len(raw) != binary.Size(s) {
		return nil, 0, fmt.Errorf("there are %d", len(raw))
	}
	binary.Decode(raw, binary.LittleEndian, &s)
	if s.Left == 1 && s.Next < mtWords { // the form that manual_seed leaves
		s.Next = mtWords
	}
	if s.Seeded == 0 || s.Left < 1 || s.Next > mtWords || s.Next+uint64(s.Left) != mtWords+1 {
		return nil, 0, fmt.Errorf("bytes 8 to 23 are left = %d, seeded = %d and next = %d; seeded must not be 0, and left and next must add up to %d",
			s.Left, s.Seeded, s.Next, mtWords+1)
	}
	x = new(mtState)
	for i, w := range s.Words {
		x[i] = uint32(w)
	}
	return x, int(s.Next), nil
}

func (t *torch) start(row uint64) int64 {
	draw, drawsPerState := row/t.worldRows*t.rankRows+row%t.rankRows, mtWords/t.wordsPerDraw
	x, i := t.stateAt(draw/drawsPerState), draw%drawsPerState*t.wordsPerDraw
	word := uint64(temper(x[i]))
	if t.wordsPerDraw == 2 {
		word = word<<32 | uint64(temper(x[i+1]))
	}
	return t.starts.nth(int64(word % uint64(t.starts.count)))
}

// stateAt returns a state, cached or newly computed. A jump delays other readers of the sequence by
// some milliseconds.
func (t *torch) stateAt(number uint64) *mtState {
	t.mu.Lock()
	defer t.mu.Unlock()
	nearest := numberedState{0, t.initial}
	for i, recent := range t.recentStates {
		if recent.number == number {
			copy(t.recentStates[1:], t.recentStates[:i])
			t.recentStates[0] = recent
			return recent.mtState
		}
		if recent.number > nearest.number && recent.number < number {
			nearest = recent
		}
	}
	if distance := number - nearest.number; distance <= statesPerJump {
		nearest.mtState = nearest.skip(distance)
	} else {
		nearest.mtState = t.initial.jump(number)
	}
	nearest.number = number
	t.recentStates = slices.Insert(t.recentStates[:min(len(t.recentStates), maxRecent-1)], 0, nearest)
	return nearest.mtState
}
