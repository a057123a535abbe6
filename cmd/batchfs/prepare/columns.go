package prepare

import (
	"fmt"
	"slices"
	"strings"
)

// A column is a part of the schema of a file of rows.
type column struct {
	name    string
	path    string    // for messages
	members []*column // of a struct
	element *column   // of a list
	isText  bool      // whether its values are strings of bytes
	isUTF8  bool      // whether the schema says that these are UTF-8
	needed  bool      // whether a field leads to it

	isInteger bool // whether its values are integers

	index   int // among the leaves of a parquet file, or the members of a struct of Arrow
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

// prune removes all columns but the needed ones and those on the way to them. It reports whether c
// is left.
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

// rowsAreTexts reports whether a single field leads to the text of each row. Otherwise, rows become
// lines of JSON.
func (e *encoding) rowsAreTexts() bool { return !e.ids && !e.masked && !e.fields[0].inList() }

// selectColumns removes the columns of a schema that the fields do not need: all but those with
// their texts, or with the first list on the way to these.
func (e *encoding) selectColumns(schema *column) error {
	for _, f := range e.fields {
		path := keysOf(schema, f.names(0), (*column).member)
		if path == nil {
			return fmt.Errorf("has no column %s, only %s: choose one with %s", f, strings.Join(schema.paths(""), ", "), f.options)
		}
		c, parent := schema, schema
		for _, name := range path {
			parent = c
			c, _ = c.member(name)
		}
		switch {
		case e.rowsAreTexts() && !c.isText:
			return fmt.Errorf("column %s does not have one text for each row: choose another one with --field", f)
		case e.ids && (c.element == nil || !c.element.isInteger):
			return fmt.Errorf("column %s does not have a list of integers for each row: choose another one with --ids", f)
		}
		c.needed = true
		for _, name := range []string{attentionField, labelsField} {
			if other, ok := parent.member(name); ok && e.ids {
				other.needed = true
			}
		}
	}
	schema.prune()
	return nil
}
