package rows

import (
	"fmt"
	"slices"
	"strings"

	"batchfs/cmd/batchfs/prepare/field"
)

// A column is a part of the schema of a file of rows.
type column struct {
	name    string
	path    string    // path as messages show it
	members []*column // members of a struct
	element *column   // element of a list
	isText  bool      // whether its values are strings of bytes
	isUTF8  bool      // whether the schema says that these are UTF-8
	needed  bool      // whether a field leads to it, or to a column above it

	isInteger  bool   // whether its values are integers
	isUnsigned bool   // whether the integers are unsigned; Parquet stores them as signed ones
	unreadable string // what the values are, such as decimals, if prepare cannot read them; else ""

	index   int // position among the leaves of a parquet file, or the members of a struct of Arrow
	parquet parquetLevels
}

func (c *column) member(name string) (*column, bool) {
	i := slices.IndexFunc(c.members, func(m *column) bool { return m.name == name })
	if i < 0 {
		return nil, false
	}
	return c.members[i], true
}

// paths returns the paths of all columns below c, as --field takes them.
func (c *column) paths(prefix string) (all []string) {
	switch {
	case c.element != nil:
		return c.element.paths(prefix + ".*")
	case c.members == nil:
		return []string{prefix}
	}
	for _, m := range c.members {
		all = append(all, m.paths(strings.TrimPrefix(prefix+"."+m.name, "."))...)
	}
	return all
}

func (c *column) need() {
	c.needed = true
	for _, m := range c.members {
		m.need()
	}
	if c.element != nil {
		c.element.need()
	}
}

// prune removes all columns below c but the needed ones and those on the way to them. It reports
// whether c is needed, or has such a column.
func (c *column) prune() bool {
	if !c.needed {
		c.members = slices.DeleteFunc(c.members, func(m *column) bool { return !m.prune() })
	}
	return c.needed || len(c.members) > 0
}

// leaves returns the columns below c that have values of their own.
func (c *column) leaves() (all []*column) {
	switch {
	case c.element != nil:
		return c.element.leaves()
	case c.members == nil:
		return []*column{c}
	}
	for _, m := range c.members {
		all = append(all, m.leaves()...)
	}
	return all
}

// choose removes the columns of a schema that are not read. If there is a list on the way to what a
// field leads to, the whole list is read.
func (cs *Columns) choose(schema *column) error {
	for _, f := range cs.Fields {
		c, parent, err := schema.find(f)
		switch {
		case err != nil:
			return err
		case cs.OneText && !c.isText:
			return fmt.Errorf("column %s does not have one text for each row: choose another one with --field", f)
		case cs.IDs && (c.element == nil || !c.element.isInteger):
			return fmt.Errorf("column %s does not have a list of integers for each row: choose another one with --ids", f)
		}
		c.need()
		for _, name := range []string{field.Attention, field.Labels} {
			if other, ok := parent.member(name); ok && cs.IDs {
				other.need()
			}
		}
	}
	if cs.ID != nil {
		c, _, err := schema.find(*cs.ID)
		if err != nil {
			return err
		}
		if c.members != nil || c.element != nil {
			return fmt.Errorf("column %s does not have a single value for each row: choose another one with --id", cs.ID)
		}
		if c.unreadable != "" {
			return fmt.Errorf("column %s has %s, which --id does not read from Parquet: write it as text, or choose another one", cs.ID, c.unreadable)
		}
		c.need()
	}
	schema.prune()
	return nil
}

// find returns the column below c to which a field leads, or the first list on the way to it, and
// the column that contains it.
func (c *column) find(f field.Field) (found, parent *column, err error) {
	path := field.Keys(f, c, (*column).member)
	if path == nil {
		all := c.paths("")
		some := strings.Join(all[:min(20, len(all))], ", ")
		if len(all) > 20 {
			some += fmt.Sprintf(" and %d others", len(all)-20)
		}
		return nil, nil, fmt.Errorf("has no column %s, only %s: choose one with %s", f, some, f.Options)
	}
	found, parent = c, c
	for _, name := range path {
		parent = found
		found, _ = found.member(name)
	}
	return found, parent, nil
}
