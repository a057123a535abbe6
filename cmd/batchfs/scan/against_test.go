package scan

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"batchfs/cmd/batchfs/internal/testfiles"
)

func against(t *testing.T, text string, partSize int64, items ...[]uint32) *ItemReport {
	t.Helper()
	return (&check{partSize: partSize, itemPart: itemPart, stderr: io.Discard}).searchFor(t, text, items...)
}

// searchFor searches the splits of a configuration for items with these tokens.
func (c *check) searchFor(t *testing.T, text string, items ...[]uint32) *ItemReport {
	t.Helper()
	r, err := c.against(t.Context(), load(t, text), ItemSource{"items.jsonl", 1001, func(visit func(*Item) error) error {
		for i, tokens := range items {
			if err := visit(&Item{ItemName: ItemName{"line", int64(i + 1)}, Text: fmt.Sprint(tokens), Encodings: [][]uint32{tokens}}); err != nil {
				return err
			}
		}
		return nil
	}})
	testfiles.NoError(t, err)
	if r.OK != (len(r.Found)+len(r.Frequent) == 0) || r.Items != int64(len(items)) {
		t.Errorf("%+v", r)
	}
	return r
}

func itemOf(tokens []uint16) (item []uint32) {
	for _, v := range tokens {
		item = append(item, uint32(v))
	}
	return item
}

// An item is found wherever it is in the files of train, and in whatever parts they are read, if
// all but two tokens at each end occur. Nothing else is found.
func TestItemsAreFound(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 30 {
		all := writeRandomTokens(t, map[string]int{"a.bin": 3000, "b.bin": 5000 + rng.IntN(64)})
		saveTokens32(t, "b.bin", all["b.bin"])
		var items [][]uint32
		want := ""
		for i, n := range []int{13, 30, 64, 300, 13, 14, 12, 30} {
			name := []string{"a.bin", "b.bin"}[rng.IntN(2)]
			at := []int{0, rng.IntN(2000), len(all[name]) - n}[rng.IntN(3)]
			item := itemOf(all[name][at : at+n])
			from, to := 0, n
			for range 2 {
				// With equal probability, none, one or two tokens at an end differ.
				if from == rng.IntN(2) {
					from++
				}
				if n-to == rng.IntN(2) {
					to--
				}
			}
			for j := range item {
				if j < from || j >= to {
					item[j] = 1000
				}
			}
			switch {
			case n < minItem:
			case i >= 4 && i < 6: // one token too many
				item[2+rng.IntN(n-4)] = 1000
			default:
				want += fmt.Sprintf("line %d: %d of %d at %s %d\n", i+1, to-from, n, name, at+from)
			}
			items = append(items, item)
		}
		// A token of another item, and copies of one.
		items = append(items, slices.Concat(items[0][:6], items[1][10:20]), items[3])
		want += strings.Replace(want[strings.Index(want, "line 4:"):strings.Index(want, "line 8:")], "line 4", "line 10", 1)
		r := against(t, small+"[splits.train]\ntokens = ['a.bin']\n[splits.other]\ntokens = 'b.bin'\ntoken_dtype = 'uint32'\n", int64(16+rng.IntN(3000))&^3, items...)
		got := ""
		for _, f := range r.Found {
			for _, p := range f.Places {
				got += fmt.Sprintf("%s: %d of %d at %s %d\n", f.ItemName, p.Tokens, f.Tokens, p.File[strings.LastIndex(string(p.File), "/")+1:], p.Index)
			}
		}
		if got != want || len(r.Frequent) > 0 || fmt.Sprint(r.Short) != "[line 7]" || r.Tokens != int64(len(all["a.bin"])+len(all["b.bin"])) {
			t.Fatalf("found\n%swant\n%s%v", got, want, r.Short)
		}
	}
}

// Items that occur more than 16 times, or repeat a token, are counted apart.
func TestFrequentItems(t *testing.T) {
	all := writeRandomTokens(t, map[string]int{"a.bin": 10000})
	tokens := all["a.bin"]
	for i := range 17 {
		copy(tokens[500*i+100:], tokens[9000:9020])
		if i < 15 {
			copy(tokens[500*i+200:], tokens[9100:9120])
		}
	}
	clear(tokens[9300:9400])
	saveTokens(t, "a.bin", tokens)
	testfiles.Write(t, map[string]string{"a.bin.index": string([]byte{100, 0, 0, 0, 0, 0, 0, 0, 0x10, 0x27, 0, 0, 0, 0, 0, 0})})
	r := against(t, small+"[splits.train]\ntokens = 'a.bin'\n", 2048, itemOf(tokens[9000:9020]), itemOf(tokens[9100:9120]), make([]uint32, 20), itemOf(tokens[50:70]))
	if len(r.Frequent) != 2 || r.Frequent[0].Number != 1 || r.Frequent[1].Number != 3 || len(r.Frequent[0].Places) != 0 {
		t.Errorf("frequent: %+v", r.Frequent)
	}
	if len(r.Found) != 2 || len(r.Found[0].Places) != 16 || *r.Found[0].Places[15].Document != 1 || *r.Found[1].Places[0].Document != 0 {
		t.Fatalf("found: %+v", r.Found)
	}
	var out strings.Builder
	r.Print(&out)
	want := `items.jsonl in train: searched 1 file, 10000 tokens for 4 items: 4 of 4 items occur
line 2: 20 of 20 tokens are in ` + string(r.Found[0].Places[0].File) + `, document 1, from index 200 on and in 15 other places
    "` + string(r.Found[0].Text) + `"
line 4: 20 of 20 tokens are in ` + string(r.Found[0].Places[0].File) + `, document 0, from index 50 on
    "` + string(r.Found[1].Text) + `"
more than 16 times each: 2 items, such as line 1
    "` + string(r.Frequent[0].Text) + `"
`
	if out.String() != want {
		t.Errorf("prints\n%swant\n%s", &out, want)
	}
}

// Items are found in several searches, if they do not fit into memory together.
func TestItemsInParts(t *testing.T) {
	all := writeRandomTokens(t, map[string]int{"a.bin": 10000})
	var items [][]uint32
	for i := range 20 {
		items = append(items, itemOf(all["a.bin"][100*i:][:20]), make([]uint32, i))
	}
	for _, memory := range []int{1, 3 * (20 + itemOverhead), 1 << 20} {
		c := &check{partSize: 2048, itemPart: memory, stderr: io.Discard}
		if r := c.searchFor(t, small+"[splits.train]\ntokens = 'a.bin'\n", items...); len(r.Found) != 20 || r.Found[19].Number != 39 || len(r.Short) != 13 {
			t.Errorf("with memory for %d tokens: %+v", memory, r)
		}
	}
}

// If what precedes a text changes its first tokens, any of its encodings is found, and counts once.
func TestEncodingsOfItems(t *testing.T) {
	all := writeRandomTokens(t, map[string]int{"a.bin": 10000})
	rest := itemOf(all["a.bin"][500:516])
	with := func(first ...uint32) []uint32 { return append(first, rest...) }
	copy(all["a.bin"][496:500], []uint16{96, 97, 98, 99})
	saveTokens(t, "a.bin", all["a.bin"])
	for _, test := range []struct {
		encodings [][]uint32
		cores     int
		found     int
	}{
		{[][]uint32{with(1), with(2), with(3, 4)}, 1, 16},
		{[][]uint32{with(1, 2, 3, 4), with(5, 97, 98, 99), with(98, 99)}, 1, 18},
		{[][]uint32{with(1, 2, 3, 4), with(5, 6, 7, 8, 9)}, 2, 0},
		{[][]uint32{with(1, 2, 3, 4), with(95, 96, 97, 98, 99)}, 2, 20},
		{[][]uint32{append([]uint32{1}, rest[:12]...), rest[:12]}, 1, 12},
	} {
		s := new(itemSearch)
		s.add(&Item{Encodings: slices.Clone(test.encodings)})
		s.makeTable()
		if len(s.cores) != test.cores {
			t.Errorf("%v: %d cores, want %d", test.encodings, len(s.cores), test.cores)
		}
		c := &check{partSize: 2048, itemPart: itemPart, stderr: io.Discard}
		r, err := c.against(t.Context(), load(t, small+"[splits.train]\ntokens = 'a.bin'\n"), ItemSource{"x", 100, func(visit func(*Item) error) error {
			return visit(&Item{ItemName: ItemName{"row", 1}, Encodings: test.encodings})
		}})
		testfiles.NoError(t, err)
		if found := len(r.Found) == 1; found != (test.found > 0) || found && (len(r.Found[0].Places) != 1 || r.Found[0].Places[0].Tokens != test.found) {
			t.Errorf("%v: found %+v, want %d tokens", test.encodings, r.Found, test.found)
		}
	}
}

// The places of an item are in the order of the files, whatever its tokens are in each.
func TestPlacesAreSorted(t *testing.T) {
	all := writeRandomTokens(t, map[string]int{"a.bin": 1000, "b.bin": 1000})
	first, second := all["a.bin"][500:520], all["a.bin"][100:120]
	copy(all["b.bin"][50:], first)
	copy(all["b.bin"][20:], second)
	saveTokens(t, "b.bin", all["b.bin"])
	c := &check{partSize: 2048, itemPart: itemPart, stderr: io.Discard}
	r, err := c.against(t.Context(), load(t, small+"[splits.train]\ntokens = ['a.bin', 'b.bin']\n"), ItemSource{"items", 1000, func(visit func(*Item) error) error {
		return visit(&Item{ItemName: ItemName{"line", 1}, Text: "item", Encodings: [][]uint32{itemOf(first), itemOf(second)}})
	}})
	testfiles.NoError(t, err)
	var at []int64
	for _, p := range r.Found[0].Places {
		at = append(at, p.Index)
	}
	if want := []int64{100, 500, 20, 50}; !slices.Equal(at, want) {
		t.Errorf("the places are at %v, want %v", at, want)
	}
}
