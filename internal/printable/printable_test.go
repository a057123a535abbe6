package printable

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestName(t *testing.T) {
	for name, want := range map[string]string{
		"":                            "",
		`/mnt/my batches/a\b"c"/100%`: `/mnt/my batches/a\b"c"/100%`,
		"/données/数据 全角/بيانات/❤️": "/données/数据 全角/بيانات/❤️",
		"a\tb\nc\rd":                         `a\tb\nc\rd`,
		"\x1b[2Jx\x00\x7f\u0085\u009b":       `\x1b[2Jx\x00\x7f\u0085\u009b`,
		"a\xff\xe9\ufffd":                    `a\xff\xe9` + "\ufffd",
		"a\u202eb\u2066c\u2069\u200f\u061c":  `a\u202eb\u2066c\u2069\u200f\u061c`,
		"a\u200bb\u200cc\u200dd\ufeff\u00ad": `a\u200bb\u200cc\u200dd\ufeff\u00ad`,
		"a\u2028b\u2029c\u3164\U000e0041":    `a\u2028b\u2029c\u3164\U000e0041`,
		"\u0661\u06dd":                       "\u0661\u06dd", // visible: it encloses digits
	} {
		if got := Name(name); got != want {
			t.Errorf("%q is shown as %s, want %s", name, got, want)
		}
	}
}

func TestText(t *testing.T) {
	for text, want := range map[string]string{
		"a\tb\né": "a\tb\né",
		"می\u200cخواهم \U0001f469\u200d\U0001f680": "می\u200cخواهم \U0001f469\u200d\U0001f680",
		"\x1b[2Jx\r\u202e": `\x1b[2Jx\r\u202e`,
	} {
		if got := Text(text); got != want {
			t.Errorf("%q is shown as %s, want %s", text, got, want)
		}
	}
}

// A shell gets the original argument, and an argument without special characters is not quoted.
func TestShellArg(t *testing.T) {
	for arg, want := range map[string]string{
		"/mnt/a-b_c.d,e:f@g%h+i=1": "/mnt/a-b_c.d,e:f@g%h+i=1",
		"/données/数据":              "/données/数据",
		"":                         "''",
		"a b":                      "'a b'",
		`it's "$HOME" \n`:          `'it'\''s "$HOME" \n'`,
		"~":                        "'~'",
		"*?[]{}()<>|&;#!`^":        "'*?[]{}()<>|&;#!`^'",
		"it's\n\\n\xff\u202eb":     `$'it\'s\n\\n\xff\u202eb'`,
		"\a\b\f\r\t\v\x1b1\x7f":    `$'\a\b\f\r\t\v\x1b1\x7f'`,
		"\U000e0041":               `$'\U000e0041'`,
		"\u3164":                   `$'\u3164'`, // an invisible letter
	} {
		got := ShellArg(arg)
		if got != want || Name(got) != got {
			t.Errorf("%q becomes %s, want %s", arg, got, want)
		}
		cmd := exec.Command("bash", "-c", "printf %s "+got)
		cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8") // for \u
		if out, err := cmd.Output(); err != nil || string(out) != arg {
			t.Errorf("bash reads %s as %q, %v", got, out, err)
		}
	}
}

// A name or error cannot start a new line when it is printed, whatever its type.
func TestFprintf(t *testing.T) {
	type path string
	var out strings.Builder
	const forged = "a\nbatchfs: all is well\u202e"
	Fprintf(&out, "%s %s %s %v %d %.1f\n", forged, path(forged), []byte(forged), errors.New(forged), 7, 0.5)
	const one = `a\nbatchfs: all is well\u202e `
	if want := strings.Repeat(one, 4) + "7 0.5\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
	if got, want := Error(fmt.Errorf("open %s:\n\tno", forged)), "open a\n    batchfs: all is well\\u202e:\n    \tno"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
