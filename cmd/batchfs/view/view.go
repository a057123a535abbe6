// Package view serves a web page that shows batches as a trainer gets them: their rows as text, the
// origin of each token, and which tokens are masked. A [View] shows the sequences that were added
// to it.
//
// Any program on the machine, and any site in a browser there, can send requests to the page.
// Therefore, its address contains a secret key, and the page rejects requests from other sites.
// Serve it with package web, which rejects requests for other hosts.
package view

import (
	"cmp"
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"batchfs/cmd/batchfs/dataset"
	"batchfs/cmd/batchfs/prepare/bpe"
	"batchfs/cmd/batchfs/vocabulary"
	"batchfs/sampler"
)

//go:embed page
var files embed.FS

// A View serves the page. Once all sequences are added, it is safe for concurrent use.
type View struct {
	key       string                 // secret part of the address
	named     *vocabulary.Vocabulary // nil to use each source's vocab.json
	sequences []sequence
}

type sequence struct {
	name     string // from the command line
	data     *dataset.Dataset
	ids      *dataset.DocumentIDs
	decoders []decoder // one for each source; nil if unknown
	eot      *uint32   // last token of each document; nil if unknown
}

// A decoder returns the text of a token.
type decoder func(token uint64) string

// New returns a View without sequences. It decodes all tokens with the named vocabulary or, if that
// is nil, with the vocab.json next to the token files.
func New(named *vocabulary.Vocabulary) *View { return &View{key: rand.Text(), named: named} }

// NamedVocabulary returns the vocabulary of a tokenizer, named as in prepare --by, or nil if the
// name is empty. It warns on stderr once if a token is not in the vocabulary.
func NamedVocabulary(by string, stderr io.Writer) (*vocabulary.Vocabulary, error) {
	if by == "" {
		return nil, nil
	}
	t, err := bpe.Open(by)
	if err != nil {
		return nil, fmt.Errorf("--by: %w", err)
	}
	var once sync.Once
	v := &vocabulary.Vocabulary{Kind: vocabulary.BPE, Size: int(t.Size()), Unknown: func(token int) {
		once.Do(func() {
			fmt.Fprintf(stderr, "warning: token %d is not among the %d tokens of --by %s, so another tokenizer made these tokens\n", token, t.Size(), by)
		})
	}}
	for token := range v.Size {
		v.TokenBytes = append(v.TokenBytes, t.Bytes(uint32(token)))
	}
	return v, nil
}

// Add adds a sequence under a name. If New got no vocabulary, tokens are decoded with the
// vocab.json next to the token files, if there is one.
func (v *View) Add(name string, d *dataset.Dataset) error {
	s := sequence{name: name, data: d, ids: d.DocumentIDs(), decoders: make([]decoder, len(d.Arrays()))}
	for i, arrays := range d.Arrays() {
		switch vocab, err := d.Vocabulary(arrays[0].Files()); {
		case d.Sequence.Layout == sampler.Rows: // numbers have no text
		case v.named != nil:
			s.decoders[i] = decoderOf(v.named)
		case err != nil:
			return err
		case vocab != nil:
			s.decoders[i] = decoderOf(vocab)
			if vocab.EOTAt == "end" {
				s.eot = vocab.EOT
			}
		}
	}
	v.sequences = append(v.sequences, s)
	return nil
}

func decoderOf(v *vocabulary.Vocabulary) decoder {
	return func(token uint64) string { return v.Text(int(min(token, math.MaxInt))) }
}

// Address returns the URL of the page when it is served on a listener.
func (v *View) Address(on net.Listener) string { return fmt.Sprintf("http://%s/%s/", on.Addr(), v.key) }

// policy allows the page to load nothing from other sites, and to run only its own script.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; " +
	"form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// ServeHTTP rejects requests from other sites and requests without the key.
func (v *View) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for name, value := range map[string]string{"Content-Security-Policy": policy, "Cross-Origin-Resource-Policy": "same-origin",
		"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"} {
		w.Header().Set(name, value)
	}
	key, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch origin := r.Header.Get("Origin"); {
	case origin != "" && origin != "http://"+r.Host:
		http.Error(w, "this page does not answer other sites", http.StatusForbidden)
		return
	case subtle.ConstantTimeCompare([]byte(key), []byte(v.key)) == 0:
		http.Error(w, "wrong key in the address; use the address that batchfs view printed", http.StatusForbidden)
		return
	case !slices.Contains([]string{"sequences", "rows", "find", "search"}, path):
		http.ServeFileFS(w, r, files, "page/"+cmp.Or(path, "index.html"))
		return
	}
	response, err := v.respond(r, path)
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(response)
}

// respond returns the response to a request for one of the page's JSON paths.
func (v *View) respond(r *http.Request, path string) (any, error) {
	q, err := numbersOf(r)
	if err != nil {
		return nil, err
	}
	if q["s"] >= int64(len(v.sequences)) {
		return nil, fmt.Errorf("s: must be below the number of sequences, %d (got %d)", len(v.sequences), q["s"])
	}
	s := v.sequences[q["s"]]
	if rank, named := q["rank"]; named && rank != int64(s.data.Sequence.Rank) {
		if s.data, err = s.data.With(fmt.Sprintf("rank=%d", rank)); err != nil {
			return nil, err
		}
	}
	switch path {
	case "rows":
		return s.rows(q)
	case "search":
		return s.search(r.Context(), q["from"], r.FormValue("text"))
	case "find":
		return s.data.Find(r.Context(), q["pos"], uint64(q["epoch"]), func(int64, int64) {})
	}
	var all []map[string]any
	for _, s := range v.sequences {
		known := slices.ContainsFunc(s.decoders, func(decode decoder) bool { return decode != nil })
		all = append(all, map[string]any{"name": s.name, "text": known, "eot": s.eot, "info": json.RawMessage(s.data.Info())})
	}
	return all, nil
}

func numbersOf(r *http.Request) (map[string]int64, error) {
	all := map[string]int64{}
	for name, values := range r.URL.Query() {
		if name == "text" {
			continue
		}
		n, err := strconv.ParseInt(values[0], 10, 64)
		if err != nil || n < 0 || name == "k" && n >= sampler.MaxBatches {
			return nil, fmt.Errorf("%s: no such number: %q", name, values[0])
		}
		all[name] = n
	}
	return all, nil
}
