package figures

import (
	"cmp"
	"errors"
	"os"
	"slices"
	"strings"
	"time"

	"batchfs/fs/mount"
	"batchfs/fs/state"
	"batchfs/internal/process"
)

// A Reader is a process that reads next. It belongs to one goroutine.
type Reader struct {
	PID            int      `json:"pid"`
	Command        string   `json:"command"`
	Waited         float64  `json:"waited_seconds"`
	Gap            float64  `json:"gap_seconds"`
	WaitedFraction *float64 `json:"waited_fraction"` // since an earlier poll; nil if unknown
}

// Mounts returns the mounts of this machine or, if mountpoint is not empty, only the one there.
func Mounts(mountpoint string) ([]*Mount, error) {
	var p Poller
	defer p.Close()
	return p.Poll(mountpoint)
}

// A Poller polls mounts repeatedly. Because it is expensive to find mounts and to map their memory,
// it does so only every few seconds. It belongs to one goroutine.
type Poller struct {
	found   []*foundMount
	foundAt time.Time
}

type foundMount struct {
	*mount.Mounted
	shared *state.Shared // nil if err is not nil
	err    error
}

const findInterval = 5 * time.Second

// Close releases the memory of the mounts.
func (p *Poller) Close() {
	for _, m := range p.found {
		if m.shared != nil {
			m.shared.Close()
		}
	}
	p.found = nil
}

// Poll is like Mounts.
func (p *Poller) Poll(mountpoint string) (mounts []*Mount, err error) {
	if time.Since(p.foundAt) > findInterval {
		p.Close()
		all, err := mount.All()
		if err != nil {
			return nil, err
		}
		for _, m := range all {
			if mountpoint == "" || m.Mountpoint == mountpoint {
				shared, err := m.State()
				p.found = append(p.found, &foundMount{m, shared, err})
			}
		}
		p.foundAt = time.Now()
	}
	for _, m := range p.found {
		mounts = append(mounts, m.poll())
	}
	slices.SortFunc(mounts, func(a, b *Mount) int { return strings.Compare(a.Mountpoint, b.Mountpoint) })
	return mounts, nil
}

func (f *foundMount) poll() *Mount {
	m, s := new(Mount), f.state()
	if f.shared != nil && s != "dead" {
		m = Of(f.shared)
		m.Processes = Processes(f.shared)
		readers := readersOf(f.shared)
		for q := range Sequences(f.shared) {
			q.Readers = readers[q.Number]
			m.Sequences = append(m.Sequences, q)
		}
	}
	m.Mountpoint, m.State, m.Supervisor, m.User = f.Mountpoint, s, f.Supervisor, f.Owner
	return m
}

func (f *foundMount) state() string {
	err := cmp.Or(f.CheckAlive(), f.err)
	switch {
	case errors.Is(err, mount.ErrElsewhere):
		return "elsewhere"
	case errors.Is(err, os.ErrPermission):
		return "closed"
	case err != nil:
		return "dead"
	case f.IsStopped(), f.shared.SinceHeartbeat() > state.StuckAfter, len(f.shared.Unresponsive()) > 0:
		return "stuck"
	}
	return "serving"
}

// readerTTL is how long a process is shown after it has ended.
const readerTTL = 5 * time.Second

// readersOf returns the processes that read next, by the number of their sequence. All threads of a
// process are one reader.
func readersOf(shared *state.Shared) map[int][]*Reader {
	all := map[int][]*Reader{}
	stats := shared.Readers()
	for i := range stats {
		s := &stats[i]
		if !s.HasRead() {
			continue
		}
		number, thread := int(s.Sequence.Load()), int(s.Thread.Load())
		waits, since := s.Since()
		pid, command := process.OfThread(thread)
		if number == 0 || command == "" && since > readerTTL {
			continue
		}
		index := slices.IndexFunc(all[number], func(r *Reader) bool { return r.PID == pid })
		if index < 0 {
			index, all[number] = len(all[number]), append(all[number], &Reader{PID: pid, Command: command})
		}
		r := all[number][index]
		r.Waited += time.Duration(s.Waited.Load()).Seconds()
		r.Gap += time.Duration(s.Gap.Load()).Seconds()
		if waits {
			r.Waited += since.Seconds()
		} else {
			r.Gap += since.Seconds()
		}
	}
	return all
}
