package e2e

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/moby/sys/mountinfo"
)

// printing holds the names of the running tests that print their logs if they fail.
var printing sync.Map

// printLogsOfFailure makes a test that fails print the logs of all mounts in its temporary
// directories, including mounts that a program made. Helpers that a test calls first call it, so
// that it runs after all other cleanups, which may fail too.
func printLogsOfFailure(t testing.TB) {
	if _, known := printing.LoadOrStore(t.Name(), true); known {
		return
	}
	// All temporary directories of a test are in one directory.
	dir := filepath.Dir(t.TempDir())
	t.Cleanup(func() { printing.Delete(t.Name()) })
	PrintLogsOfFailure(t, dir)
}

// PrintLogsOfFailure makes a test that fails print the last lines of the logs in a directory: the
// files whose name begins with log or ends in .log.
func PrintLogsOfFailure(t testing.TB, dir string) {
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		mounts := MountsBelow(t, dir)
		filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil:
			case entry.IsDir() && slices.ContainsFunc(mounts, func(m *mountinfo.Info) bool { return m.Mountpoint == path }):
				return fs.SkipDir // it may hang
			case entry.Type().IsRegular() && (strings.HasPrefix(entry.Name(), "log") || filepath.Ext(path) == ".log"):
				text, err := os.ReadFile(path)
				t.Logf("%s: error %v\n%s", path, err, LastLines(string(text), 200))
			}
			return nil
		})
	})
}

// LastLines returns the last n lines of a text, and says if there are more.
func LastLines(text string, n int) string {
	lines := slices.Collect(strings.Lines(text))
	if len(lines) <= n {
		return text
	}
	return "[...]\n" + strings.Join(lines[len(lines)-n:], "")
}
