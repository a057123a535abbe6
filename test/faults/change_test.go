package faults

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"batchfs/internal/testwait"
	"batchfs/test/e2e"
)

// readerProcess is a running `clients/readers.py changing`.
type readerProcess struct {
	ways  []string
	in    io.WriteCloser
	done  chan error
	round int

	mu    sync.Mutex
	lines []reading // guarded by mu
	atEnd bool      // guarded by mu
}

// A reading is one line of output: the round in which a read began, how it read, and its digest or
// error.
type reading struct {
	round  int
	way    string
	output string
}

// startReaderProcess starts a process that reads files of a directory in several ways of
// clients/readers.py.
func startReaderProcess(t *testing.T, dir string, ways ...string) *readerProcess {
	t.Helper()
	c := e2e.StartClient(t, exec.Command(e2e.Python, append([]string{"clients/readers.py", "changing", dir}, ways...)...))
	r := &readerProcess{ways: ways, in: c.In, done: make(chan error, 1), round: 1}
	go func() {
		for out := bufio.NewScanner(c.Out); out.Scan(); {
			var l reading
			round, rest, _ := strings.Cut(out.Text(), " ")
			fmt.Sscan(round, &l.round)
			l.way, l.output, _ = strings.Cut(rest, " ")
			r.mu.Lock()
			r.lines = append(r.lines, l)
			r.mu.Unlock()
		}
		err := c.Cmd.Wait()
		r.mu.Lock()
		r.atEnd = true
		r.mu.Unlock()
		r.done <- err
	}()
	return r
}

// nextRound begins a round, and returns when each way has read n times in it.
func (r *readerProcess) nextRound(t *testing.T, kind string, n int) {
	t.Helper()
	r.round++
	e2e.Must(fmt.Fprintln(r.in, kind))(t)
	r.awaitReads(t, n)
}

func (r *readerProcess) awaitReads(t *testing.T, n int) {
	t.Helper()
	r.awaitLines(t, n, 0)
}

func (r *readerProcess) awaitMore(t *testing.T, n int) {
	t.Helper()
	r.mu.Lock()
	from := len(r.lines)
	r.mu.Unlock()
	r.awaitLines(t, n, from)
}

// awaitLines returns when each way has read n times in the current round, not counting the lines
// before from.
func (r *readerProcess) awaitLines(t *testing.T, n, from int) {
	t.Helper()
	seen := map[string]int{}
	e2e.Await(t, fmt.Sprintf("%d reads of each kind in round %d", n, r.round), func() (any, bool) {
		r.mu.Lock()
		defer r.mu.Unlock()
		for ; from < len(r.lines); from++ {
			if l := r.lines[from]; l.round == r.round {
				seen[l.way]++
			}
		}
		missing := slices.ContainsFunc(r.ways, func(way string) bool { return seen[way] < n })
		if missing && r.atEnd {
			t.Fatalf("the readers ended after %v in round %d", seen, r.round)
		}
		return seen, !missing
	})
}

func (r *readerProcess) finish(t *testing.T) []reading {
	t.Helper()
	r.in.Close()
	e2e.NoError(t, testwait.For(t, "the end of the readers", r.done))
	return r.lines
}

// A catalogue maps the digest of a batch to its number and the versions of the tokens that have it.
type catalogue map[string]*catalogueEntry

type catalogueEntry struct {
	versions []string
	k        int
}

// add adds the first n batches of `batchfs cat` to a version.
func (c catalogue) add(t *testing.T, version, split string, n int, flags ...string) {
	t.Helper()
	for k, l := range e2e.Digests(t, split, 0, n, flags...) {
		if c[l] == nil {
			c[l] = &catalogueEntry{k: k}
		}
		c[l].versions = append(c[l].versions, version)
	}
}

// judge checks that each reading is a batch of a version or the error that allowed returns for it
// (any error of a mapping is EFAULT), and that no number of a next file went to two reads. For each
// way, it counts the batches of each version, and the errors.
func (c catalogue) judge(
	t *testing.T, lines []reading, allowed func(reading) (versions []string, errno string),
) (seen map[string]map[string]int) {
	t.Helper()
	seen, taken := map[string]map[string]int{}, map[string]reading{}
	for _, l := range lines {
		if seen[l.way] == nil {
			seen[l.way] = map[string]int{}
		}
		versions, errno := allowed(l)
		b, ok := c[l.output]
		switch {
		case l.output == "paused":
		case ok && slices.ContainsFunc(b.versions, func(v string) bool { return slices.Contains(versions, v) }):
			for _, v := range b.versions {
				seen[l.way][v]++
			}
			_, file, _ := strings.Cut(l.way, ":")
			dir, file := filepath.Split(file)
			if !strings.HasPrefix(file, "next") {
				continue
			}
			number := fmt.Sprint(dir, b.k)
			if earlier, twice := taken[number]; twice {
				t.Errorf("number %s went to %+v and also to %+v", number, earlier, l)
			}
			taken[number] = l
		case errno != "" && (l.output == "errno "+errno || l.output == "errno EFAULT" && strings.HasPrefix(l.way, "maps:")):
			seen[l.way][errno]++
		default:
			t.Fatalf("the reading %+v is batch %+v, want one of versions %q, or the error %q", l, b, versions, errno)
		}
	}
	return seen
}

var changes = []struct {
	name        string
	change      func(t *testing.T, path string)
	description string // expected in status.json
}{
	{"replaced", func(t *testing.T, path string) {
		e2e.Write(t, path+".new", e2e.TokensOfVersion(1, changeTokens))
		e2e.NoError(t, os.Link(path, path+".old"))
		e2e.NoError(t, os.Rename(path+".new", path))
	}, "another file is in its place"},
	// A single write within a page gives the file no intermediate size.
	{"appended", func(t *testing.T, path string) {
		f := e2e.Must(os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0))(t)
		e2e.Must(f.Write(e2e.TokensOfVersion(1, 1000)))(t)
		e2e.NoError(t, f.Close())
	}, "402000 bytes, was 400000"},
	{"truncated", func(t *testing.T, path string) { e2e.NoError(t, os.Truncate(path, 300_000)) }, "300000 bytes, was 400000"},
	{"touched", func(t *testing.T, path string) {
		now := time.Now()
		e2e.NoError(t, os.Chtimes(path, now, now))
	}, "written to at "},
	{"overwritten", func(t *testing.T, path string) {
		f := e2e.Must(os.OpenFile(path, os.O_WRONLY, 0))(t)
		e2e.Must(f.Write(e2e.TokensOfVersion(1, changeTokens)))(t)
		e2e.NoError(t, f.Close())
	}, "written to at "},
}

const changeTokens = 200_000 // size of a file before it changes

// rankDir is a settings directory. Its seed differs from that of train, because otherwise train
// would contain the same rows.
const rankDir = "train/rank=1,seed=7,world=2"

var rankSettings = []string{"--set", "batch.rank=1", "--set", "batch.world=2", "--set", "batch.seed=7"}

func fingerprintOf(t *testing.T, dir string) string {
	t.Helper()
	return e2e.JSON[e2e.Info](t, e2e.PlainBatchfs, "inspect", "train", "0", "--json", "--data", dir).Fingerprint
}

// Whatever happens to a token file with on_change = "follow", and however it is read, each batch
// has only old tokens or only new ones, or reading it fails with ESTALE.
func TestTokensChangeUnderReaders(t *testing.T) {
	ways := []string{
		"opens:train/next", "keeps:train/next", "frames:train/next.npy", "numbered:train/batch", "preads:train/batches.bin",
		"maps:train/batches.npy", "opens:" + rankDir + "/next", "numbered:train/world=2,rank=1,seed=7/batch",
		"preads:" + rankDir + "/batches.bin",
	}
	const undisturbed = "keeps:val/next"
	for n, change := range changes {
		access := []string{"remap", "advise", "pread"}[n%3]
		t.Run(change.name+","+access, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			inDir := func(name string) string { return filepath.Join(dir, name) }
			file := inDir("live/train.bin")
			e2e.Write(t, file, e2e.TokensOfVersion(0, changeTokens))
			e2e.Write(t, inDir("old/train.bin"), e2e.TokensOfVersion(0, changeTokens))
			e2e.Write(t, inDir("live/val.bin"), e2e.TokensOfVersion(2, 10_000))
			settings := []string{"--set", "batch.batch_size=4", "--set", "batch.block_size=32"}
			m := e2e.Mount(t, append(settings, "--data", inDir("live"), "--set", "memory.access="+access,
				"--set", "splits.train.on_change=follow")...)

			r := startReaderProcess(t, m.Dir, append(ways, undisturbed)...)
			r.awaitReads(t, 5)
			if change.name == "overwritten" {
				r.nextRound(t, "pause", 1) // while the file is overwritten, it mixes two versions
			}
			change.change(t, file)
			r.nextRound(t, "go", 10)
			changed := r.round
			content := e2e.Content(t, file)
			e2e.Write(t, inDir("new/train.bin"), content)
			info, log := m.Info(t, "train"), m.Out.String()
			if change.name == "replaced" {
				r.nextRound(t, "pause", 1)
				e2e.NoError(t, os.Rename(file+".old", file))
				r.nextRound(t, "go", 10)
			}
			lines := r.finish(t)

			known := catalogue{}
			for path, rank := range map[string][]string{"train": {}, rankDir: rankSettings} {
				n := max(m.NextNumber(t, path), 2000) // more than batches.* contain
				for _, v := range []string{"old", "new"} {
					known.add(t, v, "train", n, slices.Concat([]string{"--data", inDir(v)}, settings, rank)...)
				}
			}
			known.add(t, "val", "val", m.NextNumber(t, "val"), append(settings, "--data", inDir("live"))...)
			seen := known.judge(t, lines, func(l reading) (versions []string, errno string) {
				oneRequest := strings.HasPrefix(l.way, "opens:") || strings.HasPrefix(l.way, "keeps:")
				_, file, _ := strings.Cut(l.way, ":")
				switch {
				case l.way == undisturbed:
					return []string{"val"}, ""
				// A change is noticed within a second.
				case strings.HasPrefix(filepath.Base(file), "batches."):
					return []string{"old", "new"}, "ESTALE"
				case l.round < changed && oneRequest: // continues with the new tokens by itself
					return []string{"old", "new"}, ""
				case l.round < changed:
					return []string{"old", "new"}, "ESTALE"
				case l.round > changed:
					return []string{"old"}, ""
				case change.name == "overwritten":
					// If files were checked during the write, reads fail until the next attempt.
					return []string{"new"}, "ESTALE"
				}
				return []string{"new"}, ""
			})
			t.Logf("%d reads: %v", len(lines), seen)

			noticed := strings.Count(log, "token files changed; now serving the new ones")
			if info.Changes != noticed || noticed == 0 || change.name == "replaced" && noticed != 1 {
				t.Errorf("info.json counts %d changes, and the log has %d, want the same number, 1 if a file was replaced:\n%s", info.Changes, noticed, log)
			}
			if want := fingerprintOf(t, inDir("new")); info.Fingerprint != want || info.Tokens != len(content)/2 {
				t.Errorf("info.json has fingerprint %s of %d tokens, want %s of %d", info.Fingerprint, info.Tokens, want, len(content)/2)
			}
		})
	}
}

// A version is one content of a token file.
type version struct {
	data    []byte
	batches []string // digests of its batches
	whole   string   // digest of all batches together
}

// checkFiles checks that every file of train shows this version, first from the worker and then
// from the kernel's cache.
func (v version) checkFiles(t *testing.T, m *e2e.Mounted, changes int) {
	t.Helper()
	h := e2e.StartHandles(t, m.Dir)
	for opened, name := range []string{"batch/0", "batch/3", "batch/17.npy", "batch/19.safetensors", "batches.bin", "batches.npy"} {
		want, off := v.whole, int64(0)
		if number, ok := strings.CutPrefix(name, "batch/"); ok {
			var k int
			fmt.Sscan(strings.Split(number, ".")[0], &k)
			want = v.batches[k]
		}
		if strings.HasSuffix(name, ".npy") || strings.HasSuffix(name, ".safetensors") {
			off = 4096
		}
		size := e2e.Must(os.Stat(m.Path("train/"+name)))(t).Size() - off
		h.Do("open train/%s", name)
		for _, how := range []string{"read", "map", "read", "map"} {
			e2e.Equal(t, fmt.Sprintf("after %d changes, %s of %s", changes, how, name), h.Do("%s %d %d %d", how, opened, off, size), want)
		}
	}
	info := m.Info(t, "train")
	e2e.Equal(t, "changes in info.json", info.Changes, changes)
	e2e.Equal(t, "steps in info.json", info.Steps, len(v.batches))
	e2e.CheckOutput(t, info.Fingerprint, "cat", m.Path("train/batch/3.json"))
}

// After a change, files that are opened show the new data, whatever the kernel has cached. Files
// that were open show only the old data or an error.
func TestOpenedBeforeAndAfterAChange(t *testing.T) {
	t.Parallel()
	const size = 512
	versions := [2]version{{data: e2e.TokensOfVersion(0, 1_600_000)}, {data: e2e.TokensOfVersion(1, 100_000)}}
	settings := []string{"--set", "batch.batch_size=4", "--set", "batch.block_size=32"}
	file := e2e.Write(t, filepath.Join(t.TempDir(), "train.bin"), versions[0].data)
	m := e2e.Mount(t, append(settings, "--data", filepath.Dir(file), "--set", "splits.train.on_change=follow")...)
	for i := range versions {
		v := &versions[i]
		args := append(settings, "--data", filepath.Dir(e2e.Write(t, filepath.Join(t.TempDir(), "train.bin"), v.data)))
		steps := ((len(v.data)/2-1)/32 + 3) / 4
		v.batches = e2e.Digests(t, "train", 0, steps, args...)
		v.whole = e2e.Digest(e2e.Cat(t, append(args, "train", "--count", fmt.Sprint(steps))...))
	}
	lines := versions[0].batches
	versions[0].checkFiles(t, m, 0)
	worker := m.Worker(t)
	descriptors := len(e2e.OpenFiles(t, worker))
	h := e2e.StartHandles(t, m.Dir)
	for _, name := range []string{"batch/3", "batches.bin", "batches.npy", "rank=1,world=2/batches.bin", "rank=1,world=2/batches.npy", "next"} {
		h.Do("open train/%s", name)
	}
	const next = 5
	for k := range 5 {
		e2e.Equal(t, fmt.Sprint("batch of next, number ", k), h.Do("read %d 0 %d", next, size), lines[k])
	}
	// rank=1,world=2/batches.* has half as many batches and ends here. The kernel has not read its
	// end yet.
	end := len(lines) / 2 * size
	h.Do("map 4 0 %d", size)
	for changes := 1; changes <= 20; changes++ {
		v := versions[changes%2]
		e2e.ReplaceFile(t, file, v.data)
		if changes < 3 || changes == 8 || changes == 20 {
			v.checkFiles(t, m, changes)
		}
		e2e.Equal(t, fmt.Sprintf("after %d changes, number %d", changes, 4+changes), h.Do("read %d 0 %d", next, size), v.batches[4+changes])
		for way, want := range map[string]string{
			fmt.Sprintf("read 0 0 %d", size):                lines[3],
			fmt.Sprintf("read 1 %d %d", 3*size, size):       lines[3],
			fmt.Sprintf("map 2 %d %d", 4096+3*size, size):   lines[3],
			fmt.Sprintf("read 3 %d %d", end-size, size):     "",
			fmt.Sprintf("map 4 %d %d", end+4096-size, size): "",
		} {
			got := h.Do("%s", way)
			stale := got == "errno ESTALE" || got == "errno EFAULT" && strings.HasPrefix(way, "map")
			// Inode numbers in batch/ are reused after 8 changes, and the kernel marks the old
			// inode as bad.
			stale = stale || got == "errno EIO" && changes >= 8 && strings.HasPrefix(way, "read 0")
			if got != want && !stale {
				t.Errorf("%d changes after it was opened, %s: %s, want %s or ESTALE", changes, way, got, want)
			}
		}
	}
	// Garbage collection closes the files of the replaced tokens.
	e2e.Await(t, "few open files", func() (any, bool) {
		open := e2e.OpenFiles(t, worker)
		return open, len(open) <= descriptors+20
	})
}

// If one of 65 files changes, opening a batch of that file fails, and soon opening any batch of the
// split fails too. With on_change = "follow", nothing fails.
func TestOneOfSeveralFilesChanges(t *testing.T) {
	t.Parallel()
	const third = 400 // a batch that is read from the third file
	for _, onChange := range []string{"error", "follow"} {
		t.Run(onChange, func(t *testing.T) {
			dir := t.TempDir()
			for i := range 65 {
				e2e.Write(t, filepath.Join(dir, fmt.Sprintf("train%02d.bin", i)), e2e.TokensOfVersion(i%3, 20_000))
			}
			settings := []string{"--data", dir, "--set", "batch.batch_size=4", "--set", "batch.block_size=32", "--set", "batch.order=sequential"}
			m := e2e.Mount(t, append(settings, "--set", "splits.train.on_change="+onChange)...)
			h := e2e.StartHandles(t, m.Dir)
			h.Do("open train/next")
			h.Do("read 0 0 512")
			before := e2e.Digests(t, "train", 0, third+1, settings...)
			e2e.FileDigest(t, m, fmt.Sprint("train/batch/", third))
			changed := filepath.Join(dir, "train02.bin")
			e2e.NoError(t, os.Link(changed, changed+".old"))
			e2e.ReplaceFile(t, changed, e2e.TokensOfVersion(3, 20_000))
			after := e2e.Digests(t, "train", 0, third+1, settings...)
			f, err := os.Open(m.Path(fmt.Sprint("train/batch/", third)))
			if f.Close(); onChange == "error" && !errors.Is(err, syscall.ESTALE) || onChange == "follow" && err != nil {
				t.Errorf("opening a batch of the changed file: error %v, want ESTALE, or none if changes are followed", err)
			}
			for _, k := range []int{0, 1, 2, third} {
				if path := fmt.Sprint("train/batch/", k); onChange == "follow" {
					e2e.Equal(t, path, e2e.FileDigest(t, m, path), after[k])
				} else {
					e2e.CheckFails(t, "Stale file handle", "cat", m.Path(path))
				}
			}
			if onChange == "follow" {
				e2e.Equal(t, "changes in info.json", m.Info(t, "train").Changes, 1)
				return
			}
			e2e.Equal(t, "a read of next, whose rows are in another file", h.Do("read 0 0 512"), "errno ESTALE")
			e2e.NoError(t, os.Rename(changed+".old", changed))
			for _, k := range []int{0, 1, third} {
				e2e.Equal(t, fmt.Sprintf("batch %d after the old file was put back", k), e2e.FileDigest(t, m, fmt.Sprint("train/batch/", k)), before[k])
			}
			e2e.Equal(t, "next after the old file was put back", h.Do("read 0 0 512"), before[1])

			unread := filepath.Join(dir, "train64.bin")
			e2e.NoError(t, os.Link(unread, unread+".old"))
			open := func() error {
				f, err := os.Open(m.Path("train/batch/0"))
				f.Close()
				return err
			}
			e2e.ReplaceFile(t, unread, e2e.TokensOfVersion(3, 20_000))
			began := time.Now()
			e2e.Await(t, "an error because of a changed file that nobody reads", func() (any, bool) {
				err := open()
				return err, err != nil
			})
			e2e.CheckDuration(t, "noticing that", time.Since(began), 2*time.Second)
			e2e.NoError(t, os.Rename(unread+".old", unread))
			e2e.AwaitSuccess(t, "batches after the old file was put back", open)
		})
	}
}

// A mount with expect_fingerprint neither starts nor continues with other data.
func TestExpectedFingerprint(t *testing.T) {
	t.Parallel()
	e2e.NeedFUSE(t)
	dir, mountpoint := t.TempDir(), t.TempDir()
	file := filepath.Join(dir, "train.bin")
	e2e.ReplaceFile(t, file, e2e.TokensOfVersion(1, 20_000))
	bad := fingerprintOf(t, dir)
	e2e.ReplaceFile(t, file, e2e.TokensOfVersion(0, 20_000))
	right := fingerprintOf(t, dir)
	if right == bad {
		t.Fatal("two versions of the tokens have the same fingerprint")
	}
	args := []string{"--data", dir, "--set", "splits.train.expect_fingerprint=" + right}
	e2e.ReplaceFile(t, file, e2e.TokensOfVersion(1, 20_000))
	for _, background := range [][]string{nil, {"-d", "--log", filepath.Join(t.TempDir(), "log")}} {
		_, stderr, err := e2e.Try(t, slices.Concat([]string{e2e.Batchfs, "mount"}, background, args, []string{mountpoint})...)
		if err == nil || !strings.Contains(stderr, "expect_fingerprint is "+right) || !strings.Contains(stderr, bad) {
			t.Errorf("mounting other data: error %v, %q, want the fingerprints %s and %s", err, stderr, right, bad)
		}
		e2e.NotMounted(t, mountpoint)
	}
	e2e.ReplaceFile(t, file, e2e.TokensOfVersion(0, 20_000))
	m := e2e.Mount(t, append(args, "--set", "splits.train.on_change=follow")...)
	want := e2e.Read(t, "read", m.Path("train/batch/3"))[0]
	for range 2 {
		e2e.ReplaceFile(t, file, e2e.TokensOfVersion(1, 20_000))
		for _, name := range []string{"next", "batch/3"} {
			e2e.CheckFails(t, "Stale file handle", "cat", m.Path("train/"+name))
		}
		e2e.CheckLogAndStatus(t, m, "expect_fingerprint is "+right, bad)
		// The same tokens in a new file are the same data.
		e2e.ReplaceFile(t, file, e2e.TokensOfVersion(0, 20_000))
		e2e.Equal(t, "batch/3 after the data was put back", e2e.Read(t, "read", m.Path("train/batch/3"))[0], want)
	}
}

// A mount in the background also finds new files, although it has left the directory to which its
// paths are relative.
func TestFollowingInTheBackground(t *testing.T) {
	t.Parallel()
	e2e.NeedFUSE(t)
	dir, mountpoint := t.TempDir(), t.TempDir()
	file := e2e.Write(t, filepath.Join(dir, "data", "train.bin"), e2e.TokensOfVersion(0, 20_000))
	e2e.Write(t, filepath.Join(dir, "config.toml"), "[splits.train]\ntokens = \"data/train*.bin\"\non_change = \"follow\"\n")
	t.Cleanup(func() { syscall.Unmount(mountpoint, syscall.MNT_DETACH) })
	e2e.Run(t, "env", "-C", dir, e2e.Batchfs, "mount", "-d", "--log", "log", mountpoint)
	e2e.ReplaceFile(t, file, e2e.TokensOfVersion(1, 30_000))
	want := e2e.Digests(t, "train", 0, 1, "--data", filepath.Dir(file))
	// NumPy reads the header first, before any other reader has noticed the change.
	e2e.Equal(t, "next.npy", e2e.Read(t, "npload", filepath.Join(mountpoint, "train/next.npy"))[0], want[0])
	e2e.Run(t, e2e.Batchfs, "unmount", mountpoint)
}
