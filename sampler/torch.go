package sampler

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
)

// torch draws what nanoGPT's get_batch draws, bit for bit: after torch.manual_seed(seed + rank), the rows of batch k begin at the elements of the
// k-th torch.randint(N-T, (B,)) on the CPU. The world does not matter. Torch26 differs where 2^28 <= N-T < 2^32. Blocks are never written once they
// are made.
type torch struct {
	starts        *starts
	batch, global uint64 // rows of a batch: of this rank, and of all
	width         uint64 // words of a draw
	first         *mtState

	mu     sync.Mutex      // guards recent; no other lock is taken under it
	recent []numberedState // by last use, latest first; at most maxRecent
}

// maxRecent is how many readers can go through distant parts of one sequence without a jump at every block.
const maxRecent = 64

type numberedState struct {
	number uint64
	*mtState
}

func newTorch(s Settings, w *starts) (o *torch, err error) {
	if len(w.extents) > 1 {
		return nil, fmt.Errorf("order %s draws from one array of tokens, here are %d: use one file or join = true", s.Order, len(w.extents))
	}
	o = &torch{starts: w, batch: uint64(s.BatchSize), global: uint64(s.BatchSize) * uint64(s.World), width: 1}
	if high := w.all; high >= 1<<32 || high >= 1<<28 && s.Order == Torch {
		o.width = 2
	}
	x, next := seedState(uint32(s.Seed)+uint32(s.Rank)), mtWords
	if s.TorchState != nil {
		if s.Rank != 0 || s.World != 1 {
			return nil, fmt.Errorf("torch_state is that of one rank: set rank = 0 and world = 1, or leave it out (got rank %d of %d)",
				s.Rank, s.World)
		}
		if x, next, err = parseTorchState(s.TorchState); err != nil {
			return nil, fmt.Errorf("torch_state: not the 5056 bytes of torch.get_rng_state().numpy().tofile(path): %w", err)
		}
	}
	var words [2 * mtWords]uint32
	copy(words[:], x[:])
	extend(words[:])
	o.first = (*mtState)(words[next:])
	return o, nil
}

// parseTorchState returns the last words made, and which of them is drawn next: mtWords for the first to be made.
func parseTorchState(raw []byte) (x *mtState, next int, err error) {
	var s struct { // CPUGeneratorImplState of PyTorch
		Seed         uint64
		Left, Seeded int32
		Next         uint64
		Words        [mtWords]uint64
		Normal       [40]byte // what randn keeps
	}
	if len(raw) != binary.Size(s) {
		return nil, 0, fmt.Errorf("there are %d", len(raw))
	}
	binary.Decode(raw, binary.LittleEndian, &s)
	if s.Left == 1 && s.Next < mtWords { // after manual_seed
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

func (o *torch) start(row uint64) int64 {
	draw, perBlock := row/o.global*o.batch+row%o.batch, mtWords/o.width
	x, i := o.stateAt(draw/perBlock), draw%perBlock*o.width
	word := uint64(temper(x[i]))
	if o.width == 2 {
		word = word<<32 | uint64(temper(x[i+1]))
	}
	return o.starts.at(int64(word % uint64(o.starts.all)))
}

// stateAt returns a state, from recent or newly computed. A jump keeps other readers of the sequence waiting for some milliseconds.
func (o *torch) stateAt(number uint64) *mtState {
	o.mu.Lock()
	defer o.mu.Unlock()
	near := numberedState{0, o.first}
	for i, b := range o.recent {
		if b.number == number {
			copy(o.recent[1:], o.recent[:i])
			o.recent[0] = b
			return b.mtState
		}
		if b.number > near.number && b.number < number {
			near = b
		}
	}
	if ahead := number - near.number; ahead <= statesPerJump {
		near.mtState = near.skip(ahead)
	} else {
		near.mtState = o.first.jump(number)
	}
	near.number = number
	o.recent = slices.Insert(o.recent[:min(len(o.recent), maxRecent-1)], 0, near)
	return near.mtState
}
