package fs

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"

	"batchfs/cache/array"
	"batchfs/fs/state"
)

func TestResumeRejectsOtherSplits(t *testing.T) {
	a, b := countingBatches("a", 1000), countingBatches("b", 1000)
	tr := newTestTree(t, a, b)
	for _, splits := range [][]Sequence{{a}, {a, b, countingBatches("c", 1000)}, {a, countingBatches("c", 1000)}} {
		if _, err := newSequenceTable(splits, tr.shared, Permissions{}, tr.log.Logger); err == nil {
			t.Errorf("%d splits are accepted as a and b", len(splits))
		}
	}
	if q, err := newSequenceTable([]Sequence{b, a}, tr.shared, Permissions{}, tr.log.Logger); err != nil || q.get(1) != a {
		t.Errorf("in another order: %v", err)
	}
}

// A handle of a text that an earlier worker opened never shows parts of texts of two lengths.
func TestTextsAfterTakeover(t *testing.T) {
	s := countingBatches("train", 1000)
	info := "{}\n"
	s.info = func() []byte { return []byte(info) }
	tr := newTestTree(t, s)
	cursor, begun, done := tr.openFile(t, "train/cursor", 0), tr.openFile(t, "train/info.json", 0), tr.openFile(t, "train/info.json", 0)
	done.read(0, 100)
	tr = takeOver(t, tr.shared, s)
	status := tr.openFile(t, "status.json", 0)
	for _, r := range []*reader{cursor, begun, done} {
		r.tree = tr
	}
	info = "[]\n" // of the same length
	if text, st := begun.read(1, 100); st != fuse.Status(syscall.ESTALE) {
		t.Errorf("in its middle, a text continues with %q, %v", text, st)
	}
	info = "{\"longer\": true}\n"
	if text, st := cursor.read(0, 100); st != fuse.OK || string(text) != "0\n" {
		t.Errorf("cursor shows %q, %v", text, st)
	}
	if text, _ := status.read(0, 1); string(text) != "{" {
		t.Errorf("status.json begins with %q", text)
	}
	if text, st := done.read(3, 100); st != fuse.OK || len(text) > 0 {
		t.Errorf("after its end, a text continues with %q, %v", text, st)
	}
	if text, st := begun.read(1, 100); st != fuse.Status(syscall.ESTALE) {
		t.Errorf("in its middle, a text continues with %q, %v", text, st)
	}
	if _, err := tr.shared.TextsOf(tr.find("train").sequence()); err != errTextGone.Error() {
		t.Errorf("the last error is %q", err)
	}
	if text, st := begun.read(0, 100); st != fuse.OK || string(text) != info {
		t.Errorf("from its beginning, a text is %q, %v", text, st)
	}
}

// Settings that no longer suit the tokens yield an error in every file and at any offset, until
// they suit again.
func TestUnsuitableSettingsAfterTakeover(t *testing.T) {
	s, under := manyArrays(3), manyArrays(3)
	under.Name = "train/seed=1"
	s.with = func(string) (Sequence, error) { return under, nil }
	tr := newTestTree(t, s)
	number := tr.find("train/seed=1").sequence()
	var open []*reader
	for _, name := range []string{"next", "next.npy", "next.safetensors", "batch/3", "batch/3.npy", "batch/3.safetensors", "batch/3.json", "batches.bin",
		"batches.npy", "sequence.bin", fmt.Sprintf("batch/3.%032d.npy", 15), fmt.Sprintf("batches.%032d.npy", 15)} {
		open = append(open, tr.openFile(t, "train/seed=1/"+name, 0))
	}
	info := tr.openFile(t, "train/seed=1/info.json", 0)
	for _, arrays := range []array.Batch{oneArray(1000), s.Batch} {
		unfit := countingBatches("train", 1000)
		unfit.Batch = arrays
		suits := false
		unfit.with = func(string) (Sequence, error) {
			if suits {
				return under, nil
			}
			return nil, syscall.EINVAL
		}
		tr = takeOver(t, tr.shared, unfit)
		for _, r := range open {
			r.tree = tr
			for _, off := range []int64{0, headerBytes - 1, headerBytes, 1 << 30} {
				if data, status := r.read(off, 2*headerBytes); status != fuse.Status(syscall.ESTALE) {
					t.Errorf("with %d arrays, byte %d of kind %d: %v, %d bytes, want ESTALE", len(arrays.Arrays), off, r.node.kind(), status, len(data))
				}
			}
		}
		info.tree = tr
		if text, status := info.read(0, 100); status != fuse.Status(syscall.ESTALE) {
			t.Errorf("info.json: %v, %q, want ESTALE", status, text)
		}
		in := fuse.InHeader{NodeId: uint64(info.node)}
		if status := tr.Open(nil, &fuse.OpenIn{InHeader: in}, &fuse.OpenOut{}); status != fuse.Status(syscall.ESTALE) {
			t.Errorf("opening info.json: %v, want ESTALE", status)
		}
		in.NodeId = uint64(makeInode(splitDir, number, 0))
		if status := tr.ReadDir(nil, &fuse.ReadIn{InHeader: in}, &fuse.DirEntryList{}); status != fuse.Status(syscall.ESTALE) {
			t.Errorf("listing the directory: %v, want ESTALE", status)
		}
		suits = true
	}
	if u := tr.sequences.get(number); u != under {
		t.Errorf("settings that suit again: %v", u)
	}
	for _, r := range open {
		if data, status := r.read(0, 100); !status.Ok() || len(data) == 0 {
			t.Errorf("settings that suit again, kind %d: %v, %d bytes", r.node.kind(), status, len(data))
		}
	}
}

func TestNamesAreForgottenAfterTakeover(t *testing.T) {
	s := countingBatches("train", 1000)
	tr := newTestTree(t, s)
	dir := tr.find("train")
	known := map[state.Name]int{} // sequence numbers of names that the kernel knows
	for round := range 20 {
		for i := range maxValidNames + 76 {
			name := fmt.Sprintf("seed=%d", 10_000*round+i)
			known[state.Name{Dir: uint64(dir), Name: name}] = tr.sequences.mustLookUp(t, dir, name)
		}
		tr = takeOver(t, tr.shared, s)
		for tr.shared.NamesRecorded()-tr.sequences.namesInvalidated > maxValidNames {
			n := tr.sequences.nextOutdatedName()
			if number, ok := known[n]; ok { // the kernel sends a FORGET
				tr.sequences.forget(number, 1)
				delete(known, n)
			}
		}
	}
	tr.sequences.check(t)
	if used := tr.shared.SequencesUsed(); used > 2*maxValidNames+1000 {
		t.Errorf("%d numbers are used, %d names are known", used, len(known))
	}
}

func TestTakeoverCreatesSequencesOnDemand(t *testing.T) {
	s := countingBatches("train", 1000)
	with, created := s.with, 0
	s.with = func(settings string) (Sequence, error) {
		created++
		return with(settings)
	}
	tr := newTestTree(t, s)
	dir := tr.find("train")
	for i := range 100 {
		tr.sequences.mustLookUp(t, dir, fmt.Sprint("seed=", i))
	}
	created = 0
	q := takeOver(t, tr.shared, s).sequences
	const number = 79
	for range 2 {
		if got := q.get(number); got == nil || got.Current().Spec().Name != "train/seed=77" || created != 1 {
			t.Errorf("%v, %d sequences created", got, created)
		}
	}
	if again := q.mustLookUp(t, dir, "seed=77"); again != number {
		t.Errorf("seed 77 has number %d now", again)
	}
	q.forget(number, 2)
	if again := q.mustLookUp(t, dir, "seed=100"); again != number {
		t.Errorf("number %d is used for a new sequence, want %d", again, number)
	}
	q.check(t)
}
