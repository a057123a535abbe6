package dataset

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"batchfs/cmd/batchfs/internal/testfiles"
)

// writeEnds writes n random tokens below 5, of which the last is 0, and an index of documents that
// end after each 0 or, unless agree is set, anywhere.
func writeEnds(t *testing.T, r *rand.Rand, name string, n int, agree bool) {
	t.Helper()
	var tokens, index []byte
	for i := range n {
		token := uint32(r.IntN(5))
		if i == n-1 {
			token = 0
		}
		tokens = binary.LittleEndian.AppendUint32(tokens, token)
		if i == n-1 || agree && token == 0 || !agree && r.IntN(4) == 0 {
			index = binary.LittleEndian.AppendUint64(index, uint64(i+1))
		}
	}
	testfiles.Write(t, map[string]string{name: string(tokens), name + ".index": string(index)})
}

// If the index and eot agree on where documents end, every byte of a batch is the same with either,
// but the index is part of the data.
func TestIndexThatAgreesWithEOT(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 40 {
		t.Chdir(t.TempDir())
		lines := fmt.Sprintf("tokens = ['a.bin', 'b.bin']\nblock_size = %d\ndtype = 'int64'\ndocuments = %t\nseed = %d\njoin = %t\norder = '%s'\n",
			1+r.IntN(20), r.IntN(2) == 0, r.IntN(100), r.IntN(2) == 0, []string{"random", "shuffle", "sequential"}[r.IntN(3)])
		switch r.IntN(3) {
		case 0:
			lines += "documents = true\nlayout = 'tokens'\n"
		case 1:
			lines += "mask_targets = true\n"
		case 2:
			testfiles.Write(t, map[string]string{"a.mask": strings.Repeat("\x01\x00\x01", 100), "b.mask": strings.Repeat("\x00\x01", 20)})
			lines += "mask_targets = 'mask'\narrays = [{name = 'mask', files = ['a.mask', 'b.mask'], dtype = 'uint8'}]\n"
		}
		writeEnds(t, r, "a.bin", 300, true)
		writeEnds(t, r, "b.bin", 40, true)
		byIndex := openSplitWith(t, lines)
		both := openSplitWith(t, lines+"eot = 0\n")
		want, same := sequenceOf(t, byIndex), sequenceOf(t, both)
		os.Remove("a.bin.index")
		os.Remove("b.bin.index")
		byToken := openSplitWith(t, lines+"eot = 0\n")
		if same != want || sequenceOf(t, byToken) != want {
			t.Fatalf("%s: the batches depend on whether the index or eot says where documents end", lines)
		}
		if both.Identity() != byIndex.Identity() || both.Identity() == byToken.Identity() || both.fingerprint == byToken.fingerprint {
			t.Errorf("%s: identities %s with an index, %s with eot as well, %s with eot alone", lines, byIndex.Identity(), both.Identity(), byToken.Identity())
		}
		if with, without := both.rowSettings()["eot"], byToken.rowSettings()["eot"]; with != int64(-1) || without != int64(0) {
			t.Errorf("%s: eot in the state is %v with an index, and %v without", lines, with, without)
		}
	}
}

// Where the index and eot differ, the index decides, also for a source of a mixture whose other
// source has none.
func TestIndexDecidesInsteadOfEOT(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	const mixed = "sources = [{tokens = 'a.bin', weight = 1}, {tokens = 'b.bin', weight = 2}]\n"
	for _, rest := range []string{"documents = true\n", "mask_targets = true\n", "documents = true\nmask_targets = true\n"} {
		t.Chdir(t.TempDir())
		rest += "order = 'shuffle'\nblock_size = 15\ndtype = 'int64'\n"
		writeEnds(t, r, "a.bin", 300, false)
		writeEnds(t, r, "b.bin", 200, true)
		alone, want := openSplitWith(t, rest), sequenceOf(t, openSplitWith(t, mixed+rest))
		if got := openSplitWith(t, rest+"eot = 0\n"); sequenceOf(t, got) != sequenceOf(t, alone) || got.Identity() != alone.Identity() {
			t.Errorf("%s: eot changes the batches of tokens with an index", rest)
		}
		os.Remove("b.bin.index")
		got := openSplitWith(t, mixed+rest+"eot = 0\n")
		if sequenceOf(t, got) != want {
			t.Errorf("%s: the batches are not those of an index for each source", rest)
		}
		if got.rowSettings()["eot"] != int64(0) || got.Identity() == openSplitWith(t, mixed+rest+"eot = 1\n").Identity() {
			t.Errorf("%s: eot decides for the second source, but the identity does not depend on it", rest)
		}
		var documents []bool
		for k := range uint64(10) {
			for _, line := range strings.SplitAfter(string(originsOf(got, k)), "\n") {
				if strings.Contains(line, `"source": "1"`) {
					documents = append(documents, strings.Contains(line, `"document"`))
				}
			}
		}
		if len(documents) == 0 || slices.Contains(documents, true) {
			t.Errorf("%s: rows of tokens without an index name documents: %v", rest, documents)
		}
		os.Remove("a.bin.index")
		testfiles.Write(t, map[string]string{"b.bin.index": string(binary.LittleEndian.AppendUint64(nil, 200))})
		_, err := openHere(t, "[splits.train]\ntokens = ['a.bin', 'b.bin']\ntoken_dtype = 'uint32'\nbatch_size = 3\neot = 0\n"+rest)
		want = "nothing says where the documents of " + abs(t, "a.bin") + " end, but " + abs(t, "b.bin") + ".index does for " + abs(t, "b.bin")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("one of two files has an index: error %v, want %s", err, want)
		}
	}
}

// A followed split goes on only with the same kind of ends, because saved states name it.
func TestFollowedIndex(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, appears := range []bool{false, true} {
		t.Chdir(t.TempDir())
		writeEnds(t, r, "a.bin", 300, true)
		want := "a.bin has no index of documents anymore; restore it, or mount again"
		if appears {
			must(t, os.Rename("a.bin.index", "kept"))
			want = "a.bin has an index of documents now; mount again to use it, or remove it"
		}
		s := onlyMountedSequence(t, two+"[splits.train]\ntokens = 'a.bin'\ntoken_dtype = 'uint32'\ndocuments = true\neot = 0\non_change = 'follow'")
		if appears {
			must(t, os.Rename("kept", "a.bin.index"))
		} else {
			must(t, os.Remove("a.bin.index"))
		}
		replace(t, "a.bin", string(testfiles.Bytes(t, "a.bin", 0, 1200)))
		if now, err := checkAll(s); now.Version != 0 || !errors.Is(err, syscall.ESTALE) || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}
