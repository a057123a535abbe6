// Package view serves a page for browsers that shows batches as a trainer gets them: their rows as
// text, the origin of each token, and what is not trained on. It reads only sequences that are
// open.
//
// Any program on the machine, and any site in a browser there, can send it requests. So its address
// has a key, and it refuses requests from other sites. Serve it with package web, which refuses
// requests for other hosts.
package view

import (
	"cmp"
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"batchfs/cmd/batchfs/dataset"
	"batchfs/cmd/batchfs/prepare/bpe"
	"batchfs/cmd/batchfs/vocabulary"
	"batchfs/sampler"
)

//go:embed page
var files embed.FS

// A View serves the page. It is safe for concurrent use once all sequences are added.
type View struct {
	key       string // in the address
	named     textOf // of all tokens; nil: see Add
	sequences []sequence
}

// A sequence is what the page may show.
type sequence struct {
	name  string // as it was asked for
	data  *dataset.Dataset
	texts []textOf // of each source; nil: unknown
	eot   *uint32  // the last token of each document; nil: unknown
}

// A textOf says what text a token stands for.
type textOf func(token uint64) string

// New makes a page, which shows nothing but what is added. by is empty, or names the tokenizer of all tokens, as for batchfs prepare.
func New(by string) (*View, error) {
	v := &View{key: rand.Text()}
	if by == "" {
		return v, nil
	}
	open := bpe.Named
	if strings.HasSuffix(by, ".json") {
		open = bpe.ReadHuggingFace
	}
	t, err := open(by)
	if err != nil {
		return nil, fmt.Errorf("--by: %w", err)
	}
	v.named = func(token uint64) string {
		return cmp.Or(string(t.Bytes(uint32(min(token, math.MaxUint32)))), fmt.Sprintf("\ufffd%d", token))
	}
	return v, nil
}

// Add adds a sequence under a name. Without a tokenizer, the vocab.json beside the token files says what tokens stand for.
func (v *View) Add(name string, d *dataset.Dataset) error {
	s := sequence{name: name, data: d, texts: make([]textOf, len(d.Arrays()))}
	for i, arrays := range d.Arrays() {
		switch beside, _, err := vocabulary.Of(arrays[0].Files()); {
		case d.Sequence.Layout == sampler.Elements: // numbers have no text
		case v.named != nil:
			s.texts[i] = v.named
		case err != nil:
			return err
		case beside != nil:
			s.texts[i] = func(token uint64) string { return beside.Text(int(min(token, math.MaxInt))) }
			if beside.EOTAt == "end" {
				s.eot = beside.EOT
			}
		}
	}
	v.sequences = append(v.sequences, s)
	return nil
}

// Address is where the page is, if it is served on a listener.
func (v *View) Address(on net.Listener) string { return fmt.Sprintf("http://%s/%s/", on.Addr(), v.key) }

// policy lets the page load nothing from elsewhere, and run nothing but its own file.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; " +
	"form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// ServeHTTP refuses requests from other sites and requests without the key.
func (v *View) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for name, value := range map[string]string{"Content-Security-Policy": policy, "Cross-Origin-Resource-Policy": "same-origin",
		"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"} {
		w.Header().Set(name, value)
	}
	key, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch origin := r.Header.Get("Origin"); {
	case origin != "" && origin != "http://"+r.Host:
		http.Error(w, "this page answers no other site", http.StatusForbidden)
		return
	case subtle.ConstantTimeCompare([]byte(key), []byte(v.key)) == 0:
		http.Error(w, "the address has another key than the one that batchfs view printed", http.StatusForbidden)
		return
	case !slices.Contains([]string{"sequences", "rows", "find", "search"}, path):
		http.ServeFileFS(w, r, files, "page/"+cmp.Or(path, "index.html"))
		return
	}
	answer, err := v.answer(r, path)
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(answer)
}

func (v *View) answer(r *http.Request, what string) (any, error) {
	q, err := numbersOf(r)
	if err != nil {
		return nil, err
	}
	if q["s"] >= int64(len(v.sequences)) {
		return nil, fmt.Errorf("s: there are %d sequences (got %d)", len(v.sequences), q["s"])
	}
	s := v.sequences[q["s"]]
	if rank, named := q["rank"]; named && rank != int64(s.data.Sequence.Rank) {
		if s.data, err = s.data.With(fmt.Sprintf("rank=%d", rank)); err != nil {
			return nil, err
		}
	}
	switch what {
	case "rows":
		return s.rows(q)
	case "search":
		return s.search(r.Context(), q["from"], r.FormValue("text"))
	case "find":
		found, err := s.data.Find(r.Context(), q["pos"], uint64(q["epoch"]), func(int64, int64) {})
		if err != nil {
			return nil, err
		}
		return json.RawMessage(found.JSON()), nil
	}
	var all []map[string]any
	for _, s := range v.sequences {
		known := slices.ContainsFunc(s.texts, func(text textOf) bool { return text != nil })
		all = append(all, map[string]any{"name": s.name, "text": known, "eot": s.eot, "info": json.RawMessage(s.data.Info())})
	}
	return all, nil
}

// numbersOf are the numbers of a request, by name.
func numbersOf(r *http.Request) (map[string]int64, error) {
	all := map[string]int64{}
	for name, values := range r.URL.Query() {
		if name == "text" {
			continue
		}
		n, err := strconv.ParseInt(values[0], 10, 64)
		if err != nil || n < 0 || name == "k" && n >= sampler.MaxBatches {
			return nil, fmt.Errorf("%s: there is none with the number %q", name, values[0])
		}
		all[name] = n
	}
	return all, nil
}
