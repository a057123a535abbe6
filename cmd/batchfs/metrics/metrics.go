// Package metrics exports a mount's counters in the text format of Prometheus, as the file metrics
// in the mount and over HTTP. It reads only the shared memory, so any process of the mount can
// serve the metrics, and counters survive a worker's death.
package metrics

import (
	"bytes"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"batchfs/fs/state"
	"batchfs/internal/process"
)

// Handler returns a handler that serves the current metrics. It is safe for concurrent use.
func Handler(shared *state.Shared) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector{shared})
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
}

// textUnit is the granularity of Text's length, in bytes. Because of the padding, the file's size
// rarely changes between stat and read.
const textUnit = 4096

// Text returns the current metrics, padded with empty lines to a multiple of 4096 bytes.
func Text(shared *state.Shared) []byte {
	w := responseBuffer{header: http.Header{}}
	Handler(shared).ServeHTTP(&w, &http.Request{Method: http.MethodGet, Header: http.Header{}})
	return append(w.Bytes(), bytes.Repeat([]byte("\n"), textUnit-w.Len()%textUnit)...)
}

// A responseBuffer is an http.ResponseWriter that keeps the body.
type responseBuffer struct {
	bytes.Buffer
	header http.Header
}

func (b *responseBuffer) Header() http.Header { return b.header }
func (b *responseBuffer) WriteHeader(int)     {}

type collector struct{ *state.Shared }

type (
	shared        = *state.Shared
	sequenceState = *state.SequenceState
)

// A metric has one value per mount (T is shared) or one per sequence (T is sequenceState).
type metric[T any] struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(T) float64
}

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("batchfs_"+name, help, labels, nil)
}

func gauge[T any, N int64 | uint64 | float64](name, help string, value func(T) N) metric[T] {
	var labels []string
	if _, isOfSequence := any(*new(T)).(sequenceState); isOfSequence {
		labels = sequenceLabels
	}
	return metric[T]{describe(name, help, labels...), prometheus.GaugeValue, func(t T) float64 { return float64(value(t)) }}
}

func counter[T any, N int64 | uint64 | float64](name, help string, value func(T) N) metric[T] {
	m := gauge(name+"_total", help, value)
	m.kind = prometheus.CounterValue
	return m
}

var mountMetrics = []metric[shared]{
	gauge("start_time_seconds", "Start time of the mount, in seconds since 1970.", func(s shared) float64 { return seconds(s.Began) }),
	gauge("worker_silent_seconds", "Time since the worker last answered its supervisor.", func(s shared) float64 { return s.SinceHeartbeat().Seconds() }),
	counter("requests", "Kernel requests that were answered.", func(s shared) uint64 { return s.Replies.Load() }),
	counter("takeovers", "Number of times that another worker took over.", func(s shared) uint64 { return max(s.Workers.Load(), 1) - 1 }),
	counter("worker_crashes", "Workers that crashed or hung.", func(s shared) uint64 { return s.Crashes.Load() }),
	counter("unmapped_reads", "Reads of token files that could not be mapped, and were read with pread.", func(s shared) int64 { return s.Maps.Unmapped.Load() }),
	gauge("requests_waiting", "Requests that wait until other requests have finished using token files.", func(s shared) int64 { return s.Gauges.Waiting.Load() }),
	gauge("longest_wait_seconds", "How long the longest request has waited for token files, if more than a second.", longestWait),
	gauge("cache_bytes", "Bytes in the block cache, which other mounts may share.", func(s shared) int64 { return s.Gauges.CacheUsed.Load() }),
	gauge("cache_limit_bytes", "Maximum size of the block cache (store.cache_bytes); 0 without a cache.", func(s shared) int64 { return s.Gauges.CacheLimit.Load() }),
	gauge("cache_needed_bytes", "Bytes of blocks that the cache's readers need for one epoch.", func(s shared) int64 { return s.Gauges.CacheNeeded.Load() }),
	gauge("cache_stored_bytes", "Bytes of needed blocks that are in the cache.", func(s shared) int64 { return s.Gauges.CacheStored.Load() }),
	gauge("cache_disk_free_bytes", "Free bytes on the disk of the block cache.", func(s shared) int64 { return s.Gauges.CacheFree.Load() }),
	gauge("cache_disk_bytes", "Size of the disk of the block cache.", func(s shared) int64 { return s.Gauges.CacheDisk.Load() }),
	counter("cache_hits", "Reads of blocks that were in the cache.", func(s shared) int64 { return s.Blocks.Hits.Load() }),
	counter("cache_waits", "Reads that waited for a block to be fetched.", func(s shared) int64 { return s.Blocks.Waits.Load() }),
	counter("cache_wait_seconds", "Time that reads waited for blocks to be fetched.", func(s shared) float64 { return seconds(s.Blocks.WaitNanos.Load()) }),
	counter("cache_full_blocks", "Fetched blocks that did not fit into the cache.", func(s shared) int64 { return s.Blocks.Full.Load() }),
	counter("cache_present_blocks", "Fetched blocks that another process had written first.", func(s shared) int64 { return s.Writes.Present.Load() }),
	counter("cache_failed_blocks", "Fetched blocks that were not cached because the directory could not be written.", func(s shared) int64 { return s.Writes.Failed.Load() }),
	counter("cache_slow_blocks", "Fetched blocks that were not cached because the disk was too slow.", func(s shared) int64 { return s.Writes.Slow.Load() }),
	counter("store_fetched_bytes", "Bytes fetched from stores.", func(s shared) int64 { return s.Store.Bytes.Load() }),
	counter("store_retries", "Requests to stores that were retries.", func(s shared) int64 { return s.Store.Retries.Load() }),
	counter("store_errors", "Requests to stores that failed with status 429 or 5xx, or without a response.", func(s shared) int64 { return s.Store.Errors.Load() }),
}

var sequenceMetrics = []metric[sequenceState]{
	gauge("cursor", "Number of the batch that the next reader of next gets.", sequenceState.Next),
	counter("batches", "Batches that readers began to read.", func(s sequenceState) uint64 { return s.Begun.Load() }),
	counter("reads", "Requests that were answered with data of batches.", func(s sequenceState) uint64 { return s.Reads.Load() }),
	counter("ready_reads", "Requests that were answered from prefetched batches.", func(s sequenceState) uint64 { return s.Prefetched.Load() }),
	counter("read_bytes", "Bytes of batches that readers received.", func(s sequenceState) uint64 { return s.Bytes.Load() }),
	counter("reader_wait_seconds", "Time that readers of next waited, from their second request on.", func(s sequenceState) float64 { return seconds(s.Waited.Load()) }),
	counter("reader_gap_seconds", "Time that readers of next spent between requests.", func(s sequenceState) float64 { return seconds(s.Gap.Load()) }),
	counter("returned_numbers", "Batch numbers that failed reads returned to the cursor.", func(s sequenceState) uint64 { return s.NumbersReturned.Load() }),
	readErrors,
}

var (
	sequenceLabels = []string{"split", "settings"}
	readErrors     = counter("read_errors", "Requests that failed.", func(s sequenceState) uint64 { return s.Errors.Load() })
	buildInfo      = describe("build_info", "Version of batchfs that serves the mount.", "version")
	splitInfo      = describe("split_info", "Fingerprint of the tokens of a split.", "split", "fingerprint")
	resident       = describe("process_resident_memory_bytes", "Resident memory of the mount's processes.", "process")
	storeDuration  = describe("store_request_duration_seconds", "Time from a request to a store to the header of its response.")
	readWait       = describe("read_wait_seconds", "Time that requests for next waited in the worker for their reply.", sequenceLabels...)
	sourceRows     = describe("source_rows_total", "Rows from each of the first 64 sources of a mixture, in batches that readers began to read.", "split", "source")
	sourceWeight   = describe("source_weight_ratio", "Configured fraction of rows from each of the first 64 sources of a mixture, in its current stage.", "split", "source")
	stage          = describe("stage", "Number of the stage, in info.json, of the batch that a reader of a mixture began last.", "split")
	leftOut        = describe("sequences_left_out", "Open settings directories without metrics, because there are too many.")
)

func seconds[N int64 | uint64](nanoseconds N) float64 {
	return float64(nanoseconds) / float64(time.Second)
}

func longestWait(s shared) (longest float64) {
	for _, d := range s.Unresponsive() {
		longest = max(longest, d.Seconds())
	}
	return longest
}

// Describe sends nothing, because the set of metrics depends on the mount.
func (collector) Describe(chan<- *prometheus.Desc) {}

func (c collector) Collect(to chan<- prometheus.Metric) {
	send := func(desc *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, kind, value, labels...)
	}
	for _, m := range mountMetrics {
		send(m.desc, m.kind, m.value(c.Shared))
	}
	send(buildInfo, prometheus.GaugeValue, 1, c.Program())
	for _, p := range Processes(c.Shared) {
		send(resident, prometheus.GaugeValue, float64(p.Resident), p.Name)
	}
	to <- histogram(storeDuration, seconds(c.Store.Nanos.Load()), len(c.Store.Buckets), func(i int) (float64, uint64) {
		return (time.Millisecond << i).Seconds(), c.Store.Buckets[i].Load()
	})
	c.collectSequences(to, send)
}

// maxSequences limits how many sequences have metrics.
const maxSequences = 1000

func (c collector) collectSequences(to chan<- prometheus.Metric, send func(*prometheus.Desc, prometheus.ValueType, float64, ...string)) {
	send(readErrors.desc, readErrors.kind, readErrors.value(&c.Sequences[0]), "", "")
	open := OpenSequences(c.Shared)
	for _, s := range open[:min(len(open), maxSequences)] {
		if s.Settings == "" {
			send(splitInfo, prometheus.GaugeValue, 1, s.Split, c.Fingerprint(s.Number))
			if c.SourceName(s.Number, 0) != "" {
				send(stage, prometheus.GaugeValue, float64(c.Stage(s.Number)), s.Split)
			}
			for i := range c.RowsBySource[s.Number] {
				source := &c.RowsBySource[s.Number][i]
				if name := c.SourceName(s.Number, i); name != "" {
					send(sourceRows, prometheus.CounterValue, float64(source.Rows.Load()), s.Split, name)
					send(sourceWeight, prometheus.GaugeValue, source.Weight(), s.Split, name)
				}
			}
		}
		for _, m := range sequenceMetrics {
			send(m.desc, m.kind, m.value(s.SequenceState), s.Split, s.Settings)
		}
		w := &s.ReplyTimes
		to <- histogram(readWait, seconds(w.Sum.Load()), len(w.Buckets), func(i int) (float64, uint64) {
			return state.WaitBounds[min(i, len(state.WaitBounds)-1)].Seconds(), w.Buckets[i].Load()
		}, s.Split, s.Settings)
	}
	send(leftOut, prometheus.GaugeValue, float64(max(len(open)-maxSequences, 0)))
}

// histogram returns a Prometheus histogram in which pairs of buckets are merged. The last bucket
// has no bound.
func histogram(desc *prometheus.Desc, sum float64, buckets int, bucket func(i int) (bound float64, n uint64), labels ...string) prometheus.Metric {
	total, below := uint64(0), map[float64]uint64{}
	for i := range buckets {
		bound, n := bucket(i)
		if total += n; i%2 == 1 && i < buckets-1 {
			below[bound] = total
		}
	}
	return prometheus.MustNewConstHistogram(desc, total, sum, below, labels...)
}

// An OpenSequence is a sequence that is open: a split, or a settings directory that the kernel
// knows.
type OpenSequence struct {
	*state.SequenceState
	Number          int // index in state.Shared.Sequences
	Split, Settings string
}

// OpenSequences returns the open sequences. It skips repeated names, which can occur because
// sequences may be added and removed at the same time.
func OpenSequences(shared *state.Shared) (open []OpenSequence) {
	seen := map[string]bool{}
	for n := range shared.SequencesUsed() {
		e := &shared.Sequences[n+1]
		name := strings.ToValidUTF8(shared.NameOf(n+1), "?")
		split, settings, inPath := strings.Cut(name, "/")
		if name == "" || seen[name] || inPath && e.Lookups.Load() == 0 {
			continue
		}
		seen[name] = true
		open = append(open, OpenSequence{e, n + 1, split, settings})
	}
	return open
}

// A Process describes a process of a mount.
type Process struct {
	Name     string `json:"name"` // supervisor, worker or standby
	PID      int    `json:"pid"`
	Resident int64  `json:"resident_bytes"`
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
