package scan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"strings"

	"batchfs/cache"
	"batchfs/cmd/batchfs/dataset"
	"batchfs/cmd/batchfs/terminal"
	"batchfs/internal/jsonbytes"
	"batchfs/internal/printable"
)

// An ItemReport says which items of a file occur in splits. It belongs to one goroutine.
type ItemReport struct {
	OK       bool             `json:"ok"` // whether no item occurs
	Against  jsonbytes.String `json:"against"`
	Splits   []string         `json:"splits"`
	Files    int              `json:"files"`  // of the splits
	Tokens   int64            `json:"tokens"` // of the splits
	Items    int64            `json:"items"`
	Found    []FoundItem      `json:"found"`
	Frequent []FoundItem      `json:"frequent"` // occur too often to list where
	Short    []ItemName       `json:"short"`    // not searched for: they have too few tokens
}

// An ItemName names an item in its file.
type ItemName struct {
	Unit   string `json:"unit"`   // "line" or "row"
	Number int64  `json:"number"` // of the line or row, from 1
}

func (n ItemName) String() string { return fmt.Sprintf("%s %d", n.Unit, n.Number) }

// A FoundItem is an item that occurs in a split.
type FoundItem struct {
	ItemName
	Text   jsonbytes.String `json:"text"`   // beginning
	Tokens int              `json:"tokens"` // of the item
	Places []ItemPlace      `json:"places"` // in the order of the files; none if there are too many
}

// An ItemPlace says where Tokens tokens of an item occur: in File, from Index on.
type ItemPlace struct {
	Split    string           `json:"split"`
	File     jsonbytes.String `json:"file"`
	Index    int64            `json:"index"`
	Document *int64           `json:"document,omitempty"` // number of the document, if indexed
	Tokens   int              `json:"tokens"`
}

// An ItemSource is a file of items.
type ItemSource struct {
	Name      string
	VocabSize int64 // all tokens of the splits must be below it
	// Read calls visit with each item, until it returns an error.
	Read func(visit func(*Item) error) error
}

// Against searches the splits in the openers' configurations for items. It returns an error if a
// file of the splits cannot be read, or if ctx is canceled. It shows progress on stderr.
func Against(ctx context.Context, openers []*dataset.Opener, items ItemSource, stderr io.Writer) (*ItemReport, error) {
	defer debug.SetGCPercent(debug.SetGCPercent(20)) // as in Check
	c := &check{partSize: partBytes, itemPart: itemPart, stderr: stderr}
	return c.against(ctx, openers, items)
}

func (c *check) against(ctx context.Context, openers []*dataset.Opener, items ItemSource) (*ItemReport, error) {
	if err := c.open(openers); err != nil {
		return nil, err
	}
	r := &ItemReport{Against: jsonbytes.String(items.Name), Splits: c.report.Splits, Tokens: c.report.Tokens,
		Found: []FoundItem{}, Frequent: []FoundItem{}, Short: []ItemName{}}
	if problems := c.report.Problems; len(problems) > 0 {
		return nil, errors.New(string(problems[0].Message))
	}
	files := c.mainFiles()
	for _, f := range files {
		if !isTokens(f.array) {
			return nil, fmt.Errorf("%s: has no tokens to search, but %s of shape %v", f.path, f.dtype, f.array.Axes())
		}
	}
	r.Files = len(files)
	// Items are read until they fill a search, so one search follows another.
	var search *itemSearch
	var reading *terminal.Progress // nil during a search
	begin := func() {
		search = &itemSearch{vocab: uint64(items.VocabSize)}
		reading = terminal.NewProgress(c.stderr, "encoding items", -1, terminal.Steps)
	}
	finish := func() error {
		reading.Finish()
		reading = nil
		if len(search.items) == 0 {
			return nil
		}
		if err := c.searchItems(ctx, files, search); err != nil {
			return err
		}
		search.report(r)
		return nil
	}
	begin()
	err := items.Read(func(item *Item) error {
		r.Items++
		reading.Add(1)
		if len(item.Encodings[0]) < minItem {
			r.Short = append(r.Short, item.ItemName)
			return nil
		}
		if search.add(item); search.used < c.itemPart {
			return nil
		}
		if err := finish(); err != nil {
			return err
		}
		begin()
		return nil
	})
	if err == nil {
		err = finish()
	} else if reading != nil {
		reading.Finish()
	}
	if err != nil {
		return nil, err
	}
	r.OK = len(r.Found)+len(r.Frequent) == 0
	return r, r.addDocuments(files)
}

func (c *check) searchItems(ctx context.Context, files []*checkedFile, s *itemSearch) error {
	size := int64(0)
	for _, f := range files {
		size += f.array.Bytes()
	}
	what := "searching for " + terminal.Plural(int64(len(s.items)), "item", "items")
	progress := terminal.NewProgress(c.stderr, what, size, terminal.Bytes)
	defer progress.Finish()
	return s.run(ctx, partsOf(files, c.partSize), progress)
}

// report adds the items that occur to r.
func (s *itemSearch) report(r *ItemReport) {
	found, frequent := map[*Item]*FoundItem{}, map[*Item]bool{}
	for _, core := range s.cores {
		for _, u := range core.uses {
			if len(core.places) == 0 {
				continue
			}
			f := found[u.item]
			if f == nil {
				f = &FoundItem{ItemName: u.item.ItemName, Text: jsonbytes.String(u.item.Text), Tokens: len(u.tokens), Places: []ItemPlace{}}
				found[u.item] = f
			}
			for _, p := range core.places {
				index, n := u.occurring(p)
				f.Places = append(f.Places, ItemPlace{Split: p.file.splitArray.split, File: jsonbytes.String(p.file.path), Index: index, Tokens: n})
			}
			frequent[u.item] = frequent[u.item] || core.count.Load() > maxOccurrences || len(f.Places) > maxOccurrences
		}
	}
	for _, item := range s.items {
		switch f := found[item]; {
		case f == nil:
		case frequent[item]:
			f.Places = []ItemPlace{}
			r.Frequent = append(r.Frequent, *f)
		default:
			r.Found = append(r.Found, *f)
		}
	}
}

// addDocuments sorts the places of each item, and sets the document of those in a file with an
// index of documents.
func (r *ItemReport) addDocuments(files []*checkedFile) error {
	byPath, order := map[string]*checkedFile{}, map[[2]string]int{}
	for i, f := range files {
		byPath[f.path], order[[2]string{f.splitArray.split, f.path}] = f, i
	}
	compare := func(a, b ItemPlace) int {
		return cmp.Or(order[[2]string{a.Split, string(a.File)}]-order[[2]string{b.Split, string(b.File)}], cmp.Compare(a.Index, b.Index))
	}
	indexed := map[string]*cache.Array{}
	for _, found := range r.Found {
		slices.SortFunc(found.Places, compare)
		for i := range found.Places {
			p := &found.Places[i]
			path := string(p.File)
			a, opened := indexed[path]
			if !opened {
				a, _ = byPath[path].openDocuments() // check reports errors
				indexed[path] = a
			}
			if a == nil || a.Documents() == nil {
				continue
			}
			number, err := a.Documents().NumberAt(p.Index)
			if err != nil {
				return err
			}
			p.Document = &number
		}
	}
	return nil
}

func (p ItemPlace) String() string {
	document := ""
	if p.Document != nil {
		document = fmt.Sprintf(", document %d", *p.Document)
	}
	return fmt.Sprintf("%s%s, from index %d on", p.File, document, p.Index)
}

// Print writes r in human-readable form.
func (r *ItemReport) Print(out io.Writer) {
	items := func(n int) string { return terminal.Plural(int64(n), "item", "items") }
	result := "no item occurs"
	switch n := len(r.Found) + len(r.Frequent); n {
	case 0:
	case 1:
		result = fmt.Sprintf("1 of %s occurs", items(int(r.Items)))
	default:
		result = fmt.Sprintf("%d of %s occur", n, items(int(r.Items)))
	}
	printable.Fprintf(out, "%s in %s: searched %s, %s for %s: %s\n", string(r.Against), strings.Join(r.Splits, ", "),
		terminal.Plural(int64(r.Files), "file", "files"), terminal.Plural(r.Tokens, "token", "tokens"), items(int(r.Items)-len(r.Short)), result)
	for i, f := range r.Found {
		if i == maxPrinted {
			fmt.Fprintf(out, "and %d more; --json prints all\n", len(r.Found)-i)
			break
		}
		p, more := f.Places[0], ""
		if n := len(f.Places) - 1; n > 0 {
			more = fmt.Sprintf(" and in %s", terminal.Plural(int64(n), "other place", "other places"))
		}
		printable.Fprintf(out, "%s: %d of %d tokens are in %s%s\n", f.ItemName.String(), p.Tokens, f.Tokens, p.String(), more)
		fmt.Fprintf(out, "    %q\n", string(f.Text))
	}
	if len(r.Frequent) > 0 {
		f := r.Frequent[0]
		fmt.Fprintf(out, "more than %d times each: %s, such as %s\n    %q\n", maxOccurrences, items(len(r.Frequent)), f.ItemName, string(f.Text))
	}
	if n := len(r.Short); n > 0 {
		var names []string
		for _, item := range r.Short[:min(n, maxPrinted)] {
			names = append(names, item.String())
		}
		if n > maxPrinted {
			names = append(names, fmt.Sprintf("and %d more; --json prints all", n-maxPrinted))
		}
		fmt.Fprintf(out, "did not search for %s with fewer than %d tokens: %s\n", items(n), minItem, strings.Join(names, ", "))
	}
}
