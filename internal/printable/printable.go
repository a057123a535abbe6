// Package printable escapes names and texts that others chose, so that they cannot forge a line of what is printed, reorder it, or move
// the cursor of a terminal. JSON needs none of this.
package printable

import (
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Name escapes the characters of a name that cannot be seen, among them newlines, as \n, \x1b or \u202e, and bytes that are not UTF-8,
// as \xff.
func Name(name string) string { return escape(name, "") }

// Text is Name for a text of several lines. The joiners, which some scripts and emoji need, also stay.
func Text(text string) string { return escape(text, "\n\t\u200c\u200d") }

// Error is the message of an error, whose lines after the first are indented: what is quoted in it cannot look like a message.
func Error(err error) string {
	return strings.ReplaceAll(escape(err.Error(), "\n\t"), "\n", "\n    ")
}

// Fprintf is fmt.Fprintf, with Name applied to each text among args, and to each error.
func Fprintf(out io.Writer, format string, args ...any) (int, error) {
	escaped := make([]any, len(args))
	for i, arg := range args {
		escaped[i] = arg
		_, isError := arg.(error)
		_, isBytes := arg.([]byte)
		if isError || isBytes || reflect.ValueOf(arg).Kind() == reflect.String {
			escaped[i] = Name(fmt.Sprintf("%s", arg))
		}
	}
	return fmt.Fprintf(out, format, escaped...)
}

func escape(text, kept string) string {
	var b strings.Builder
	for i, r := range text {
		_, size := utf8.DecodeRuneInString(text[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, text[i])
		case isInvisible(r) && !strings.ContainsRune(kept, r):
			quoted := strconv.QuoteRuneToASCII(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// isInvisible reports whether a character is not drawn: it controls a terminal, ends a line, or changes how others are drawn.
func isInvisible(r rune) bool {
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Other_Default_Ignorable_Code_Point) &&
		!unicode.Is(unicode.Prepended_Concatenation_Mark, r)
}
