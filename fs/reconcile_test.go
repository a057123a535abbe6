package fs

import (
	"fmt"
	"testing"

	"batchfs/fs/state"
)

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
