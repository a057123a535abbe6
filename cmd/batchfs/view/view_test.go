package view

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/dataset"
	"batchfs/cmd/batchfs/internal/testfiles"
)

func open(t *testing.T, flags config.Flags) (*View, []*dataset.Dataset) {
	t.Helper()
	c, err := flags.Load()
	testfiles.NoError(t, err)
	all, err := dataset.NewOpener(c).Open(nil)
	testfiles.NoError(t, err)
	v := New(nil)
	for _, d := range all {
		testfiles.NoError(t, v.Add(d.Split.Name, d))
	}
	return v, all
}

// get requests a path below the page. If change is not nil, it modifies the request.
func get(v *View, path string, change func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "http://127.0.0.1:8000/"+v.key+"/"+path, nil)
	if change != nil {
		change(r)
	}
	w := httptest.NewRecorder()
	v.ServeHTTP(w, r)
	return w
}

func decode(t *testing.T, v *View, path string, into any) {
	t.Helper()
	w := get(v, path, nil)
	if w.Code != http.StatusOK {
		t.Fatalf("%s: %d %s", path, w.Code, w.Body)
	}
	testfiles.NoError(t, json.Unmarshal(w.Body.Bytes(), into))
}

// Requests with a wrong origin or key are rejected, and every response carries the policy.
func TestWhoMayAsk(t *testing.T) {
	testfiles.WriteManySplits(t)
	v, _ := open(t, config.Flags{})
	for _, path := range []string{"", "page.js", "style.css", "icon.svg", "sequences", "rows?n=1&len=1", "find?pos=0", "search?text=a"} {
		for name, test := range map[string]struct {
			change func(*http.Request)
			want   int
		}{
			"plain":          {nil, http.StatusOK},
			"localhost":      {func(r *http.Request) { r.Host = "localhost:9" }, http.StatusOK},
			"own origin":     {func(r *http.Request) { r.Header.Set("Origin", "http://127.0.0.1:8000") }, http.StatusOK},
			"foreign origin": {func(r *http.Request) { r.Header.Set("Origin", "http://127.0.0.1:8001") }, http.StatusForbidden},
			"null origin":    {func(r *http.Request) { r.Header.Set("Origin", "null") }, http.StatusForbidden},
			"other key":      {func(r *http.Request) { r.URL.Path = strings.Replace(r.URL.Path, v.key, v.key[1:]+"A", 1) }, http.StatusForbidden},
			"no key":         {func(r *http.Request) { r.URL.Path = "/" + path }, http.StatusForbidden},
		} {
			w := get(v, path, test.change)
			if w.Code != test.want {
				t.Errorf("%q, %s: %d %s", path, name, w.Code, w.Body)
			}
			if got := w.Header(); got.Get("Content-Security-Policy") != policy || got.Get("X-Content-Type-Options") != "nosniff" {
				t.Errorf("%q, %s: %v", path, name, got)
			}
		}
	}
	for _, path := range []string{"view.go", "../view.go", "page/", "%2e%2e/view.go"} {
		if w := get(v, path, nil); w.Code == http.StatusOK {
			t.Errorf("%q: %s", path, w.Body)
		}
	}
}

// The segments of a row have the ids that vocab.json leads to.
func TestIDsOfDocuments(t *testing.T) {
	t.Chdir(t.TempDir())
	testfiles.Positions(t, map[string]int{"a.bin": 20})
	index := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, 9), 20)
	testfiles.Write(t, map[string]string{"a.bin.index": string(index), "a.bin.ids": "\"<b>\"\n7\n",
		"vocab.json":  `{"kind": "ids", "vocab_size": 20, "splits": {"train": {"shards": [{"name": "a.bin", "ids": "a.bin.ids"}]}}}`,
		"config.toml": "[splits.train]\ntokens = 'a.bin'\ntoken_dtype = 'uint32'\nbatch_size = 1\nblock_size = 20\nrows = 'packed'\n"})
	v, _ := open(t, config.Flags{})
	var rows []row
	decode(t, v, "rows?k=0&n=1&len=9", &rows)
	if got := rows[0].Segments; len(got) != 2 || got[0].ID != "<b>" || got[1].ID != "7" {
		t.Errorf("segments %+v", got)
	}
}

// For every kind of split, rows that are requested in parts of any size make up the whole batch.
func TestRows(t *testing.T) {
	testfiles.WriteManySplits(t)
	v, all := open(t, config.Flags{})
	for s, d := range all {
		batch := d.Sequence.Batch()
		want := make([]byte, batch.Bytes())
		testfiles.NoError(t, d.Sequence.Read(want, 3, 0))
		for _, n := range []int{1, 3, 100} {
			got := make([][]byte, len(batch.Arrays)*d.Sequence.BatchSize) // by array, then row
			for at := 0; at < d.Sequence.BlockSize+1; at += n {
				var rows []row
				decode(t, v, fmt.Sprintf("rows?s=%d&k=3&n=9&at=%d&len=%d", s, at, n), &rows)
				for i, a := range batch.Arrays {
					for j, r := range rows {
						// Arrays with one axis have a single number per row.
						if at == 0 || len(a.Shape) > 1 {
							got[i*len(rows)+j] = append(got[i*len(rows)+j], r.Arrays[a.Name]...)
						}
					}
				}
			}
			if b := bytes.Join(got, nil); !bytes.Equal(b, want) {
				t.Errorf("%s by %d: % x, want % x", d.Split.Name, n, b, want)
			}
		}
	}
}

// The page shows that documents begin where the index says, whatever eot is and however many tokens
// it requests at a time. Empty documents have numbers, but are not shown.
func TestBeginsOfDocuments(t *testing.T) {
	t.Chdir(t.TempDir())
	testfiles.Positions(t, map[string]int{"a.bin": 40})
	var index []byte
	for _, end := range slices.Concat([]uint64{3}, slices.Repeat([]uint64{9}, 50), []uint64{10, 31, 40}) {
		index = binary.LittleEndian.AppendUint64(index, end)
	}
	const lines = "[batch]\nbatch_size = 2\nblock_size = 12\ndtype = 'int64'\norder = 'sequential'\ntoken_dtype = 'uint32'\n"
	testfiles.Write(t, map[string]string{"a.bin.index": string(index), "config.toml": lines + "[splits.a]\ntokens = 'a.bin'\nmask_targets = true\neot = 5\n" +
		"[splits.b]\ntokens = 'a.bin'\neot = 5\n"})
	v, _ := open(t, config.Flags{})
	for _, n := range []int{2, 5, 100} {
		got := make([][]string, 2)
		for at := 0; at < 13; at += n {
			var rows []row
			decode(t, v, fmt.Sprintf("rows?s=0&k=0&n=9&at=%d&len=%d", max(at-1, 0), n+1), &rows)
			for j, r := range rows {
				for b, i := range r.Begins {
					if i >= at && i < at+n {
						got[j] = append(got[j], fmt.Sprintf("%d at %d", r.Numbers[b], i))
					}
				}
			}
		}
		if want := "[[1 at 3 51 at 9 52 at 10] []]"; fmt.Sprint(got) != want {
			t.Errorf("by %d: documents begin: %v, want %s", n, got, want)
		}
	}
	var rows []row
	if decode(t, v, "rows?s=1&k=0&n=9&at=0&len=13", &rows); rows[0].Begins != nil {
		t.Errorf("documents begin at %d, although the split does not use them", rows[0].Begins)
	}
}

// A rank gets its own rows. Errors explain what is wrong with a request.
func TestQueries(t *testing.T) {
	testfiles.WriteManySplits(t)
	v, all := open(t, config.Flags{})
	other, err := all[0].With("rank=1")
	testfiles.NoError(t, err)
	want := make([]byte, other.Sequence.Batch().RowBytes(0))
	testfiles.NoError(t, other.Sequence.Read(want, 5, 0))
	var rows []row
	decode(t, v, "rows?s=0&rank=1&k=5&n=1&len=100", &rows)
	if len(rows) != 1 || !bytes.Equal(rows[0].Arrays["x"], want) {
		t.Errorf("%+v, want x % x", rows, want)
	}
	for path, want := range map[string]string{
		"rows?s=99": "s: must be below the number of sequences, 7 (got 99)", "rows?s=-1": `s: no such number: "-1"`, "rows?k=1099511627776": "k: no such number",
		"rows?rank=2": "rank", "find?pos=83": "from 0 to 82", "search": "text: must not be empty", "rows?n=x": "n: no such number",
	} {
		if w := get(v, path, nil); w.Code != http.StatusUnprocessableEntity || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %d %s, want %s", path, w.Code, w.Body, want)
		}
	}
	decode(t, v, "rows?from=9&n=5&len=5", &rows)
	if len(rows) != 0 {
		t.Errorf("%d rows after the last", len(rows))
	}
}

const vocab = `{"kind": "byte", "vocab_size": 256, "token_dtype": "uint16"}`

// openText returns a View of a split with two files, which hold these texts as one token per byte.
func openText(t *testing.T, first, second string) (*View, []*dataset.Dataset) {
	t.Helper()
	t.Chdir(t.TempDir())
	wide := func(text string) string {
		var b strings.Builder
		for _, c := range []byte(text) {
			b.Write([]byte{c, 0})
		}
		return b.String()
	}
	testfiles.Write(t, map[string]string{"train_1.bin": wide(first), "train_2.bin": wide(second), "vocab.json": vocab})
	return open(t, config.Flags{Data: ".", Sets: []string{"batch.block_size=8", "batch.batch_size=1", "batch.order=sequential"}})
}

// A character is in the text of its first token. Bytes that are not UTF-8 are sent as lone
// surrogates, and HTML is escaped.
func TestText(t *testing.T) {
	v, _ := openText(t, "a\u00e9<b>\xff\xf0\x9f\x98\x80\x00", strings.Repeat("x", 20))
	var rows []struct{ Text []string }
	decode(t, v, "rows?n=1&len=9", &rows)
	// encoding/json replaces lone surrogates.
	if want := []string{"a", "\u00e9", "", "<", "b", ">", "\ufffd", "\ufffd", "\ufffd"}; !slices.Equal(rows[0].Text, want) {
		t.Errorf("%q, want %q", rows[0].Text, want)
	}
	if body := get(v, "rows?n=1&len=9", nil).Body.String(); !strings.Contains(body, `"\udcff","\udcf0","\udc9f"`) || strings.Contains(body, "<b>") {
		t.Error(body)
	}
}

// Each occurrence of a text is found once, even across pieces, and leads to a row that contains it.
func TestSearch(t *testing.T) {
	filler := strings.Repeat(".", pieceLen-3) // the second needle spans two pieces
	v, all := openText(t, "needle"+filler[6:]+"needle..needle........", "dle......needle..........nee")
	var want []int64
	whole := "needle" + filler[6:] + "needle..needle........" + "dle......needle..........nee"
	for at := 0; ; at++ {
		n := strings.Index(whole[at:], "needle")
		if n < 0 {
			break
		}
		at += n
		want = append(want, int64(at))
	}
	var got []int64
	for f := (searchResult{}); f.Next < all[0].Len(); {
		decode(t, v, fmt.Sprintf("search?text=needle&from=%d", f.Next), &f)
		for _, hit := range f.Hits {
			got = append(got, hit.Pos)
		}
	}
	if !slices.Equal(got, want) {
		t.Fatalf("found %d, want %d", got, want)
	}
	for _, pos := range got {
		var f struct {
			Finds []struct {
				Batch    uint64
				J, Index int
			}
		}
		decode(t, v, fmt.Sprintf("find?pos=%d&epoch=1", pos), &f)
		for _, at := range f.Finds {
			var rows []row
			decode(t, v, fmt.Sprintf("rows?k=%d&from=%d&n=1&at=%d&len=1", at.Batch, at.J, max(at.Index-1, 0)), &rows)
			name := "x"
			if at.Index > 0 {
				name = "y"
			}
			if got := rows[0].Arrays[name]; !bytes.Equal(got, []byte("n\x00")) {
				t.Errorf("position %d in %+v: % x", pos, at, got)
			}
		}
	}
	var none searchResult
	decode(t, v, "search?text="+url.QueryEscape("no such text"), &none)
	if len(none.Hits) != 0 || none.Next != all[0].Len() {
		t.Errorf("%+v", none)
	}
}
