package cache

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
)

// reopened is what another process makes of tokens.
func reopened(t testing.TB, tokens *Tokens, o Options) *Tokens {
	t.Helper()
	text, err := json.Marshal(tokens.Manifest())
	must(t, err)
	var m Manifest
	must(t, json.Unmarshal(text, &m))
	again, err := Reopen(m, o)
	must(t, err)
	return again
}

func TestReopenedIsTheSame(t *testing.T) {
	paths := files(t, 2, 3000, 1, 2, 4, 70_000)
	odd := filepath.Join(filepath.Dir(paths[0]), "a\xff\"\n.bin") // not UTF-8
	must(t, os.Rename(paths[1], odd))
	paths[1] = odd
	for _, sources := range [][][]string{{paths}, {paths[:2], paths[2:]}, {paths[:1], paths[1:4], paths[4:]}} {
		for _, join := range []bool{false, true} {
			everyAccess(t, func(t *testing.T, o Options) {
				o.Join = join
				was, err := Open(sources, o)
				must(t, err)
				now := reopened(t, was, o)
				if !reflect.DeepEqual(now.Manifest(), was.Manifest()) || !reflect.DeepEqual(now.Files(), sources) ||
					!reflect.DeepEqual(now.Runs(), was.Runs()) || now.Len() != was.Len() || now.Fingerprint() != was.Fingerprint() {
					t.Errorf("%+v is not %+v", now.Manifest(), was.Manifest())
				}
				for pos := range was.Len() {
					if now.Locate(pos) != was.Locate(pos) {
						t.Fatalf("token %d stands at %v, was at %v", pos, now.Locate(pos), was.Locate(pos))
					}
				}
				must(t, now.Check())
				r := rand.New(rand.NewPCG(1, 2))
				for range 25 {
					must(t, readAll(now, anyWindows(r, now.Runs())))
				}
			})
		}
	}
}

// What becomes of a file between the two is seen when it is read, not before.
func TestChangeIsSeenAfterReopen(t *testing.T) {
	const gone = "gone"
	for name, change := range map[string]func(path string) error{
		"truncated": func(path string) error { return os.Truncate(path, 100) },
		"touched":   func(path string) error { return os.Chtimes(path, longAgo, longAgo.Add(1)) },
		"replaced":  func(path string) error { return replace(path, make([]byte, 10_000)) },
		gone:        os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			everyAccess(t, func(t *testing.T, o Options) {
				paths := files(t, 2, 10, 5000)
				was := open(t, paths, o)
				must(t, change(paths[1]))
				now := reopened(t, was, o)
				must(t, readOne(now))
				want := error(syscall.ESTALE)
				if name == gone {
					want = syscall.ENOENT
				}
				for _, err := range []error{readAll(now, []Window{{Start: 5000, Len: 10}}), reopened(t, was, o).Check()} {
					if !errors.Is(err, want) || !strings.Contains(err.Error(), paths[1]) {
						t.Errorf("error %v, want %v of %s", err, want, paths[1])
					}
				}
			})
		})
	}
}

// The files may be where even to ask for them would hang.
func TestReopenTouchesNoFile(t *testing.T) {
	at := func(path string) File { return File{[]byte(path), identity{Size: 20}} }
	m := Manifest{[][]File{{at("/proc/self/no/such/file"), at("/dev/null/below")}, {at("nowhere")}}, "fingerprint"}
	tokens, err := Reopen(m, Options{Width: 2})
	must(t, err)
	if tokens.Len() != 30 || tokens.Fingerprint() != "fingerprint" || tokens.Locate(25) != (Place{"nowhere", 5, 1}) {
		t.Errorf("%d tokens, %q, %+v", tokens.Len(), tokens.Fingerprint(), tokens.Locate(25))
	}
	if err := readOne(tokens); err == nil {
		t.Error("a file that does not exist was read")
	}
}

func TestReopenRefuses(t *testing.T) {
	at := func(size int64) File { return File{[]byte("train.bin"), identity{Size: size}} }
	for _, test := range []struct {
		sources [][]File
		want    string
	}{
		{nil, "no token files"},
		{[][]File{{at(2)}, {}}, "a source without token files"},
		{[][]File{{at(2), at(0)}}, "train.bin is empty"},
		{[][]File{{at(-2)}}, "train.bin is empty"},
		{[][]File{{at(5)}}, "train.bin: 5 bytes are not a whole number of tokens of 2 bytes"},
		{[][]File{{File{[]byte("a\x00b"), identity{Size: 2}}}}, `"a\x00b": invalid argument`},
	} {
		_, err := Reopen(Manifest{Sources: test.sources}, Options{Width: 2})
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v: error %v, want %s", test.sources, err, test.want)
		}
	}
}
