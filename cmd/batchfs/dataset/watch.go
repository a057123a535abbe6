package dataset

import (
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"batchfs/cache"
	"batchfs/cache/array"
	"batchfs/cache/blob"
	"batchfs/cache/localfile"
	"batchfs/internal/clock"
)

// A watcher keeps the view of a split's token files current. While the split is being read, one
// goroutine makes a pass over all files about once a second. If on_change is "follow" and files
// have changed, it also opens the split again. Requests load the view and check the files of their
// own batch, so their cost does not depend on the number of files.
//
// A watcher is safe for concurrent use. It starts its goroutine at the first request.
type watcher struct {
	mountpoint string
	opener     *Opener
	log        *slog.Logger
	publish    func(*Dataset) error // tells later workers about a new dataset, before requests get it

	view     atomic.Pointer[view]
	used     atomic.Int64  // time of the last request, in clock.Now time
	answered atomic.Int64  // last time a file responded to the running pass, in clock.Now time; 0 if no pass is running
	opened   Progress      // files opened by reloads
	awake    atomic.Bool   // requests need not wait for a pass
	urgent   chan struct{} // requests a pass now; capacity 1

	// mu guards the fields below.
	mu      sync.Mutex
	started chan struct{} // closed when awake is set; nil while there is no goroutine
	checked int64         // time of the last pass, in clock.Now time
	waiting int           // requests that wait for next
	next    chan struct{} // closed at the end of the first pass that has not begun yet
}

// A view is what requests know about the token files of a split. It is immutable.
type view struct {
	dataset *Dataset
	err     error     // problem with the token files; nil if there is none
	wrong   blob.Blob // file that err is about; nil if the split follows changes

	// After a failed attempt to follow changes:
	failed map[localfile.ChangedError]bool // changes that could not be followed
	retry  int64                           // when to try again, in clock.Now time
	rested int64                           // when to try again if other changes are found, in clock.Now time
	pause  time.Duration                   // between the failure and retry

	// unsettled is whether a file was being overwritten. It may stop to be without a further change,
	// when its writer closes it.
	unsettled bool
}

const (
	checkEvery  = time.Second
	quiet       = time.Minute // without requests, after which the goroutine ends
	checkers    = 4           // goroutines that check files; more would burden a file server for little gain
	fewFiles    = 8           // files that are checked one after the other
	minPause    = time.Second // between attempts to follow changes
	maxPause    = 16 * time.Second
	maxReloads  = 10                     // changes that one request waits for
	usedPrecise = 100 * time.Millisecond // precision of watcher.used
)

func newWatcher(d *Dataset) *watcher {
	w := &watcher{urgent: make(chan struct{}, 1), next: make(chan struct{}), checked: clock.Now()}
	w.view.Store(&view{dataset: d})
	return w
}

// current returns the view. After a quiet time, it first waits up to a second for a pass, or until
// cancel is closed.
func (w *watcher) current(cancel <-chan struct{}) *view {
	if now := clock.Now(); now-w.used.Load() > int64(usedPrecise) {
		w.used.Store(now)
	}
	if !w.awake.Load() {
		w.wake(cancel)
	}
	return w.view.Load()
}

// wake starts the goroutine unless it runs. If the last pass was long ago, wake waits until there has
// been one, or until a second has passed.
func (w *watcher) wake(cancel <-chan struct{}) {
	w.mu.Lock()
	if w.started == nil {
		w.started = make(chan struct{})
		go w.run(w.started, clock.Now()-w.checked > int64(quiet))
	}
	started := w.started
	w.mu.Unlock()
	select {
	case <-started:
	case <-cancel:
	}
}

func (w *watcher) run(started chan struct{}, wait bool) {
	ready := sync.OnceFunc(func() {
		w.awake.Store(true)
		close(started)
	})
	if wait {
		time.AfterFunc(checkEvery, ready)
	} else {
		ready()
	}
	for {
		w.mu.Lock()
		done := w.next
		w.next = make(chan struct{})
		w.mu.Unlock()
		w.tryPass()
		close(done)
		ready()
		select {
		case <-w.urgent:
		case <-time.After(checkEvery):
		}
		if w.rest() {
			return
		}
	}
}

// rest reports whether the goroutine should end because nobody has used the split for a while. The
// next request then starts another.
func (w *watcher) rest() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.checked = clock.Now()
	// A request that uses the split either is seen here, or sees that awake is false.
	w.awake.Store(false)
	if w.waiting > 0 || clock.Now()-w.used.Load() <= int64(quiet) {
		w.awake.Store(true)
		return false
	}
	w.started = nil
	return true
}

// awaitPass returns at the end of a pass that begins now or later, or when cancel is closed.
func (w *watcher) awaitPass(cancel <-chan struct{}) {
	w.current(cancel) // so that the goroutine runs
	w.mu.Lock()
	w.waiting++
	next := w.next
	w.mu.Unlock()
	select {
	case w.urgent <- struct{}{}:
	default:
	}
	select {
	case <-next:
	case <-cancel:
	}
	w.mu.Lock()
	w.waiting--
	w.mu.Unlock()
}

// tryPass is pass, but turns a panic, for example because of a malformed file, into an error of the
// split. Otherwise, each worker would panic in turn.
func (w *watcher) tryPass() {
	defer func() {
		if p := recover(); p != nil {
			w.log.Error("checking the token files panicked", "panic", p, "stack", string(debug.Stack()))
			old := w.view.Load()
			v := *old
			if v.wrong == nil {
				v.err = fmt.Errorf("checking the token files panicked: %v", p)
			}
			w.view.CompareAndSwap(old, &v) // unless a request has reported a wrong file
		}
	}()
	w.pass()
}

// pass checks every file, and publishes a new view if something has changed.
func (w *watcher) pass() {
	v := w.view.Load()
	follows := v.dataset.Split.OnChange == "follow"
	changes := map[localfile.ChangedError]bool{}
	found := &view{dataset: v.dataset}
	w.answered.Store(clock.Now())
	defer w.answered.Store(0)
	for _, a := range v.dataset.arrays {
		a.RevalidateNext()
	}
	check(v.dataset.blobs(), func(file blob.Blob, err error) {
		w.answered.Store(clock.Now())
		if err == nil {
			return
		}
		found.err = err
		if change := (*localfile.ChangedError)(nil); !follows {
			found.wrong = file
			w.report(file, err)
		} else if errors.As(err, &change) {
			changes[*change] = true
		}
	})
	switch {
	case len(changes) == 0:
		if found.err != nil || v.err != nil {
			w.view.CompareAndSwap(v, found)
		}
	case clock.Now() < v.rested:
	case v.unsettled, !maps.Equal(changes, v.failed):
		w.reload(v, changes, minPause)
	case clock.Now() >= v.retry:
		w.reload(v, changes, min(2*v.pause, maxPause))
	}
}

// report records that a file of a split that does not follow changes is wrong.
func (w *watcher) report(file blob.Blob, err error) {
	if v := w.view.Load(); v.wrong == nil {
		w.view.CompareAndSwap(v, &view{dataset: v.dataset, err: err, wrong: file})
	}
}

// reload opens the split again after changes, and publishes it. pause is the time until the next
// attempt if that fails.
func (w *watcher) reload(v *view, changes map[localfile.ChangedError]bool, pause time.Duration) {
	old, began := v.dataset, clock.Now()
	fresh, err := w.opener.open(old.Split, old.sources, &w.opened)
	if err == nil {
		err = sameArrays(old.Sequence.Batch(), fresh.Sequence.Batch())
	}
	if err != nil {
		err = fmt.Errorf("the token files changed, and what is there now cannot be served: %w (%w)", err, syscall.ESTALE)
	} else {
		fresh.Version = old.Version + 1
		if err = w.publish(fresh); err != nil {
			err = fmt.Errorf("the token files changed, and the supervisor could not be told: %w (%w)", err, syscall.ESTALE)
		}
	}
	if err != nil {
		overwritten, now := localfile.OverwrittenError(""), clock.Now()
		// A file that changes all the time keeps a file server busy for half of the time at most.
		w.view.Store(&view{dataset: old, err: err, failed: changes, retry: now + int64(pause), rested: 2*now - began, pause: pause,
			unsettled: errors.As(err, &overwritten)})
		return
	}
	w.view.Store(&view{dataset: fresh})
	old.release() // sequences that are not read anymore also hold its sources
	for change := range changes {
		w.log.Warn("token files changed: the new ones are served", "split", fresh.Split.Name, "changes", fresh.Version, "file", change.Path,
			"how", change.How, "tokens", fresh.Len(), "fingerprint", fresh.fingerprint)
		break
	}
}

// failure returns the error that a split that does not follow changes has for all requests. It
// checks the file in question again, so that the split recovers as soon as the file is restored.
func (w *watcher) failure(v *view) error {
	if v.wrong == nil {
		return nil
	}
	if err := v.wrong.Check(); err != nil {
		return err
	}
	w.view.CompareAndSwap(v, &view{dataset: v.dataset})
	return nil
}

// handle decides what becomes of a request that found a file to be wrong, given the view it used and
// whether this is its first try. It returns nil if the request should try again with the current
// view. If the split follows changes, that is after a pass; cancel ends the wait for it.
func (w *watcher) handle(v *view, wrong blob.Blob, err error, first bool, cancel <-chan struct{}) error {
	change := (*localfile.ChangedError)(nil)
	switch {
	case v.dataset.Split.OnChange != "follow":
		w.report(wrong, err)
		return err
	case !errors.As(err, &change):
		return err
	case first && v.unsettled:
		select {
		case <-time.After(time.Duration(v.rested - clock.Now())):
			w.awaitPass(cancel)
		case <-cancel:
		}
	case v.failed[*change], clock.Now() < v.rested:
		return v.err
	case w.view.Load() == v:
		w.awaitPass(cancel)
	}
	return nil
}

// stalled returns how long the running pass, or the reload that it led to, has had no response from
// a file, or 0.
func (w *watcher) stalled() time.Duration {
	answered := w.answered.Load()
	if answered == 0 {
		return 0
	}
	return time.Duration(clock.Now() - max(answered, w.opened.last.Load()))
}

// sameArrays returns an error unless the arrays of two batches have the same names, dtypes and
// shapes, because files that are open keep their sizes.
func sameArrays(old, now array.Batch) error {
	described := func(b array.Batch) (all []string) {
		for _, a := range b.Arrays {
			all = append(all, fmt.Sprintf("%s %s %d", a.Name, a.DType, a.Shape))
		}
		return all
	}
	if was, are := described(old), described(now); !slices.Equal(was, are) {
		return fmt.Errorf("the arrays of a batch are %q now, and were %q; mount again to change that", are, was)
	}
	return nil
}

// blobs returns the files of all arrays, and the indexes of their documents.
func (d *Dataset) blobs() iter.Seq[blob.Blob] {
	return func(yield func(blob.Blob) bool) {
		for _, a := range d.arrays {
			for file := range a.Blobs() {
				if !yield(file) {
					return
				}
			}
		}
	}
}

var blobLists = sync.Pool{New: func() any { return new([]blob.Blob) }}

// checkBatch checks the files that batch k is read from, and returns one that is wrong with its
// error. It checks all files if there are no more of them than rows.
func (d *Dataset) checkBatch(k uint64) (wrong blob.Blob, err error) {
	list := blobLists.Get().(*[]blob.Blob)
	defer blobLists.Put(list)
	*list = (*list)[:0]
	if d.files <= d.Sequence.BatchSize {
		for _, a := range d.arrays {
			*list = slices.AppendSeq(*list, a.Blobs())
		}
	} else {
		pass := cache.NewPass()
		d.Sequence.Windows(k, func(source, column int, w array.Window) bool {
			*list = slices.AppendSeq(*list, d.sources[source][column].BlobsOf(w, pass))
			return true
		})
	}
	if len(*list) > fewFiles {
		return checkMany(*list)
	}
	for _, file := range *list {
		if err := file.Check(); err != nil {
			return file, err
		}
	}
	return nil, nil
}

// checkMany is apart from checkBatch, which thus allocates nothing for few files.
func checkMany(files []blob.Blob) (wrong blob.Blob, err error) {
	check(slices.Values(files), func(file blob.Blob, e error) {
		if e != nil {
			wrong, err = file, e
		}
	})
	return wrong, err
}

// check checks files concurrently, and calls visit with each result, one call at a time.
func check(files iter.Seq[blob.Blob], visit func(blob.Blob, error)) {
	todo := make(chan blob.Blob)
	var mu sync.Mutex // serializes the calls of visit
	var all sync.WaitGroup
	for range checkers {
		all.Go(func() {
			for file := range todo {
				err := tryCheck(file)
				mu.Lock()
				visit(file, err)
				mu.Unlock()
			}
		})
	}
	for file := range files {
		todo <- file
	}
	close(todo)
	all.Wait()
}

// tryCheck turns a panic of a check into an error.
func tryCheck(file blob.Blob) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("checking %s panicked: %v", file.Path(), p)
		}
	}()
	return file.Check()
}
