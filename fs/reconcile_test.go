package fs

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"

	"batchfs/fs/state"
)

// A fakeKernel simulates lookups and FORGETs of settings while workers die, and some of their
// replies and some FORGETs are lost.
type fakeKernel struct {
	tree        *tree
	train       inode
	known       map[uint64]string // settings, by node
	lookups     map[uint64]uint64 // lookups not forgotten yet, by node
	unprocessed []fuse.EntryOut   // replies that the kernel has not processed yet
	namesSent   map[uint64]string // settings in replies, by node
}

// lookUp looks settings up. If lost is set, the worker dies before it replies, and the request is
// sent again.
func (k *fakeKernel) lookUp(t *testing.T, seed int, lost bool) {
	t.Helper()
	header := fuse.InHeader{NodeId: uint64(k.train), Unique: lastUnique.Add(2)}
	name := fmt.Sprint("seed=", seed)
	var out fuse.EntryOut
	if status := k.tree.Lookup(nil, &header, name, &out); !status.Ok() {
		t.Fatal(status)
	}
	if lost {
		k.takeover(t)
		header.Unique |= state.Resent
		k.tree.Lookup(nil, &header, name, &out)
	}
	k.namesSent[out.NodeId] = name
	k.unprocessed = append(k.unprocessed, out)
}

func (k *fakeKernel) processReplies() {
	for _, out := range k.unprocessed {
		k.known[out.NodeId] = k.namesSent[out.NodeId]
		k.lookups[out.NodeId]++
	}
	k.unprocessed = nil
}

func (k *fakeKernel) forget(node uint64, lost bool) {
	n := k.lookups[node]
	delete(k.known, node)
	delete(k.lookups, node)
	if !lost {
		k.tree.Forget(node, n)
	}
}

func (k *fakeKernel) knows(node uint64) bool { return k.lookups[node] > 0 }

func (k *fakeKernel) takeover(t *testing.T) {
	k.tree = takeOver(t, k.tree.shared, k.tree.sequences.get(1))
}

// Even if dying workers lose replies and FORGETs, a directory that the kernel knows has the
// settings that were looked up, and a sequence that the kernel does not know ends.
func TestReconcile(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	tr := newTestTree(t, countingBatches("train", 100))
	k := &fakeKernel{tree: tr, train: tr.find("train"), known: map[uint64]string{}, lookups: map[uint64]uint64{}, namesSent: map[uint64]string{}}
	check := func() {
		t.Helper()
		for node, name := range k.known {
			if s := k.tree.sequence(inode(node)); s == nil || s.Spec().Name != "train/"+name {
				t.Fatalf("the kernel knows %s, which is %v", name, s)
			}
		}
	}
	anyKnown := func() (node uint64) {
		for node = range k.known {
			break
		}
		return node
	}
	for range 5000 {
		switch op := random.IntN(100); {
		case op < 40:
			k.lookUp(t, random.IntN(200), op < 4)
			if op%3 > 0 {
				k.processReplies()
			}
		case op < 60 && len(k.known) > 0:
			k.forget(anyKnown(), op < 50)
		case op < 62:
			k.takeover(t)
		case op < 75:
			k.tree.sequences.askKernel(k.knows)
			k.processReplies() // long before the kernel is asked again
		}
		check()
	}
	k.processReplies()
	k.takeover(t)
	for left := 1; left > 0; {
		left, _ = k.tree.sequences.askKernel(k.knows)
		if left <= len(k.known) {
			break
		}
	}
	check()
	k.tree.sequences.check(t)
	if n := len(k.tree.sequences.byName) - 1; n != len(k.known) {
		t.Errorf("%d settings directories are left, and the kernel knows %d", n, len(k.known))
	}
}

func TestRetiredNumbersAreUsedLast(t *testing.T) {
	s := countingBatches("train", 100)
	tr := newTestTree(t, s)
	dir := tr.find("train")
	lost := tr.sequences.mustLookUp(t, dir, "seed=1000000")
	tr = takeOver(t, tr.shared, s)
	for range missesToRetire {
		tr.sequences.askKernel(func(uint64) bool { return false })
	}
	if tr.sequences.get(lost) != nil {
		t.Fatal("the kernel does not know the directory, and it is still there")
	}
	q := takeOver(t, tr.shared, s).sequences
	for more := true; more; more = tr.shared.SequencesUsed() < state.MaxSequences-1 {
		if got := q.mustLookUp(t, dir, fmt.Sprint("seed=", tr.shared.SequencesUsed())); got == lost {
			t.Fatalf("the retired number is used again after %d others", tr.shared.SequencesUsed())
		}
		for range min(10_000, state.MaxSequences-2-tr.shared.SequencesUsed()) {
			tr.shared.NewNumber() // other sequences take these
		}
	}
	if got := q.mustLookUp(t, dir, "seed=last"); got != lost {
		t.Errorf("with no other number left, number %d is used, want %d", got, lost)
	}
}
