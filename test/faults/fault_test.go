// Package faults tests what readers see while token files change or fail, processes die, or the
// machine lacks memory, processes or descriptors.
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

// A fault is something that happens to a token file. The split of the file has its name.
type fault struct {
	name           string
	errno          string // error that its readers get
	path           string
	begin          func()
	end            func() // undoes the fault
	description    string // expected in status.json
	mayGoUnnoticed bool   // readers that have mapped or read the file may get no error
}

// newFaults returns all faults. Their token files are healthy at first.
func newFaults(t *testing.T, dir string) (faults []fault) {
	t.Helper()
	content, mtime := e2e.TokensOfVersion(0, changeTokens), time.Now().Add(-time.Hour)
	onDisk := func(name, errno, how string, begin func(t *testing.T, path string)) {
		path, backup := filepath.Join(dir, name+".bin"), filepath.Join(dir, name+".kept")
		e2e.Write(t, path, content)
		e2e.NoError(t, os.Chtimes(path, mtime, mtime))
		e2e.NoError(t, os.Link(path, backup))
		faults = append(faults, fault{name: name, errno: errno, path: path, description: how, begin: func() { begin(t, path) }, end: func() {
			e2e.Write(t, backup, content)
			e2e.NoError(t, os.Chtimes(backup, mtime, mtime))
			e2e.NoError(t, os.Rename(backup, path))
		}})
	}
	for _, c := range changes {
		onDisk(c.name, "ESTALE", c.description, c.change)
	}
	onDisk("deleted", "EIO", "", func(t *testing.T, path string) { e2e.NoError(t, os.Remove(path)) })
	onFaultyFile := func(name, errno string, m e2e.Mode, mayGoUnnoticed bool) {
		d := e2e.NewFaultyFile(t, content)
		begin, end := func() { d.Set(t, m) }, func() { d.Set(t, e2e.Healthy) }
		faults = append(faults, fault{name: name, errno: errno, path: d.Path, begin: begin, end: end, mayGoUnnoticed: mayGoUnnoticed})
	}
	onFaultyFile("denied", "EIO", e2e.Denied, true)
	onFaultyFile("failing", "EIO", e2e.Failing, true)
	onFaultyFile("gone", "EIO", e2e.Gone, false)
	onFaultyFile("shorter", "ESTALE", e2e.Shorter, false)
	return faults
}

// Whatever happens to a token file, its readers get its batches or an error, and readers of another
// file notice nothing. When the file recovers, so do its readers.
func TestFaults(t *testing.T) {
	for _, access := range []string{"remap", "advise", "pread"} {
		t.Run(access, func(t *testing.T) {
			if access != "remap" {
				e2e.SkipIfShort(t)
			}
			t.Parallel()
			dir := t.TempDir()
			faults := newFaults(t, dir)
			splits := []string{"well"}
			well := e2e.Write(t, filepath.Join(dir, "well.bin"), e2e.TokensOfVersion(2, changeTokens))
			settings := []string{"--set", "memory.access=" + access, "--set", "batch.batch_size=4", "--set", "batch.block_size=500",
				"--set", "splits.well.tokens=" + well}
			for _, f := range faults {
				splits = append(splits, f.name)
				settings = append(settings, "--set", "splits."+f.name+".tokens="+f.path)
			}
			m := e2e.Mount(t, settings...)
			var ways []string // the ways of the healthy split come first
			for _, s := range splits {
				ways = append(ways, "keeps:"+s+"/next", "numbered:"+s+"/batch", "preads:"+s+"/batches.bin", "maps:"+s+"/batches.npy")
			}

			before := e2e.StatusOf(t, m)
			r := startReaderProcess(t, m.Dir, ways...)
			r.awaitReads(t, 3)
			for _, f := range faults {
				f.begin()
			}
			r.awaitMore(t, 3)
			r.nextRound(t, "go", 6)
			faulty, during := r.round, e2e.StatusOf(t, m)
			r.nextRound(t, "pause", 1)
			for _, f := range faults {
				f.end()
			}
			r.nextRound(t, "go", 6)
			lines := r.finish(t)

			known := catalogue{}
			for _, s := range splits {
				known.add(t, s, s, max(m.NextNumber(t, s), 200), settings...)
			}
			faultOf := func(way string) (split string, f fault) {
				_, file, _ := strings.Cut(way, ":")
				split, _, _ = strings.Cut(file, "/")
				if i := slices.Index(splits, split); i > 0 {
					f = faults[i-1]
				}
				return split, f
			}
			seen := known.judge(t, lines, func(l reading) (versions []string, errno string) {
				split, f := faultOf(l.way)
				switch {
				case l.round > faulty:
					return []string{split}, ""
				case l.round == faulty && f.errno != "" && !f.mayGoUnnoticed:
					return nil, f.errno
				}
				return []string{split}, f.errno
			})
			t.Logf("%d reads: %v", len(lines), seen)
			for _, way := range ways[4:] {
				_, f := faultOf(way)
				// A file that is already mapped needs no permission, and the kernel has cached part
				// of batch/.
				blind := f.name == "denied" && access == "advise" || f.mayGoUnnoticed && strings.HasPrefix(way, "numbered:")
				if text := during.Sequences[f.name].LastError; !blind && (seen[way][f.errno] == 0 || !strings.Contains(text, f.path) || !strings.Contains(text, f.description)) {
					t.Errorf("%s: %v, want some %s; status.json says %q, want it to name %s and %q", way, seen[way], f.errno, text, f.path, f.description)
				}
			}
			after := e2e.StatusOf(t, m)
			if before.PID != during.PID || before.PID != after.PID || during.Sequences["well"].Errors > 0 {
				t.Errorf("status.json is %+v, want worker %d and no errors of the healthy split", after, before.PID)
			}
		})
	}
}
