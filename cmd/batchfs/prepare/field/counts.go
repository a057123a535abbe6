package field

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Counts are what a user may not expect of the texts of lines.
type Counts struct {
	// Unnamed counts list elements that no part of --mask names, such as role=tool.
	Unnamed Tally `json:"unnamed,omitempty"`
	// Dropped counts members of list elements, apart from their texts.
	Dropped Tally `json:"dropped,omitempty"`
	// Matched counts the texts that each part of --mask applies to.
	Matched Tally `json:"matched,omitempty"`
}

// AddAll adds the counts of a line.
func (c *Counts) AddAll(more *Counts) {
	c.Unnamed.AddAll(more.Unnamed)
	c.Dropped.AddAll(more.Dropped)
	c.Matched.AddAll(more.Matched)
}

// A Tally counts by name. Its values are pointers so that counting allocates nothing.
type Tally map[string]*int64

// others is the name under which a Tally counts all names beyond the first maxNames.
const (
	others   = "others"
	maxNames = 1000
)

// Add adds n. Because texts may contain any number of names, those beyond maxNames count as others.
func (t *Tally) Add(name string, n int64) {
	if *t == nil {
		*t = Tally{}
	}
	if (*t)[name] == nil && len(*t) >= maxNames {
		name = others
	}
	count := (*t)[name]
	if count == nil {
		count = new(int64)
		(*t)[strings.Clone(name)] = count
	}
	*count += n
}

// AddAll adds another tally.
func (t *Tally) AddAll(more Tally) {
	if len(more) == 0 {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(more)) {
		t.Add(name, *more[name])
	}
}

// Total returns the sum of all names.
func (t Tally) Total() (n int64) {
	for _, count := range t {
		n += *count
	}
	return n
}

// String lists the most frequent names with their counts.
func (t Tally) String() string {
	names := slices.SortedFunc(maps.Keys(t), func(a, b string) int { return cmp.Or(cmp.Compare(*t[b], *t[a]), cmp.Compare(a, b)) })
	var list []string
	for _, name := range names[:min(len(names), 5)] {
		list = append(list, fmt.Sprintf("%.60s (%d)", name, *t[name]))
	}
	if len(names) > len(list) {
		list = append(list, fmt.Sprintf("and %d more", len(names)-len(list)))
	}
	return strings.Join(list, ", ")
}
