package cache

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A token file is rejected if a process has it open for writing, or has only a writable mapping of
// it.
func TestUnwritten(t *testing.T) {
	for _, test := range []struct {
		flags        int
		mapped, want bool
	}{{os.O_RDWR, false, true}, {os.O_RDWR, true, true}, {os.O_WRONLY | os.O_APPEND, false, true}, {os.O_RDONLY, false, false}} {
		paths := writeFiles(t, 2, 10, 10)
		f, err := os.OpenFile(paths[1], test.flags, 0)
		must(t, err)
		defer f.Close()
		if test.mapped {
			mapping, err := unix.Mmap(int(f.Fd()), 0, 20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			must(t, errors.Join(err, f.Close()))
			defer unix.Munmap(mapping)
		}
		tokens, err := Open(paths, Options{DType: "uint16", CheckNoWriters: true})
		if err == nil && tokens.Unleased() != "" {
			t.Skip("no lease can be had here")
		}
		if want := paths[1] + " is open for writing"; !test.want {
			must(t, err)
		} else if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `mode="r"`) {
			t.Errorf("%+v: error %v, want %s", test, err, want)
		}
	}
}
