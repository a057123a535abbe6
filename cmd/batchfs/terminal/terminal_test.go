package terminal

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// open opens a pseudo-terminal: what is written to tty can be read from screen.
func open(t *testing.T) (tty, screen *os.File) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	t.Cleanup(func() { screen.Close() })
	if err := unix.IoctlSetPointerInt(int(screen.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(screen.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tty.Close() })
	return tty, screen
}

func TestProgressIsShownOnATerminal(t *testing.T) {
	tty, screen := open(t)
	if file, err := os.Create(filepath.Join(t.TempDir(), "file")); err != nil || !Is(tty) || Is(file) || Is(new(bytes.Buffer)) {
		t.Errorf("terminal %v, file %v, buffer %v (%v)", Is(tty), Is(file), Is(new(bytes.Buffer)), err)
	}
	defer time.AfterFunc(time.Minute, func() { tty.Close() }).Stop() // which ends a read that would wait for ever
	for _, test := range []struct {
		unit Unit
		work func(*Progress)
		want string
	}{
		{Steps, func(p *Progress) { p.Add(30) }, "30%"},
		{Steps, func(p *Progress) { p.Set(50, 200) }, "25%"},
		{Bytes, func(p *Progress) { p.Add(40) }, "B/s)"},
	} {
		p := NewProgress(tty, "working", 100, test.unit)
		test.work(p)
		var shown strings.Builder
		for part := make([]byte, 4096); !strings.Contains(shown.String(), test.want); {
			n, err := screen.Read(part)
			if err != nil {
				t.Fatal(err)
			}
			shown.Write(part[:n])
		}
		if !strings.Contains(shown.String(), "working") {
			t.Errorf("%q", shown.String())
		}
		p.Finish()
	}
}

func TestProgressIsNotShownElsewhere(t *testing.T) {
	var out bytes.Buffer
	p := NewProgress(&out, "working", 100, Bytes)
	p.Add(30)
	p.Set(60, 200)
	p.Finish()
	if out.Len() > 0 {
		t.Errorf("%q", out.String())
	}
}

func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"a\tb\né":              "a\tb\né",
		"\x1b[2Jx\r\x00\u0085": `\x1b[2Jx\r\x00\u0085`,
		"a\xff\xe9\ufffd":      `a\xff\xe9` + "\ufffd",
	} {
		if got := Printable(text); got != want {
			t.Errorf("%q is shown as %q, want %q", text, got, want)
		}
	}
}
