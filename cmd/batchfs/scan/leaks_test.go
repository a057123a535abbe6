package scan

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"batchfs/cmd/batchfs/internal/testfiles"
)

const twoSplits = "[splits.train]\ntokens = ['a.bin', 'b.bin']\n[splits.val]\ntokens = ['c.bin', 'd.bin']\ntoken_dtype = 'uint32'\n"

// checkLeaks checks the splits of twoSplits in parts of the given sizes.
func checkLeaks(t *testing.T, partSize, leakPart, minOverlap int64) *Report {
	t.Helper()
	c := &check{partSize: partSize, leakPart: leakPart, stderr: io.Discard}
	testfiles.NoError(t, c.open(load(t, small+twoSplits)))
	c.chooseWindow(0)
	testfiles.NoError(t, c.readAll(t.Context()))
	c.reportProblems()
	testfiles.NoError(t, c.reportLeaks(t.Context(), minOverlap))
	return &c.report
}

func saveTokens32(t *testing.T, name string, tokens []uint16) {
	t.Helper()
	raw := make([]byte, 0, 4*len(tokens))
	for _, v := range tokens {
		raw = binary.LittleEndian.AppendUint32(raw, uint32(v))
	}
	testfiles.Write(t, map[string]string{name: string(raw)})
}

// Each run of 64 or more tokens is found, wherever it is in the shards of both splits, and in
// whatever parts they are read, even if some of its tokens repeat. Shorter runs are not.
func TestLeaksAreFound(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	rounds := 100
	if testing.Short() {
		rounds = 40
	}
	for range rounds {
		all := writeRandomTokens(t, map[string]int{"a.bin": 3000, "b.bin": 5000 + rng.IntN(64), "c.bin": 1000 + rng.IntN(64), "d.bin": 2000})
		n := []int{63, 64, 65, 96, 500, 1000}[rng.IntN(6)]
		train, val := []string{"a.bin", "b.bin"}[rng.IntN(2)], []string{"c.bin", "d.bin"}[rng.IntN(2)]
		at, other := rng.IntN(len(all[val])-n+1), rng.IntN(len(all[train])-n+1)
		for i, period := 0, 1+rng.IntN(4); period < 4 && i < 45; i++ {
			all[train][other+9+i] = all[train][other+9+i%period]
		}
		copy(all[val][at:at+n], all[train][other:])
		if at > 0 && other > 0 {
			all[val][at-1] = 99 - all[train][other-1]
		}
		if at+n < len(all[val]) && other+n < len(all[train]) {
			all[val][at+n] = 99 - all[train][other+n]
		}
		saveTokens(t, train, all[train])
		saveTokens32(t, "c.bin", all["c.bin"])
		saveTokens32(t, "d.bin", all["d.bin"])
		r := checkLeaks(t, int64(256+rng.IntN(8192))&^1, 32<<rng.IntN(8), 0)
		want := ""
		if n >= 64 {
			want = fmt.Sprintf("leak %s %d %d %s %d\n", val, at, n, train, other)
		}
		if got := problemLines(&Report{Problems: slices.Concat(r.Problems, r.Common)}); got != want || len(r.Problems) > 0 != (n == 1000) {
			t.Fatalf("%swant %s%+v", got, want, r)
		}
		if s := r.Shared[0]; s.Split != "val" || n >= 64 && s.Covered != int64(n) || s.Tokens != r.Tokens-int64(len(all["a.bin"])+len(all["b.bin"])) {
			t.Fatalf("%+v", s)
		}
	}
}

// A document that is in train in several pieces is a leak of the document, each of its tokens
// counts once, and boilerplate does not count.
func TestLeaksOfDocuments(t *testing.T) {
	all := writeRandomTokens(t, map[string]int{"a.bin": 40000, "b.bin": 5000, "c.bin": 1000, "d.bin": 2000})
	for i := range 20 { // a license begins every document of train and val
		copy(all["a.bin"][2000*i:], all["a.bin"][:200])
		copy(all["d.bin"][100*i:], all["a.bin"][:80])
	}
	copy(all["c.bin"][:200], all["a.bin"][:200])
	copy(all["c.bin"][500:650], all["a.bin"][3000:])
	copy(all["b.bin"][7:], all["c.bin"][600:700]) // overlaps the run before
	copy(all["b.bin"][300:], all["c.bin"][650:760])
	saveTokens(t, "a.bin", all["a.bin"])
	saveTokens(t, "b.bin", all["b.bin"])
	saveTokens32(t, "c.bin", all["c.bin"])
	saveTokens32(t, "d.bin", all["d.bin"])
	index := func(ends ...uint64) (raw string) {
		for _, end := range ends {
			raw += string(binary.LittleEndian.AppendUint64(nil, end))
		}
		return raw
	}
	testfiles.Write(t, map[string]string{"c.bin.index": index(500, 1000), "b.bin.index": index(100, 5000)})
	r := checkLeaks(t, 8192, 1<<20, 0)
	if got, want := problemLines(r), "leak c.bin 500 260 a.bin 3000\n"; got != want || len(r.Common) > 0 {
		t.Fatalf("%swant %s%+v", got, want, r)
	}
	if p := r.Problems[0]; *p.Document != 1 || p.Size != 500 || p.Passage != 150 || p.OtherDocument != nil {
		t.Errorf("%+v", p)
	}
	if s := r.Shared[0]; s.Covered != 260 || s.Boilerplate < 20*32 || s.Boilerplate > 20*80+200 {
		t.Errorf("%+v", s)
	}
	testfiles.Write(t, map[string]string{"c.bin.index": index(400, 1000)})
	if r := checkLeaks(t, 8192, 1<<20, 0); len(r.Problems) != 0 || len(r.Common) != 1 {
		t.Errorf("43%% of a document: %+v", r)
	}
	if r := checkLeaks(t, 8192, 1<<20, 150); len(r.Problems) != 1 {
		t.Errorf("a run of 150 tokens: %+v", r)
	}
}

// A repeated token is boilerplate, and is not compared at each of its positions.
func TestLeaksOfRepeatedToken(t *testing.T) {
	all := writeRandomTokens(t, map[string]int{"a.bin": 100000, "b.bin": 3000, "c.bin": 90000, "d.bin": 64})
	clear(all["a.bin"][1:])
	clear(all["c.bin"][1:])
	saveTokens(t, "a.bin", all["a.bin"])
	saveTokens32(t, "c.bin", all["c.bin"])
	saveTokens32(t, "d.bin", all["b.bin"][7:71])
	r := checkLeaks(t, 1<<20, 1<<20, 0)
	if got, want := problemLines(&Report{Problems: r.Common}), "leak d.bin 0 64 b.bin 7\n"; got != want || r.Shared[0].Boilerplate < 89000 {
		t.Errorf("%swant %s%+v", got, want, r.Shared)
	}
}

// Print shows at most 20 findings and how many there are.
func TestPrintOfManyLeaks(t *testing.T) {
	r := Report{Splits: []string{"train", "val"}, Common: make([]Problem, 33), Shared: []Shared{{"val", []string{"train"}, 1000, 500, 10}}}
	var out strings.Builder
	r.Print(&out)
	text := out.String()
	if strings.Count(text, "\n") != 26 || !strings.Contains(text, "50% of val (500 tokens) is also in train\n1% of val is boilerplate") ||
		!strings.Contains(text, "and 13 more; --json prints all\nlooked for passages of 64 or more tokens of val in train") {
		t.Error(text)
	}
}
