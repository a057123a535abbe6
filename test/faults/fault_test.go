// Package faults tests what readers see while files change or fail, and processes die.
package faults

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"batchfs/test/e2e"
)

func TestMain(m *testing.M) { e2e.Main(m) }

// A fault is something that becomes of a token file, of a split of that name.
type fault struct {
	name  string
	errno string // of its readers
	path  string
	begin func()
	end   func() // puts things right
	how   string // as status.json says it
	quiet bool   // who has the file mapped, or has read it, may not notice
}

// faultsOn makes a healthy token file for each fault.
func faultsOn(t *testing.T, dir string) (all []fault) {
	t.Helper()
	content, then := e2e.VersionOf(0, changeTokens), time.Now().Add(-time.Hour)
	onDisk := func(name, errno, how string, begin func(t *testing.T, path string)) {
		path, kept := filepath.Join(dir, name+".bin"), filepath.Join(dir, name+".kept")
		e2e.Write(t, path, content)
		e2e.NoError(t, os.Chtimes(path, then, then))
		e2e.NoError(t, os.Link(path, kept))
		all = append(all, fault{name: name, errno: errno, path: path, how: how, begin: func() { begin(t, path) }, end: func() {
			e2e.Write(t, kept, content)
			e2e.NoError(t, os.Chtimes(kept, then, then))
			e2e.NoError(t, os.Rename(kept, path))
		}})
	}
	for _, c := range changes {
		onDisk(c.name, "ESTALE", c.how, c.change)
	}
	onDisk("deleted", "EIO", "", func(t *testing.T, path string) { e2e.NoError(t, os.Remove(path)) })
	doubled := func(name, errno string, m e2e.Mode, quiet bool) {
		d := e2e.NewFaultyFile(t, content)
		begin, end := func() { d.Set(t, m) }, func() { d.Set(t, e2e.Healthy) }
		all = append(all, fault{name: name, errno: errno, path: d.Path, begin: begin, end: end, quiet: quiet})
	}
	doubled("denied", "EIO", e2e.Denied, true)
	doubled("failing", "EIO", e2e.Failing, true)
	doubled("gone", "EIO", e2e.Gone, false)
	doubled("shorter", "ESTALE", e2e.Shorter, false)
	return all
}

// Whatever becomes of a token file, whoever reads it gets its batches or an error, whoever reads another file notices nothing,
// and when all is well again, so is every reader.
func TestFaults(t *testing.T) {
	for _, access := range []string{"remap", "advise", "pread"} {
		t.Run(access, func(t *testing.T) {
			if access != "remap" {
				e2e.Long(t)
			}
			t.Parallel()
			dir := t.TempDir()
			faults := faultsOn(t, dir)
			splits := []string{"well"}
			well := e2e.Write(t, filepath.Join(dir, "well.bin"), e2e.VersionOf(2, changeTokens))
			settings := []string{"--set", "memory.access=" + access, "--set", "batch.batch_size=4", "--set", "batch.block_size=500",
				"--set", "splits.well.tokens=" + well}
			for _, f := range faults {
				splits = append(splits, f.name)
				settings = append(settings, "--set", "splits."+f.name+".tokens="+f.path)
			}
			m := e2e.Mount(t, settings...)
			var ways []string // first the ways of the split that stays well
			for _, s := range splits {
				ways = append(ways, "keeps:"+s+"/next", "numbered:"+s+"/batch", "preads:"+s+"/batches.bin", "maps:"+s+"/batches.npy")
			}

			before := e2e.StatusOf(t, m)
			r := startReaders(t, m.Dir, ways...)
			r.wait(t, 3)
			for _, f := range faults {
				f.begin()
			}
			r.more(t, 3)
			r.next(t, "go", 6)
			faulty, during := r.round, e2e.StatusOf(t, m)
			r.next(t, "pause", 1)
			for _, f := range faults {
				f.end()
			}
			r.next(t, "go", 6)
			lines := r.finish(t)

			known := catalogue{}
			for _, s := range splits {
				known.add(t, s, s, max(m.Taken(t, s), 200), settings...)
			}
			of := func(way string) (split string, f fault) {
				_, file, _ := strings.Cut(way, ":")
				split, _, _ = strings.Cut(file, "/")
				if i := slices.Index(splits, split); i > 0 {
					f = faults[i-1]
				}
				return split, f
			}
			seen := known.judge(t, lines, func(l reading) (versions []string, errno string) {
				split, f := of(l.way)
				switch {
				case l.round > faulty:
					return []string{split}, ""
				case l.round == faulty && f.errno != "" && !f.quiet:
					return nil, f.errno
				}
				return []string{split}, f.errno
			})
			t.Logf("%d reads: %v", len(lines), seen)
			for _, way := range ways[4:] {
				_, f := of(way)
				// What is mapped needs no permission any more, and the kernel has some of batch/.
				blind := f.name == "denied" && access == "advise" || f.quiet && strings.HasPrefix(way, "numbered:")
				if text := during.Splits[f.name].LastError; !blind && (seen[way][f.errno] == 0 || !strings.Contains(text, f.path) || !strings.Contains(text, f.how)) {
					t.Errorf("%s: %v; status.json says %q of %s", way, seen[way], text, f.path)
				}
			}
			after := e2e.StatusOf(t, m)
			if before.PID != during.PID || before.PID != after.PID || during.Splits["well"].Errors > 0 {
				t.Errorf("another process serves, or who read the file that was well had errors: %+v", after)
			}
		})
	}
}
