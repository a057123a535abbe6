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

// readers is a running clients/readers.py changing.
type readers struct {
	ways  []string
	in    io.WriteCloser
	done  chan error
	round int

	mu    sync.Mutex
	lines []reading // guarded by mu
	ended bool      // guarded by mu
}

// A reading is what a reader printed of one read, a line of what it got or an error, and the round in which it began.
type reading struct {
	round int
	way   string
	got   string
}

// startReaders starts to read files of a directory, each in one of the ways of clients/readers.py.
func startReaders(t *testing.T, dir string, ways ...string) *readers {
	t.Helper()
	c := e2e.StartClient(t, exec.Command(e2e.Python, append([]string{"clients/readers.py", "changing", dir}, ways...)...))
	r := &readers{ways: ways, in: c.In, done: make(chan error, 1), round: 1}
	go func() {
		for out := bufio.NewScanner(c.Out); out.Scan(); {
			var l reading
			round, rest, _ := strings.Cut(out.Text(), " ")
			fmt.Sscan(round, &l.round)
			l.way, l.got, _ = strings.Cut(rest, " ")
			r.mu.Lock()
			r.lines = append(r.lines, l)
			r.mu.Unlock()
		}
		err := c.Cmd.Wait()
		r.mu.Lock()
		r.ended = true
		r.mu.Unlock()
		r.done <- err
	}()
	return r
}

// next begins a round, and returns when each way has been read n times in it.
func (r *readers) next(t *testing.T, kind string, n int) {
	t.Helper()
	r.round++
	e2e.Must(fmt.Fprintln(r.in, kind))(t)
	r.wait(t, n)
}

// wait returns when each way has been read n times in the current round.
func (r *readers) wait(t *testing.T, n int) {
	t.Helper()
	r.await(t, n, 0)
}

// more returns when each way has been read n times more.
func (r *readers) more(t *testing.T, n int) {
	t.Helper()
	r.mu.Lock()
	from := len(r.lines)
	r.mu.Unlock()
	r.await(t, n, from)
}

// await returns when there are n lines of each way in the current round, from a line on.
func (r *readers) await(t *testing.T, n, from int) {
	t.Helper()
	seen := map[string]int{}
	e2e.Await(t, fmt.Sprintf("%d reads of each kind in round %d", n, r.round), func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		for ; from < len(r.lines); from++ {
			if l := r.lines[from]; l.round == r.round {
				seen[l.way]++
			}
		}
		missing := slices.ContainsFunc(r.ways, func(way string) bool { return seen[way] < n })
		if missing && r.ended {
			t.Fatalf("the readers ended after %v in round %d", seen, r.round)
		}
		return !missing
	})
}

// finish ends the readers and returns all that they read.
func (r *readers) finish(t *testing.T) []reading {
	t.Helper()
	r.in.Close()
	e2e.NoError(t, testwait.For(t, "the end of the readers", r.done))
	return r.lines
}

// A catalogue has the versions and the number of each batch, by what the readers print for that batch.
type catalogue map[string]*catalogued

type catalogued struct {
	versions []string
	k        int
}

// add adds the first n batches that `batchfs cat` gives, as of a version of the tokens.
func (c catalogue) add(t *testing.T, version, split string, n int, flags ...string) {
	t.Helper()
	for k, l := range e2e.Lines(t, split, 0, n, flags...) {
		if c[l] == nil {
			c[l] = &catalogued{k: k}
		}
		c[l].versions = append(c[l].versions, version)
	}
}

// judge fails unless each reading is a batch of a version that it may be of, or the error that it may be (or EFAULT in its
// place, of what is mapped), and no number of the next* of a directory went to two reads. It returns how many batches of each
// version, and errors, there were in each way.
func (c catalogue) judge(
	t *testing.T, lines []reading, may func(reading) (versions []string, errno string),
) (seen map[string]map[string]int) {
	t.Helper()
	seen, taken := map[string]map[string]int{}, map[string]reading{}
	for _, l := range lines {
		if seen[l.way] == nil {
			seen[l.way] = map[string]int{}
		}
		versions, errno := may(l)
		b, ok := c[l.got]
		switch {
		case l.got == "paused":
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
			if other, twice := taken[number]; twice {
				t.Errorf("number %s went to %+v and to %+v", number, other, l)
			}
			taken[number] = l
		case errno != "" && (l.got == "errno "+errno || l.got == "errno EFAULT" && strings.HasPrefix(l.way, "maps:")):
			seen[l.way][errno]++
		default:
			t.Fatalf("%+v is %+v; it may be of versions %q, or %q", l, b, versions, errno)
		}
	}
	return seen
}

var changes = []struct {
	name   string
	change func(t *testing.T, path string)
	how    string // as the log says it
}{
	{"replaced", func(t *testing.T, path string) {
		e2e.Write(t, path+".new", e2e.VersionOf(1, changeTokens))
		e2e.NoError(t, os.Link(path, path+".old"))
		e2e.NoError(t, os.Rename(path+".new", path))
	}, "another file is in its place"},
	// In one write and within a page, or else the file has other sizes meanwhile.
	{"appended", func(t *testing.T, path string) {
		f := e2e.Must(os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0))(t)
		e2e.Must(f.Write(e2e.VersionOf(1, 1000)))(t)
		e2e.NoError(t, f.Close())
	}, "402000 bytes, was 400000"},
	{"truncated", func(t *testing.T, path string) { e2e.NoError(t, os.Truncate(path, 300_000)) }, "300000 bytes, was 400000"},
	{"touched", func(t *testing.T, path string) {
		now := time.Now()
		e2e.NoError(t, os.Chtimes(path, now, now))
	}, "written to at "},
	{"overwritten", func(t *testing.T, path string) {
		f := e2e.Must(os.OpenFile(path, os.O_WRONLY, 0))(t)
		e2e.Must(f.Write(e2e.VersionOf(1, changeTokens)))(t)
		e2e.NoError(t, f.Close())
	}, "written to at "},
}

const changeTokens = 200_000

// A directory under other settings, and these settings. Its seed is another one, because a rank and its split share rows.
const other = "train/rank=1,seed=7,world=2"

var otherSettings = []string{"--set", "batch.rank=1", "--set", "batch.world=2", "--set", "batch.seed=7"}

// fingerprintOf returns the fingerprint of the split train of a directory.
func fingerprintOf(t *testing.T, dir string) string {
	t.Helper()
	return e2e.JSON[e2e.Info](t, e2e.PlainBatchfs, "inspect", "train", "0", "--json", "--data", dir).Fingerprint
}

// Whatever happens to a token file whose changes are followed, under whatever reader: a batch is all of the old tokens or all of the new, or ESTALE.
func TestTokensChangeUnderReaders(t *testing.T) {
	ways := []string{
		"opens:train/next", "keeps:train/next", "frames:train/next.npy", "numbered:train/batch", "preads:train/batches.bin",
		"maps:train/batches.npy", "opens:" + other + "/next", "numbered:train/world=2,rank=1,seed=7/batch",
		"preads:" + other + "/batches.bin",
	}
	const undisturbed = "keeps:val/next"
	for n, change := range changes {
		access := []string{"remap", "advise", "pread"}[n%3]
		t.Run(change.name+","+access, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			at := func(name string) string { return filepath.Join(dir, name) }
			file := at("live/train.bin")
			e2e.Write(t, file, e2e.VersionOf(0, changeTokens))
			e2e.Write(t, at("old/train.bin"), e2e.VersionOf(0, changeTokens))
			e2e.Write(t, at("live/val.bin"), e2e.VersionOf(2, 10_000))
			settings := []string{"--set", "batch.batch_size=4", "--set", "batch.block_size=32"}
			m := e2e.Mount(t, append(settings, "--data", at("live"), "--set", "memory.access="+access,
				"--set", "splits.train.on_change=follow")...)

			r := startReaders(t, m.Dir, append(ways, undisturbed)...)
			r.wait(t, 5)
			if change.name == "overwritten" {
				r.next(t, "pause", 1) // while it is written, the file itself is a mix
			}
			change.change(t, file)
			r.next(t, "go", 10)
			changed := r.round
			now := e2e.Content(t, file)
			e2e.Write(t, at("new/train.bin"), now)
			info, log := m.Info(t, "train"), m.Out.String()
			if change.name == "replaced" {
				r.next(t, "pause", 1)
				e2e.NoError(t, os.Rename(file+".old", file))
				r.next(t, "go", 10)
			}
			lines := r.finish(t)

			known := catalogue{}
			for path, rank := range map[string][]string{"train": {}, other: otherSettings} {
				n := max(m.Taken(t, path), 2000) // more than there are in batches.*
				for _, v := range []string{"old", "new"} {
					known.add(t, v, "train", n, slices.Concat([]string{"--data", at(v)}, settings, rank)...)
				}
			}
			known.add(t, "val", "val", m.Taken(t, "val"), append(settings, "--data", at("live"))...)
			seen := known.judge(t, lines, func(l reading) (versions []string, errno string) {
				oneRequest := strings.HasPrefix(l.way, "opens:") || strings.HasPrefix(l.way, "keeps:")
				_, file, _ := strings.Cut(l.way, ":")
				switch {
				case l.way == undisturbed:
					return []string{"val"}, ""
				case strings.HasPrefix(filepath.Base(file), "batches."): // a change shows within a second
					return []string{"old", "new"}, "ESTALE"
				case l.round < changed && oneRequest: // goes on with the new tokens by itself
					return []string{"old", "new"}, ""
				case l.round < changed:
					return []string{"old", "new"}, "ESTALE"
				case l.round > changed:
					return []string{"old"}, ""
				}
				return []string{"new"}, ""
			})
			t.Logf("%d reads: %v", len(lines), seen)

			noticed := strings.Count(log, "token files changed; now serving the new ones")
			if info.Changes != noticed || noticed == 0 || change.name == "replaced" && noticed != 1 {
				t.Errorf("info.json counts %d changes, the log %d:\n%s", info.Changes, noticed, log)
			}
			if want := fingerprintOf(t, at("new")); info.Fingerprint != want || info.Tokens != len(now)/2 {
				t.Errorf("info.json has fingerprint %s of %d tokens, want %s of %d", info.Fingerprint, info.Tokens, want, len(now)/2)
			}
		})
	}
}

// A version of the tokens, its batches and all of them together, as clients/readers.py prints them.
type version struct {
	data  []byte
	lines []string
	whole string
}

// shows fails unless each way to open a file of train shows a version, from the daemon and then from the kernel, after so many changes.
func (v version) shows(t *testing.T, m *e2e.Mounted, changes int) {
	t.Helper()
	h := e2e.StartHandles(t, m.Dir)
	for opened, name := range []string{"batch/0", "batch/3", "batch/17.npy", "batch/19.safetensors", "batches.bin", "batches.npy"} {
		want, off := v.whole, int64(0)
		if number, ok := strings.CutPrefix(name, "batch/"); ok {
			var k int
			fmt.Sscan(strings.Split(number, ".")[0], &k)
			want = v.lines[k]
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
	e2e.Equal(t, "steps in info.json", info.Steps, len(v.lines))
	e2e.Says(t, info.Fingerprint, "cat", m.Path("train/batch/3.json"))
}

// After a change, every way to open a file shows the new data at once, however much of the old the kernel has; and what
// was opened before shows nothing but the old data, however many changes there have been.
func TestOpenedBeforeAndAfterAChange(t *testing.T) {
	t.Parallel()
	const size = 512
	versions := [2]version{{data: e2e.VersionOf(0, 1_600_000)}, {data: e2e.VersionOf(1, 100_000)}}
	m, file, settings := e2e.MountFollowing(t, versions[0].data)
	for i := range versions {
		v := &versions[i]
		args := append(settings, "--data", filepath.Dir(e2e.Write(t, filepath.Join(t.TempDir(), "train.bin"), v.data)))
		steps := ((len(v.data)/2-1)/32 + 3) / 4
		v.lines = e2e.Lines(t, "train", 0, steps, args...)
		v.whole = e2e.Line(e2e.Cat(t, append(args, "train", "--count", fmt.Sprint(steps))...))
	}
	lines := versions[0].lines
	versions[0].shows(t, m, 0)
	worker := m.Worker(t)
	descriptors := len(e2e.FDs(t, worker))
	h := e2e.StartHandles(t, m.Dir)
	for _, name := range []string{"batch/3", "batches.bin", "batches.npy", "rank=1,world=2/batches.bin", "rank=1,world=2/batches.npy", "next"} {
		h.Do("open train/%s", name)
	}
	const next = 5
	for k := range 5 {
		e2e.Equal(t, fmt.Sprint("number ", k), h.Do("read %d 0 %d", next, size), lines[k])
	}
	end := len(lines) / 2 * size // of batches.* of one of two ranks; as the kernel has not read them
	h.Do("map 4 0 %d", size)
	for changes := 1; changes <= 20; changes++ {
		v := versions[changes%2]
		e2e.ReplaceFile(t, file, v.data)
		if changes < 3 || changes == 8 || changes == 20 {
			v.shows(t, m, changes)
		}
		e2e.Equal(t, fmt.Sprintf("after %d changes, number %d", changes, 4+changes), h.Do("read %d 0 %d", next, size), v.lines[4+changes])
		for what, want := range map[string]string{
			fmt.Sprintf("read 0 0 %d", size):                lines[3],
			fmt.Sprintf("read 1 %d %d", 3*size, size):       lines[3],
			fmt.Sprintf("map 2 %d %d", 4096+3*size, size):   lines[3],
			fmt.Sprintf("read 3 %d %d", end-size, size):     "",
			fmt.Sprintf("map 4 %d %d", end+4096-size, size): "",
		} {
			got := h.Do("%s", what)
			stale := got == "errno ESTALE" || got == "errno EFAULT" && strings.HasPrefix(what, "map")
			// Inodes of batch/ come round again after 8 changes, upon which the kernel gives up the old one.
			stale = stale || got == "errno EIO" && changes >= 8 && strings.HasPrefix(what, "read 0")
			if got != want && !stale {
				t.Errorf("%d changes after it was opened, %s: %s, want %s or ESTALE", changes, what, got, want)
			}
		}
	}
	// The next garbage collections close what the replaced tokens had.
	e2e.Await(t, "few open files", func() bool { return len(e2e.FDs(t, worker)) <= descriptors+20 })
}

// Data that cannot be served is an error in words, and is followed as soon as it can.
func TestFollowingWhatCannotBeServed(t *testing.T) {
	good := e2e.VersionOf(1, 60_000)
	m, file, settings := e2e.MountFollowing(t, e2e.VersionOf(0, 50_000))
	h := e2e.StartHandles(t, m.Dir)
	h.Do("open train/next")
	h.Do("read 0 0 512")
	for _, bad := range []struct {
		data []byte
		want string
	}{
		{nil, "is empty"},
		{good[:50_001], "50001 bytes are not a whole number of tokens of 2 bytes"},
		{good[:64], "32 tokens, need at least block_size+1 = 33"},
	} {
		e2e.ReplaceFile(t, file, bad.data)
		for range 2 {
			for _, name := range []string{"next", "next.npy", "batch/3", "batches.npy", "rank=1,world=2/next"} {
				e2e.Fails(t, "Stale file handle", "cat", m.Path("train/"+name))
			}
			e2e.Equal(t, fmt.Sprintf("an open next of a file that %s", bad.want), h.Do("read 0 0 512"), "errno ESTALE")
		}
		e2e.LogAndStatusSay(t, m, "the new ones cannot be served: splits.train: ", bad.want)
		if got := m.Info(t, "train"); got.Changes != 0 || got.Tokens != 50_000 {
			t.Errorf("info.json has %+v, want that of the tokens that were served", got)
		}
	}
	e2e.ReplaceFile(t, file, good)
	want := e2e.Lines(t, "train", 0, 3, append(settings, "--data", filepath.Dir(file))...)
	e2e.Equal(t, "good again, batch 1", h.Do("read 0 0 512"), want[1])
	e2e.Equal(t, "good again, batch 2", e2e.Take(t, m, "train/next"), want[2])
	if got := m.Info(t, "train"); got.Changes != 1 || got.Tokens != 60_000 {
		t.Errorf("info.json has %+v", got)
	}
}

// A change of one of 65 files is an error of opening a batch of that file at once, and then one of the split, also of reading only what lies in
// the others. Where changes are followed, it is none.
func TestOneOfSeveralFilesChanges(t *testing.T) {
	const third = 400 // a batch of the third file
	for _, onChange := range []string{"error", "follow"} {
		t.Run(onChange, func(t *testing.T) {
			dir := t.TempDir()
			for i := range 65 {
				e2e.Write(t, filepath.Join(dir, fmt.Sprintf("train%02d.bin", i)), e2e.VersionOf(i%3, 20_000))
			}
			settings := []string{"--data", dir, "--set", "batch.batch_size=4", "--set", "batch.block_size=32", "--set", "batch.order=sequential"}
			m := e2e.Mount(t, append(settings, "--set", "splits.train.on_change="+onChange)...)
			h := e2e.StartHandles(t, m.Dir)
			h.Do("open train/next")
			h.Do("read 0 0 512")
			before := e2e.Lines(t, "train", 0, third+1, settings...)
			e2e.Take(t, m, fmt.Sprint("train/batch/", third))
			changed := filepath.Join(dir, "train02.bin")
			e2e.NoError(t, os.Link(changed, changed+".old"))
			e2e.ReplaceFile(t, changed, e2e.VersionOf(3, 20_000))
			now := e2e.Lines(t, "train", 0, third+1, settings...)
			f, err := os.Open(m.Path(fmt.Sprint("train/batch/", third)))
			if f.Close(); onChange == "error" && !errors.Is(err, syscall.ESTALE) || onChange == "follow" && err != nil {
				t.Errorf("to open a batch of the changed file: %v", err)
			}
			for _, k := range []int{0, 1, 2, third} {
				if path := fmt.Sprint("train/batch/", k); onChange == "follow" {
					e2e.Equal(t, path, e2e.Take(t, m, path), now[k])
				} else {
					e2e.Fails(t, "Stale file handle", "cat", m.Path(path))
				}
			}
			if onChange == "follow" {
				e2e.Equal(t, "changes in info.json", m.Info(t, "train").Changes, 1)
				return
			}
			e2e.Equal(t, "next, all of whose rows are in another file", h.Do("read 0 0 512"), "errno ESTALE")
			e2e.NoError(t, os.Rename(changed+".old", changed))
			for _, k := range []int{0, 1, third} {
				e2e.Equal(t, fmt.Sprintf("put back, batch %d", k), e2e.Take(t, m, fmt.Sprint("train/batch/", k)), before[k])
			}
			e2e.Equal(t, "put back, next goes on with", h.Do("read 0 0 512"), before[1])

			unread := filepath.Join(dir, "train64.bin")
			e2e.NoError(t, os.Link(unread, unread+".old"))
			opens := func() bool {
				f, err := os.Open(m.Path("train/batch/0"))
				f.Close()
				return err == nil
			}
			e2e.ReplaceFile(t, unread, e2e.VersionOf(3, 20_000))
			began := time.Now()
			e2e.Await(t, "an error because a file has changed that nobody reads", func() bool { return !opens() })
			e2e.InTime(t, "to notice that", time.Since(began), 2*time.Second)
			e2e.NoError(t, os.Rename(unread+".old", unread))
			e2e.Await(t, "batches after it was put back", opens)
		})
	}
}

// A run that says which data it began with resumes with no other.
func TestExpectedFingerprint(t *testing.T) {
	e2e.NeedFUSE(t)
	dir, mountpoint := t.TempDir(), t.TempDir()
	file := filepath.Join(dir, "train.bin")
	e2e.ReplaceFile(t, file, e2e.VersionOf(1, 20_000))
	bad := fingerprintOf(t, dir)
	e2e.ReplaceFile(t, file, e2e.VersionOf(0, 20_000))
	right := fingerprintOf(t, dir)
	if right == bad {
		t.Fatal("other tokens have the same fingerprint")
	}
	args := []string{"--data", dir, "--set", "splits.train.expect_fingerprint=" + right}
	e2e.ReplaceFile(t, file, e2e.VersionOf(1, 20_000))
	for _, background := range [][]string{nil, {"-d", "--log", filepath.Join(t.TempDir(), "log")}} {
		_, stderr, err := e2e.Try(t, slices.Concat([]string{e2e.Batchfs, "mount"}, background, args, []string{mountpoint})...)
		if err == nil || !strings.Contains(stderr, "expect_fingerprint is "+right) || !strings.Contains(stderr, bad) {
			t.Errorf("mounting other data: %v %q, want both %s and %s", err, stderr, right, bad)
		}
		if e2e.IsMounted(t, mountpoint) {
			t.Error("mounted")
			e2e.Run(t, e2e.Batchfs, "unmount", mountpoint)
		}
	}
	e2e.ReplaceFile(t, file, e2e.VersionOf(0, 20_000))
	m := e2e.Mount(t, append(args, "--set", "splits.train.on_change=follow")...)
	want := e2e.Read(t, "read", m.Path("train/batch/3"))[0]
	for range 2 {
		e2e.ReplaceFile(t, file, e2e.VersionOf(1, 20_000))
		for _, name := range []string{"next", "batch/3"} {
			e2e.Fails(t, "Stale file handle", "cat", m.Path("train/"+name))
		}
		e2e.LogAndStatusSay(t, m, "expect_fingerprint is "+right, bad)
		// The same tokens in another file are the same data.
		e2e.ReplaceFile(t, file, e2e.VersionOf(0, 20_000))
		e2e.Equal(t, "with the data back, batch/3", e2e.Read(t, "read", m.Path("train/batch/3"))[0], want)
	}
}

// A mount in the background, which has left the directory that its paths are relative to, finds the new files too.
func TestFollowingInTheBackground(t *testing.T) {
	e2e.NeedFUSE(t)
	dir, mountpoint := t.TempDir(), t.TempDir()
	file := e2e.Write(t, filepath.Join(dir, "data", "train.bin"), e2e.VersionOf(0, 20_000))
	e2e.Write(t, filepath.Join(dir, "config.toml"), "[splits.train]\ntokens = \"data/train*.bin\"\non_change = \"follow\"\n")
	t.Cleanup(func() { syscall.Unmount(mountpoint, syscall.MNT_DETACH) })
	e2e.Run(t, "env", "-C", dir, e2e.Batchfs, "mount", "-d", "--log", "log", mountpoint)
	e2e.ReplaceFile(t, file, e2e.VersionOf(1, 30_000))
	want := e2e.Lines(t, "train", 0, 1, "--data", filepath.Dir(file))
	// NumPy reads the header first, and no other reader has noticed the change.
	e2e.Equal(t, "next.npy", e2e.Read(t, "npload", filepath.Join(mountpoint, "train/next.npy"))[0], want[0])
	e2e.Run(t, e2e.Batchfs, "unmount", mountpoint)
}
