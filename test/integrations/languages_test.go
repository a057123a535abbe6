// Package integrations tests that third-party programs and libraries read a mount correctly: the
// standard libraries of many languages, NumPy, safetensors, PyTorch and nanoGPT.
package integrations

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"batchfs/test/e2e"
)

func TestMain(m *testing.M) { e2e.Main(m) }

// A language is a program in clients/languages and the ways in which it can read a file. A way is
// NAME, which reads next, or NAME:FILE.
type language struct {
	name              string
	build             []string
	command           []string
	always            string // ways that every run reads, not only make languages
	strict            string // ways that fail if a read fails, or show that data is missing
	acceptsPart       string // ways that fail only if nothing can be read
	ignoresReadErrors string // ways that fail only if the open fails
	ignoresErrors     string // ways that never fail
	repeats           string // ways that keep the file open, and repeat a buffered batch
	repeatsTiny       string // ways that repeat batches below 512 bytes
	disallowed        string // ways that next does not allow
}

func languages(dir string) []language {
	const source = "clients/languages/next."
	program := func(name string) string { return filepath.Join(dir, name) }
	return []language{
		{
			name:        "C",
			build:       []string{"cc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", program("c"), source + "c"},
			command:     []string{program("c")},
			always:      "fread unbuffered",
			strict:      "fread halves sized getc rewind unbuffered",
			repeatsTiny: "rewind",
		}, {
			name:          "C++",
			build:         []string{"c++", "-O2", "-Wall", "-Wextra", "-Werror", "-o", program("c++"), source + "cpp"},
			command:       []string{program("c++")},
			strict:        "read exceptions rdbuf iterator seekg",
			ignoresErrors: "unchecked",
		}, {
			name:        "Fortran",
			build:       []string{"gfortran", "-Wall", "-o", program("fortran"), source + "f90"},
			command:     []string{program("fortran")},
			strict:      "stream",
			acceptsPart: "direct",
			repeats:     "pos rewind",
		}, {
			name:    "Go",
			build:   []string{"go", "build", "-o", program("go"), "./clients/languages/go"},
			command: []string{program("go")},
			always:  "ReadFile ReadAt",
			strict:  "ReadFile ReadFull nonblock bufio binary Copy Seek ReadAt",
		}, {
			name:        "Lua",
			command:     []string{"lua5.4", source + "lua"},
			strict:      "all sized lines seek unbuffered",
			repeatsTiny: "seek",
		}, {
			name:    "Node.js",
			command: []string{"node", source + "js"},
			always:  "readFile readSync",
			strict:  "readFileSync readFile promises promisesRead stream readSync nonblock",
		}, {
			name:              "Perl",
			command:           []string{"perl", source + "pl"},
			strict:            "slurp read sysread nonblock seek sysseek",
			ignoresReadErrors: "unchecked",
		}, {
			name:          "PHP",
			command:       []string{"php", source + "php"},
			strict:        "file_get_contents fread stream_get_contents nonblock readfile rewind",
			ignoresErrors: "unchecked",
		}, {
			name:              "Python",
			command:           []string{e2e.Python, source + "py"},
			always:            "read fromfile_count pread",
			strict:            "read os_read readinto array_fromfile fromfile_count fromfile_halves load:next.npy path_read_bytes pread seek",
			ignoresReadErrors: "fromfile",
			disallowed:        "mapped memmap load_mmap:next.npy",
		}, {
			name:              "R",
			command:           []string{"Rscript", source + "R"},
			strict:            "checked connection seek",
			ignoresReadErrors: "unchecked",
			repeatsTiny:       "seek",
		}, {
			name:    "Ruby",
			command: []string{"ruby", source + "rb"},
			strict:  "binread read sized sysread nonblock copy_stream rewind pread",
		}, {
			name:    "shell",
			command: []string{"bash", source + "sh"},
			always:  "cat dd redirect",
			strict:  "dd dd_blocks cat cp head tail od base64 redirect",
		},
	}
}

// Readers in many languages get whole batches of next, each number once, whether or not they keep
// it open. If the tokens changed or cannot be read, they get an error, except in the ways that
// docs/languages.md names. `make languages` tests all languages and ways.
func TestLanguages(t *testing.T) {
	all := os.Getenv("BATCHFS_LANGUAGES") == "1"
	const (
		reads  = 5
		tiny   = "batch_size=1,block_size=100" // 400 bytes
		small  = "batch_size=5,block_size=100" // 2000 bytes, not a multiple of 512
		medium = "batch_size=12,block_size=1024"
		large  = "batch_size=1024,block_size=1024" // four requests; part of the first can be read
	)
	dir, content := t.TempDir(), e2e.TokensOfVersion(0, 1_200_000)
	e2e.Write(t, filepath.Join(dir, "train.bin"), content)
	e2e.Write(t, filepath.Join(dir, "touched.bin"), content)
	none, part := e2e.NewFaultyFile(t, content), e2e.NewFaultyFile(t, content)
	m := e2e.Mount(t, "--set", "batch.order=sequential", "--set", "splits.train.tokens="+filepath.Join(dir, "train.bin"),
		"--set", "splits.touched.tokens="+filepath.Join(dir, "touched.bin"), "--set", "splits.none.tokens="+none.Path,
		"--set", "splits.part.tokens="+part.Path)
	e2e.NoError(t, os.Chtimes(filepath.Join(dir, "touched.bin"), time.Time{}, time.Unix(1, 0)))
	none.Set(t, e2e.Failing)
	part.Set(t, e2e.Half)

	for number, l := range languages(dir) {
		if !all && l.always == "" {
			continue
		}
		ways := func(lists ...string) (chosen []string) {
			for way := range strings.FieldsSeq(strings.Join(lists, " ")) {
				if all || slices.Contains(strings.Fields(l.always), way) {
					chosen = append(chosen, way)
				}
			}
			return chosen
		}
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			needs := append(l.build, l.command...)[0]
			if _, err := exec.LookPath(needs); err != nil {
				e2e.SkipOrFail(t, "no %s", needs)
			}
			if l.build != nil {
				e2e.RunJob(t, l.build...)
			}
			p := &program{language: l, m: m, seed: 1000 * number}
			for _, way := range ways(l.strict, l.acceptsPart, l.ignoresReadErrors, l.ignoresErrors) {
				p.checkBatches(t, way, small, reads, reads)
				p.checkBatches(t, way, medium, reads, reads)
			}
			for _, way := range ways(l.repeats) {
				p.checkBatches(t, way, small, reads, 1)
			}
			for _, way := range ways(l.repeatsTiny) {
				p.checkBatches(t, way, tiny, reads, 1)
			}
			for _, f := range []struct {
				split, settings string
				size            int // size of a batch in bytes
				tell, hide      []string
			}{
				{"train", medium, 2 * 12 * 1024 * 2, ways(l.disallowed), nil},
				{"touched", medium, 2 * 12 * 1024 * 2, ways(l.strict, l.acceptsPart, l.ignoresReadErrors, l.repeats, l.disallowed), ways(l.ignoresErrors)},
				{"none", medium, 2 * 12 * 1024 * 2, ways(l.strict, l.acceptsPart, l.repeats, l.disallowed), ways(l.ignoresReadErrors, l.ignoresErrors)},
				{"part", large, 2 * 1024 * 1024 * 2, ways(l.strict, l.repeats, l.disallowed), ways(l.acceptsPart, l.ignoresReadErrors, l.ignoresErrors)},
			} {
				for _, way := range f.tell {
					// If part of a batch can be read, a program may get that part and no error.
					if _, out, failure := p.read(t, way, f.split, f.settings, 1); len(out) >= f.size || failure == "" && f.split != "part" {
						t.Errorf("%s of %s: %d of %d bytes and the error %q, want fewer bytes and an error", way, f.split, len(out), f.size, failure)
					}
				}
				for _, way := range f.hide {
					_, _, failure := p.read(t, way, f.split, f.settings, 1)
					e2e.Equal(t, "the error of "+way+" of "+f.split+", which hides errors", failure, "")
				}
			}
		})
	}
}

// A program reads a mount in one language, each time with a new cursor.
type program struct {
	language
	m    *e2e.Mounted
	seed int // seed of the last settings directory, which has the cursor
}

// read lets the program read a file n times in dir, a new settings directory. failure is the error
// of the program, if any.
func (p *program) read(t *testing.T, way, split, settings string, n int) (dir, out, failure string) {
	t.Helper()
	p.seed++
	dir = fmt.Sprintf("%s/%s,seed=%d", split, settings, p.seed)
	name, file, _ := strings.Cut(way, ":")
	size := strings.TrimSpace(e2e.Run(t, "stat", "-c", "%s", p.m.Path(dir+"/next")))
	out, stderr, err := e2e.Try(t, append(p.command, name, p.m.Path(dir+"/"+cmp.Or(file, "next")), fmt.Sprint(n), size)...)
	if err != nil {
		failure = fmt.Sprint(err, ": ", stderr)
	}
	return dir, out, failure
}

// checkBatches checks that n reads get batches 0 to taken-1, repeatedly if n is larger, and move
// the cursor to taken.
func (p *program) checkBatches(t *testing.T, way, settings string, n, taken int) {
	t.Helper()
	dir, got, failure := p.read(t, way, "train", settings, n)
	want := []string{"cat"}
	for i := range n {
		want = append(want, p.m.Path(fmt.Sprintf("%s/batch/%d", dir, i%taken)))
	}
	if got != e2e.Run(t, want...) || failure != "" {
		t.Errorf("%s, %s: %d bytes, error %q, want batches %q", way, settings, len(got), failure, want[1:])
	}
	e2e.Equal(t, fmt.Sprintf("%s, %s: the cursor", way, settings), p.m.NextNumber(t, dir), taken)
}
