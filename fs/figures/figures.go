// Package figures gathers the figures of mounts that list, top, metrics and status.json show. It
// reads the shared memory of a mount and /proc, but never files in a mount, so a stuck mount cannot
// block it.
package figures

import (
	"iter"
	"strings"
	"time"

	"batchfs/cache/counts"
	"batchfs/fs/state"
	"batchfs/internal/process"
)

// A Mount holds the figures of a mount at one moment. Counts include those of workers that have
// died. It belongs to one goroutine.
type Mount struct {
	// Only Mounts and Poller set these.
	Mountpoint string `json:"mountpoint"`
	// State is serving, stuck, dead, elsewhere (in another PID namespace) or closed (to this user).
	State      string `json:"state"`
	Supervisor int    `json:"supervisor"` // process ID
	User       int    `json:"user"`       // ID of the user who mounted

	// The other fields are zero if the mount is dead, or if this user may not inspect it.

	Version     string  `json:"version,omitempty"`            // of the serving batchfs
	Began       float64 `json:"start_time_seconds,omitempty"` // since 1970
	Uptime      float64 `json:"uptime_seconds,omitempty"`
	Workers     uint64  `json:"workers,omitempty"` // workers so far, including the current one
	Takeovers   uint64  `json:"takeovers"`
	Crashes     uint64  `json:"worker_crashes,omitempty"`        // workers that crashed or hung
	Silent      float64 `json:"worker_silent_seconds,omitempty"` // since its last answer
	Requests    uint64  `json:"requests,omitempty"`              // answered requests
	Waiting     int64   `json:"requests_waiting"`                // requests that wait for others
	LongestWait float64 `json:"longest_wait_seconds,omitempty"`  // for token files; 0 below 1 s
	Errors      uint64  `json:"errors,omitempty"`                // failures outside sequences
	ReplyBytes  int64   `json:"reply_bytes,omitempty"`           // memory for large replies
	Mapped      int64   `json:"mapped_reads,omitempty"`          // reads from a mapping
	Busy        int64   `json:"busy_reads,omitempty"`            // another read was mapping a file
	Unmapped    int64   `json:"unmapped_reads,omitempty"`        // the file could not be mapped
	Store       Store   `json:"store,omitzero"`

	// Of does not set these, which take longer.
	Processes []Process   `json:"processes,omitempty"`
	Sequences []*Sequence `json:"sequences,omitempty"`
}

// Resident returns the resident memory of all processes of the mount, in bytes.
func (m *Mount) Resident() (n int64) {
	for _, p := range m.Processes {
		n += p.Resident
	}
	return n
}

// A Store holds the figures of the stores that a mount reads, and of its block cache.
type Store struct {
	Fetched  int64 `json:"fetched_bytes"`
	Requests int64 `json:"requests"`
	Retries  int64 `json:"retries"`
	Errors   int64 `json:"errors"`

	// ResponseTimes counts requests by the time to the header of the response: below 1 ms, 2 ms,
	// 4 ms and so on. The last element has the rest.
	ResponseTimes   [len(counts.Store{}.Buckets)]uint64 `json:"-"`
	ResponseSeconds float64                             `json:"-"` // sum

	Hits        int64   `json:"cache_hits"`  // reads of blocks in the cache
	Waits       int64   `json:"cache_waits"` // reads that waited for a block
	WaitSeconds float64 `json:"cache_wait_seconds"`
	Full        int64   `json:"cache_full_blocks"`    // not cached: the cache was full
	Present     int64   `json:"cache_present_blocks"` // not cached: another process was faster
	Failed      int64   `json:"cache_failed_blocks"`  // not cached: the disk failed
	Slow        int64   `json:"cache_slow_blocks"`    // not cached: the disk was too slow
	Used        int64   `json:"cache_bytes"`
	Limit       int64   `json:"cache_limit_bytes"`  // 0 without a cache directory
	Needed      int64   `json:"cache_needed_bytes"` // bytes needed in an epoch
	Stored      int64   `json:"cache_stored_bytes"` // the cached part of Needed
	DiskFree    int64   `json:"cache_disk_free_bytes"`
	Disk        int64   `json:"cache_disk_bytes"` // size of the disk

	// Rates is nil at the first poll.
	Rates *StoreRates `json:"rates,omitempty"`
}

// IsZero reports whether no store has been used.
func (s Store) IsZero() bool { return s.Requests == 0 }

// A Process describes a process of a mount.
type Process struct {
	Name     string `json:"name"` // supervisor, worker or standby
	PID      int    `json:"pid"`
	Resident int64  `json:"resident_bytes"`
}

// A Sequence holds the figures of an open sequence: of a split, or of a settings directory that the
// kernel knows. It belongs to one goroutine.
type Sequence struct {
	Name            string   `json:"name"` // path of its directory in the mount
	Split, Settings string   `json:"-"`    // the two parts of Name
	Number          int      `json:"number"`
	Cursor          uint64   `json:"cursor"`
	CursorMoved     bool     `json:"-"`
	Epoch           *float64 `json:"epoch"` // epochs up to the cursor; nil if the order has none
	Batches         uint64   `json:"batches"`
	Bytes           uint64   `json:"bytes"`
	Reads           uint64   `json:"reads"`
	Ready           uint64   `json:"ready_reads"`
	Returned        uint64   `json:"returned_numbers"`
	Errors          uint64   `json:"errors"`
	LastError       string   `json:"last_error,omitempty"`
	Waited          float64  `json:"reader_wait_seconds"`
	Gap             float64  `json:"reader_gap_seconds"`

	// Waits counts requests for next by the first of state.WaitBounds above the time to their
	// replies. The last element has the rest.
	Waits       [len(state.WaitBounds) + 1]uint64 `json:"-"`
	WaitSeconds float64                           `json:"-"` // sum

	Fingerprint string   `json:"fingerprint"`
	Phase       int      `json:"stage,omitempty"`
	Sources     []Source `json:"sources,omitempty"` // the first 64 of a split that is a mixture

	Readers []*Reader `json:"readers"` // readers of next, set by Poller; others are not visible
	Rates   *Rates    `json:"rates,omitempty"`
}

// A Source holds the figures of a source of a mixture, under all settings.
type Source struct {
	Name   string  `json:"name"`
	Rows   uint64  `json:"rows"`
	Weight float64 `json:"weight"` // fraction of all rows in the current phase
}

// Of returns the figures of a mount, without its processes and sequences.
func Of(shared *state.Shared) *Mount {
	m := &Mount{
		Version: shared.Program(), Began: seconds(shared.Began), Uptime: time.Since(time.Unix(0, shared.Began)).Seconds(),
		Workers: shared.Workers.Load(), Crashes: shared.Crashes.Load(), Silent: shared.SinceHeartbeat().Seconds(),
		Requests: shared.Replies.Load(), Waiting: shared.Gauges.Waiting.Load(), Errors: shared.Sequences[0].Errors.Load(),
		ReplyBytes: shared.ReplyBytes.Load(),
		Mapped:     shared.Maps.Mapped.Load(), Busy: shared.Maps.Busy.Load(), Unmapped: shared.Maps.Unmapped.Load(),
		Store: storeOf(shared),
	}
	m.Takeovers = max(m.Workers, 1) - 1
	for _, d := range shared.Unresponsive() {
		m.LongestWait = max(m.LongestWait, d.Seconds())
	}
	return m
}

func seconds[N int64 | uint64](nanoseconds N) float64 {
	return float64(nanoseconds) / float64(time.Second)
}

func storeOf(shared *state.Shared) Store {
	s, gauges := &shared.Store, &shared.Gauges
	store := Store{
		Fetched: s.Bytes.Load(), Requests: s.Requests.Load(), Retries: s.Retries.Load(), Errors: s.Errors.Load(), ResponseSeconds: seconds(s.Nanos.Load()),
		Hits: shared.Blocks.Hits.Load(), Waits: shared.Blocks.Waits.Load(), WaitSeconds: seconds(shared.Blocks.WaitNanos.Load()), Full: shared.Blocks.Full.Load(),
		Present: shared.Writes.Present.Load(), Failed: shared.Writes.Failed.Load(), Slow: shared.Writes.Slow.Load(),
		Used: gauges.CacheUsed.Load(), Limit: gauges.CacheLimit.Load(), Needed: gauges.CacheNeeded.Load(), Stored: gauges.CacheStored.Load(),
		DiskFree: gauges.CacheFree.Load(), Disk: gauges.CacheDisk.Load(),
	}
	for i := range s.Buckets {
		store.ResponseTimes[i] = s.Buckets[i].Load()
	}
	return store
}

// Processes returns the live processes of a mount.
func Processes(shared *state.Shared) (all []Process) {
	seen := map[int64]bool{0: true}
	for _, p := range []struct {
		name string
		pid  int64
	}{{"supervisor", shared.Supervisor.Load()}, {"worker", shared.Worker.Load()}, {"standby", shared.Standby.Load()}} {
		if bytes := process.Resident(int(p.pid)); bytes > 0 && !seen[p.pid] {
			seen[p.pid] = true
			all = append(all, Process{p.name, int(p.pid), bytes})
		}
	}
	return all
}

// Sequences yields the open sequences by number. It skips repeated names, which can occur because
// sequences may be added and removed at the same time.
func Sequences(shared *state.Shared) iter.Seq[*Sequence] {
	return func(yield func(*Sequence) bool) {
		seen := map[string]bool{}
		for n := range shared.SequencesUsed() {
			name, lastError := shared.TextsOf(n + 1)
			name = strings.ToValidUTF8(name, "?")
			if name == "" || seen[name] || isSettings(name) && shared.Sequences[n+1].Lookups.Load() == 0 {
				continue
			}
			seen[name] = true
			if !yield(sequenceOf(shared, n+1, name, lastError)) {
				return
			}
		}
	}
}

func isSettings(name string) bool { return strings.Contains(name, "/") }

// IdleSettings returns the number of settings directories that are not open. They remain because
// their cursors have moved.
func IdleSettings(shared *state.Shared) (n int) {
	for number := range shared.SequencesUsed() {
		if name, _ := shared.TextsOf(number + 1); isSettings(name) && shared.Sequences[number+1].Lookups.Load() == 0 {
			n++
		}
	}
	return n
}

func sequenceOf(shared *state.Shared, number int, name, lastError string) *Sequence {
	q := &shared.Sequences[number]
	s := &Sequence{
		Name: name, Number: number, Cursor: q.Next(), CursorMoved: q.CursorMoved(), Batches: q.Begun.Load(), Bytes: q.Bytes.Load(),
		Reads: q.Reads.Load(), Ready: q.Prefetched.Load(), Returned: q.NumbersReturned.Load(), Errors: q.Errors.Load(), LastError: lastError,
		Waited: seconds(q.Waited.Load()), Gap: seconds(q.Gap.Load()), WaitSeconds: seconds(q.ReplyTimes.Sum.Load()),
		Fingerprint: shared.Fingerprint(number),
	}
	s.Split, s.Settings, _ = strings.Cut(name, "/")
	if batches := shared.EpochBatches(number); batches > 0 {
		epoch := float64(s.Cursor) / float64(batches)
		s.Epoch = &epoch
	}
	for i := range s.Waits {
		s.Waits[i] = q.ReplyTimes.Buckets[i].Load()
	}
	if s.Settings != "" {
		return s
	}
	s.Phase = shared.Phase(number)
	for i := range shared.RowsBySource[number] {
		if name := shared.SourceName(number, i); name != "" {
			r := &shared.RowsBySource[number][i]
			s.Sources = append(s.Sources, Source{name, r.Rows.Load(), r.Weight()})
		}
	}
	return s
}
