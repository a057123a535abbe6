package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"batchfs/test/e2e"
)

var block = regexp.MustCompile("(?ms)^```(sh|python|c)\n(.*?)^```$")

// pages are README and the pages of docs, in the order in which README names them.
func pages(t *testing.T) (paths []string) {
	t.Helper()
	paths = []string{"README.md"}
	for _, link := range link.FindAllStringSubmatch(e2e.ReadPage(t, "README.md"), -1) {
		if strings.HasPrefix(link[1], "docs/") && !slices.Contains(paths, link[1]) {
			paths = append(paths, link[1])
		}
	}
	return paths
}

// link matches a link of Markdown to a file, or to a heading of one.
var link = regexp.MustCompile(`\]\(([a-zA-Z0-9./_-]*)(#[a-z0-9-]+)?\)`)

// blocksOf are the blocks of code of a page for a mountpoint, each its language and the code.
func blocksOf(t *testing.T, page, mountpoint string) (blocks [][2]string) {
	t.Helper()
	text := e2e.ReadPage(t, page)
	for _, b := range block.FindAllStringSubmatch(text, -1) {
		blocks = append(blocks, [2]string{b[1], strings.ReplaceAll(b[2], "/mnt/batches", mountpoint)})
	}
	return blocks
}

var library = regexp.MustCompile(`(?m)^(?:import|from) (torch|safetensors)`)

// lacksLibrary reports whether code of a page imports what is not installed here.
func lacksLibrary(code string) bool {
	m := library.FindStringSubmatch(code)
	return m != nil && exec.Command(e2e.Python, "-c", "import "+m[1]).Run() != nil
}

// What a page says to type works, in the order in which it says so. CI runs README's make commands.
func TestREADME(t *testing.T) {
	t.Parallel()
	e2e.NeedFUSE(t)
	dir := t.TempDir()
	mountpoint := filepath.Join(dir, "mnt")
	for _, d := range []string{"mnt", "bin"} {
		e2e.NoError(t, os.Mkdir(filepath.Join(dir, d), 0o755))
	}
	t.Cleanup(func() { syscall.Unmount(mountpoint, syscall.MNT_DETACH) })
	config := e2e.Content(t, "../config.toml")
	e2e.Write(t, filepath.Join(dir, "config.toml"), config)
	e2e.Write(t, filepath.Join(dir, "book.txt"), []byte(strings.Repeat("It was the best of times, it was the worst of times.\n", 3000)))
	e2e.NoError(t, os.Symlink(e2e.Batchfs, filepath.Join(dir, "bin/batchfs")))

	for _, page := range pages(t) {
		for _, b := range blocksOf(t, page, mountpoint) {
			language, code := b[0], b[1]
			var cmd *exec.Cmd
			switch {
			case strings.HasPrefix(code, "make "):
				continue
			case language == "sh":
				cmd = e2e.Command(t, "bash", "-euo", "pipefail", "-c", code)
			case language == "python":
				if lacksLibrary(code) {
					code = "compile('''" + code + "''', 'page', 'exec')"
				}
				cmd = e2e.Command(t, e2e.Python, "-c", code)
			case language == "c":
				e2e.Write(t, filepath.Join(dir, "reader.c"), []byte(code))
				cmd = e2e.Command(t, "sh", "-c", "cc -Wall -Wextra -Werror -o reader reader.c && ./reader")
			}
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"), "XDG_STATE_HOME="+dir)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%s: %v:\n%s\n%s", page, err, code, out)
			}
		}
		if e2e.IsMounted(t, mountpoint) {
			t.Errorf("%s leaves a mount behind", page)
		}
	}
}

// README is read in two screens, names every page of docs, and no link of a page leads nowhere.
func TestPages(t *testing.T) {
	if n := strings.Count(e2e.ReadPage(t, "README.md"), "\n"); n > 250 {
		t.Errorf("README has %d lines", n)
	}
	all := e2e.Must(filepath.Glob("../docs/*.md"))(t)
	if named := pages(t); len(named) != len(all)+1 {
		t.Errorf("README names %s, and docs has %s", named, all)
	}
	headings := regexp.MustCompile("(?m)^#+ (.*)$")
	anchor := regexp.MustCompile("[^a-z0-9 -]")
	for _, page := range pages(t) {
		for _, link := range link.FindAllStringSubmatch(e2e.ReadPage(t, page), -1) {
			path := page
			if link[1] != "" {
				path = filepath.Join(filepath.Dir(page), link[1])
			}
			if _, err := os.Stat(filepath.Join("..", path)); err != nil {
				t.Errorf("%s: %v", page, err)
				continue
			}
			found := link[2] == ""
			if !found {
				for _, h := range headings.FindAllStringSubmatch(e2e.ReadPage(t, path), -1) {
					found = found || "#"+strings.ReplaceAll(anchor.ReplaceAllString(strings.ToLower(h[1]), ""), " ", "-") == link[2]
				}
			}
			if !found {
				t.Errorf("%s: %s has no heading for %s", page, path, link[2])
			}
		}
	}
}

// batchFile matches a line of shell with a file of batches in a mount.
var batchFile = regexp.MustCompile(`/(train|val)/(\S+/)?(next|batch/|batches\.)`)

// Where tokens changed or cannot be read, no code of a page has a batch, and each says so.
func TestREADMEWithoutBatches(t *testing.T) {
	e2e.Long(t)
	dir := t.TempDir()
	e2e.NoError(t, os.Symlink(e2e.PlainBatchfs, filepath.Join(dir, "batchfs")))
	e2e.Tokens(t, filepath.Join(dir, "data/train.bin"), 60_000, 2)
	touched, double := e2e.Tokens(t, filepath.Join(dir, "touched.bin"), 60_000, 2), e2e.NewDouble(t, e2e.VersionOf(0, 60_000))
	driver := e2e.Must(filepath.Abs("clients/readme.py"))(t)
	for name, fault := range map[string]struct {
		path  string
		begin func()
	}{
		"touched": {touched, func() { e2e.NoError(t, os.Chtimes(touched, time.Time{}, time.Unix(1, 0))) }},
		"failing": {double.Path, func() { double.Set(t, e2e.Failing) }},
	} {
		t.Run(name, func(t *testing.T) {
			m := e2e.Mount(t, "--set", "batch.block_size=64", "--set", "splits.train.tokens="+fault.path, "--set", "splits.val.tokens="+fault.path)
			fault.begin()
			command := func(args ...string) *exec.Cmd {
				cmd := e2e.Command(t, args[0], args[1:]...)
				cmd.Dir = dir
				cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
				return cmd
			}
			fails := func(args ...string) {
				t.Helper()
				if out, err := command(args...).Output(); err == nil {
					t.Errorf("no error of %q, which prints %q", args, out)
				}
			}
			ran := map[string]int{}
			var blocks [][2]string
			for _, page := range pages(t) {
				blocks = append(blocks, blocksOf(t, page, m.Dir)...)
			}
			for _, b := range blocks {
				language, code := b[0], b[1]
				switch {
				case language == "python" && !lacksLibrary(code):
					out, err := command(e2e.Python, driver, code).CombinedOutput()
					if err != nil && err.Error() != "signal: bus error" { // in which a mapping ends
						t.Errorf("%v: %s\n%s", err, out, code)
					}
					ran[language]++
				case language == "c":
					e2e.Write(t, filepath.Join(dir, "reader.c"), []byte(code))
					e2e.Run(t, "cc", "-o", filepath.Join(dir, "reader"), filepath.Join(dir, "reader.c"))
					fails(filepath.Join(dir, "reader"))
					ran[language]++
				case language == "sh":
					for line := range strings.Lines(code) {
						// Where a row comes from can be told without its tokens.
						if batchFile.MatchString(line) && !strings.Contains(line, ".json") {
							fails("bash", "-c", line)
							ran[language]++
						}
					}
				}
			}
			if ran["python"] < 6 || ran["c"] < 1 || ran["sh"] < 3 {
				t.Errorf("the pages have %v commands that read batches", ran)
			}
		})
	}
}
