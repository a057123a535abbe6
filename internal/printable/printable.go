// Package printable escapes untrusted names and texts, so that printing them cannot forge a line of
// output, reorder it, or move the cursor of a terminal. JSON output does not need this.
package printable

import (
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Name escapes the invisible characters of a name, including newlines, in the style of Go strings:
// \n, \x1b or \u202e. It also escapes bytes that are not valid UTF-8, for example \xff.
func Name(name string) string { return escape(name, "") }

// Text is Name for text of several lines: it keeps newlines and tabs, and also zero-width joiners
// and non-joiners, because some scripts and emoji need them.
func Text(text string) string { return escape(text, "\n\t\u200c\u200d") }

// plainArg matches arguments that mean themselves to a shell.
var plainArg = regexp.MustCompile(`^[\pL\pM\pN_./:,@%+=-]+$`)

// ShellArg returns an argument as it must be written in a shell command, with quotes if necessary.
// The result has nothing that Name would escape.
func ShellArg(arg string) string {
	switch {
	case Name(arg) != arg:
		// Among the quotes of shells, only these have escapes. bash and zsh know them.
		return "$'" + Name(strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(arg)) + "'"
	case plainArg.MatchString(arg):
		return arg
	}
	return "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
}

// Truncate returns the first characters of a text and an ellipsis, or the whole text if it has no
// more characters than that.
func Truncate(text string, chars int) string {
	n := 0
	for i := range text {
		if n++; n > chars {
			return text[:i] + "…"
		}
	}
	return text
}

// Error returns the escaped message of err with every line after the first indented, so that no
// text quoted in it can look like a message of its own.
func Error(err error) string {
	return strings.ReplaceAll(escape(err.Error(), "\n\t"), "\n", "\n    ")
}

// Fprintf is fmt.Fprintf with Name applied to every argument that is a string, a byte slice or an
// error.
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

func escape(text, allowed string) string {
	var b strings.Builder
	for i, r := range text {
		_, size := utf8.DecodeRuneInString(text[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, text[i])
		case isInvisible(r) && !strings.ContainsRune(allowed, r):
			quoted := strconv.QuoteRuneToASCII(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// isInvisible reports whether r is not drawn: it controls a terminal, ends a line, or changes how
// other characters are drawn.
func isInvisible(r rune) bool {
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Other_Default_Ignorable_Code_Point) &&
		!unicode.Is(unicode.Prepended_Concatenation_Mark, r)
}
