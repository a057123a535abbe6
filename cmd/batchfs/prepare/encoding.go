package prepare

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"batchfs/cmd/batchfs/vocabulary"
)

// An encoding says how documents become tokens.
type encoding struct {
	tokenizer      tokenizer
	width          int // bytes per token
	fields         []field
	hasDots        bool   // whether a field has several names in a row
	ids            bool   // whether the first field leads to lists of ids instead of texts
	id             *field // leads to the id of a document; nil without --id
	masked         bool
	first          string       // with ids, the row that decides whether rows have labels
	eot            int64        // end-of-text token, or -1
	eotBegins      bool         // whether eot begins documents instead of ending them
	replaceInvalid bool         // whether to replace invalid bytes by U+FFFD
	skipInvalid    bool         // whether to leave out documents that are not UTF-8
	anyBytes       bool         // whether text need not be UTF-8
	nameStarts     []*nameStart // beginnings of the names of special tokens to count
}

// newEncoding returns the encoding that the settings ask for. If content is not nil, it is that of
// the file that --by names.
func newEncoding(s *settings, content []byte) (e encoding, err error) {
	t, err := s.openTokenizer(content)
	if err != nil {
		return encoding{}, err
	}
	e = encoding{eotBegins: s.EOT == "begin", replaceInvalid: s.Invalid == "replace", skipInvalid: s.Invalid == "skip",
		anyBytes: s.By == vocabulary.Byte, fields: []field{newField(s.Field, 0)}, masked: s.Mask != "" || s.Labels}
	if !s.Special {
		e.nameStarts = nameStarts(t)
	}
	if s.IDs != "" {
		e.ids, e.fields = true, []field{newField(s.IDs, 1)}
		e.fields[0].options = "--ids"
	}
	if s.Mask != "" {
		e.fields, err = maskFields(s.Mask)
	}
	if s.ID != "" {
		e.id = new(newField(s.ID, 0))
		e.id.options = "--id"
	}
	e.hasDots = slices.ContainsFunc(e.fields, field.hasDots)
	return e.withTokenizer(t, s.EOT), err
}

// withTokenizer returns the encoding with another tokenizer, whose end-of-text token is not used if
// eotAt is none.
func (e encoding) withTokenizer(t tokenizer, eotAt string) encoding {
	e.tokenizer, e.width, e.eot = t, 2, -1
	if t.Size() > 1<<16 {
		e.width = 4
	}
	if token, ok := t.EndOfText(); ok && eotAt != "none" {
		e.eot = int64(token)
	}
	return e
}

func maskFields(list string) (fields []field, err error) {
	for part := range strings.SplitSeq(list, ",") {
		part = strings.TrimSpace(part)
		colon := max(strings.LastIndex(part, ":"), 0)
		name, mask := part[:colon], part[colon:]
		if name == "" || mask != ":0" && mask != ":1" {
			return nil, fmt.Errorf("--mask: must list fields with 0 or 1, such as prompt:0,completion:1 or messages[role=assistant].content:1 (got %q)", list)
		}
		if slices.ContainsFunc(fields, func(f field) bool { return f.String() == name }) {
			return nil, fmt.Errorf("--mask: must list each field once (got %s twice in %q)", name, list)
		}
		fields = append(fields, newField(name, mask[1]-'0'))
	}
	return fields, nil
}

// leavesOutBinary reports whether texts that are not UTF-8 are left out.
func (e *encoding) leavesOutBinary() bool { return e.skipInvalid && !e.anyBytes }

// toValidUTF8 returns the text, and the index of its first byte that is not valid UTF-8, or -1 if
// there is none or any bytes are allowed. Invalid bytes are replaced if the options say so;
// otherwise, there is no text.
func (e *encoding) toValidUTF8(t []byte) ([]byte, int) {
	switch {
	case e.anyBytes || utf8.Valid(t):
		return t, -1
	case e.replaceInvalid:
		return replaceInvalid(t), firstInvalid(t)
	}
	return nil, firstInvalid(t)
}
