// Package top observes the mounts of a machine, for batchfs top and batchfs list. It reads their
// shared memory and /proc. It never accesses files in a mount, so a stuck mount cannot block it.
package top

import (
	"cmp"
	"errors"
	"os"
	"slices"
	"strings"
	"time"

	"batchfs/cmd/batchfs/metrics"
	"batchfs/fs/mount"
	"batchfs/fs/state"
	"batchfs/internal/process"
)

// A Mount is the state of a batchfs mount at one moment. If the mount is dead, or this user may not
// inspect it, only the first group of fields is set. A Mount belongs to one goroutine.
type Mount struct {
	Mountpoint string `json:"mountpoint"`
	// State is serving, stuck, dead, elsewhere (in another PID namespace) or closed (to this user).
	State      string `json:"state"`
	Supervisor int    `json:"supervisor"` // process ID
	User       int    `json:"user"`       // ID of the user who mounted

	Version   string            `json:"version,omitempty"`
	Uptime    float64           `json:"uptime_seconds,omitempty"`
	Takeovers uint64            `json:"takeovers"`
	Waiting   int64             `json:"requests_waiting"` // requests waiting for others to end
	Store     *StoreStats       `json:"store,omitempty"`  // nil if no store has been used
	Processes []metrics.Process `json:"processes,omitempty"`
	Sequences []*SequenceStats  `json:"sequences,omitempty"`
}

// StoreStats holds the counters of the stores that a mount reads, and of its block cache.
type StoreStats struct {
	Fetched  int64 `json:"fetched_bytes"`
	Requests int64 `json:"requests"`
	Retries  int64 `json:"retries"`
	Errors   int64 `json:"errors"`
	Hits     int64 `json:"cache_hits"`          // reads of blocks in the cache
	Waits    int64 `json:"cache_waits"`         // reads that waited for a block
	Unstored int64 `json:"cache_full_blocks"`   // dropped: the cache was full
	Failed   int64 `json:"cache_failed_blocks"` // dropped: the disk failed
	Slow     int64 `json:"cache_slow_blocks"`   // dropped: the disk was too slow
	Used     int64 `json:"cache_bytes"`
	Limit    int64 `json:"cache_limit_bytes"`  // 0 without a cache directory
	Needed   int64 `json:"cache_needed_bytes"` // bytes needed in an epoch
	Stored   int64 `json:"cache_stored_bytes"` // the cached part of Needed

	// Rates is nil at the first poll.
	Rates *StoreRates `json:"rates,omitempty"`
}

// Resident returns the resident memory of all processes of the mount, in bytes.
func (m *Mount) Resident() (n int64) {
	for _, p := range m.Processes {
		n += p.Resident
	}
	return n
}

// SequenceStats holds the counters of a sequence that is open in a mount, and the rates at which
// they grew since an earlier poll. It belongs to one goroutine.
type SequenceStats struct {
	Name      string    `json:"name"`
	Cursor    uint64    `json:"cursor"`
	Epoch     *float64  `json:"epoch"` // epochs up to the cursor; nil if the order has none
	Batches   uint64    `json:"batches"`
	Bytes     uint64    `json:"bytes"`
	Reads     uint64    `json:"reads"`
	Ready     uint64    `json:"ready_reads"`
	Errors    uint64    `json:"errors"`
	LastError string    `json:"last_error,omitempty"`
	Readers   []*Reader `json:"readers"` // readers of next; others are not visible
	Rates     *Rates    `json:"rates,omitempty"`
	waits     [len(state.WaitBounds) + 1]uint64
}

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
	var w watcher
	defer w.close()
	return w.poll(mountpoint)
}

// A watcher polls mounts repeatedly. Because it is expensive to find mounts and to map their
// memory, it does so only every few seconds.
type watcher struct {
	found   []*watchedMount
	foundAt time.Time
}

type watchedMount struct {
	*mount.Mounted
	shared *state.Shared // nil if err is not nil
	err    error
}

const findInterval = 5 * time.Second

func (w *watcher) close() {
	for _, m := range w.found {
		if m.shared != nil {
			m.shared.Close()
		}
	}
	w.found = nil
}

func (w *watcher) poll(mountpoint string) (mounts []*Mount, err error) {
	if time.Since(w.foundAt) > findInterval {
		w.close()
		all, err := mount.All()
		if err != nil {
			return nil, err
		}
		for _, m := range all {
			if mountpoint == "" || m.Mountpoint == mountpoint {
				shared, err := m.State()
				w.found = append(w.found, &watchedMount{m, shared, err})
			}
		}
		w.foundAt = time.Now()
	}
	for _, m := range w.found {
		mounts = append(mounts, m.poll())
	}
	slices.SortFunc(mounts, func(a, b *Mount) int { return strings.Compare(a.Mountpoint, b.Mountpoint) })
	return mounts, nil
}

func (w *watchedMount) poll() *Mount {
	m := &Mount{Mountpoint: w.Mountpoint, State: w.state(), Supervisor: w.Supervisor, User: w.Owner}
	s := w.shared
	if s == nil || m.State == "dead" {
		return m
	}
	m.Version, m.Uptime = s.Program(), time.Since(time.Unix(0, s.Began)).Seconds()
	m.Takeovers, m.Waiting = max(s.Workers.Load(), 1)-1, s.Gauges.Waiting.Load()
	m.Store = storeStatsOf(s)
	m.Processes = metrics.Processes(s)
	readers := readersOf(s)
	for _, open := range metrics.OpenSequences(s) {
		m.Sequences = append(m.Sequences, sequenceStatsOf(s, open, readers[open.Number]))
	}
	return m
}

func (w *watchedMount) state() string {
	err := cmp.Or(w.CheckAlive(), w.err)
	switch {
	case errors.Is(err, mount.ErrElsewhere):
		return "elsewhere"
	case errors.Is(err, os.ErrPermission):
		return "closed"
	case err != nil:
		return "dead"
	case w.IsStopped(), w.shared.SinceHeartbeat() > 3*time.Second, len(w.shared.Unresponsive()) > 0:
		return "stuck"
	}
	return "serving"
}

func storeStatsOf(s *state.Shared) *StoreStats {
	if s.Store.Requests.Load() == 0 {
		return nil
	}
	return &StoreStats{
		Fetched: s.Store.Bytes.Load(), Requests: s.Store.Requests.Load(), Retries: s.Store.Retries.Load(), Errors: s.Store.Errors.Load(),
		Hits: s.Blocks.Hits.Load(), Waits: s.Blocks.Waits.Load(), Unstored: s.Blocks.Full.Load(), Failed: s.Writes.Failed.Load(), Slow: s.Writes.Slow.Load(),
		Used: s.Gauges.CacheUsed.Load(), Limit: s.Gauges.CacheLimit.Load(), Needed: s.Gauges.CacheNeeded.Load(), Stored: s.Gauges.CacheStored.Load(),
	}
}

func sequenceStatsOf(shared *state.Shared, open metrics.OpenSequence, readers []*Reader) *SequenceStats {
	s := &SequenceStats{
		Name: strings.TrimSuffix(open.Split+"/"+open.Settings, "/"), Cursor: open.Next(), Batches: open.Begun.Load(), Bytes: open.Bytes.Load(),
		Reads: open.Reads.Load(), Ready: open.Prefetched.Load(), Errors: open.Errors.Load(), LastError: open.LastError(), Readers: readers,
	}
	if batches := shared.EpochBatches(open.Number); batches > 0 {
		epoch := float64(s.Cursor) / float64(batches)
		s.Epoch = &epoch
	}
	for i := range s.waits {
		s.waits[i] = open.ReplyTimes.Buckets[i].Load()
	}
	return s
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
