package dataset

import (
	"cmp"
	"errors"
	"fmt"
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

// A watcher keeps track of a split's token files. While the split is being read, one goroutine
// checks all files about once a second (a pass) and publishes what it found as an immutable [view].
// If files have changed and on_change is "follow", it also reopens the split. Requests load the
// view and check only the files of their own batch, so their cost does not depend on the number of
// files.
//
// A watcher is safe for concurrent use. The first request starts the goroutine, which ends after a
// minute without requests.
type watcher struct {
	opener *Opener
	log    *slog.Logger
	// publish hands a new dataset to later workers, before any request uses it.
	publish func(*Dataset) error

	view        atomic.Pointer[view]
	lastRequest atomic.Int64 // clock.Now time of the last request
	// lastResponse is when a file last responded to the current pass, in clock.Now time; 0 between
	// passes.
	lastResponse atomic.Int64
	reopened     FileCounter
	awake        atomic.Bool   // whether requests use the view without waiting for a pass
	checkNow     chan struct{} // starts a pass immediately; capacity 1

	// mu guards the fields below.
	mu       sync.Mutex
	started  chan struct{} // closed when awake is set; nil while no goroutine runs
	lastPass int64         // clock.Now time of the end of the last pass; 0 before the first
	waiting  int           // requests waiting for nextPass
	nextPass chan struct{} // closed at the end of the next pass to begin
}

// A view is what requests know about a split's token files. It is immutable.
//
// If the split does not follow changes, err and wrongFile describe a file that is wrong, and
// requests fail until it is restored.
//
// If the split follows changes, dataset is the last version that could be opened. err says why a
// file could not be checked or why later changes could not be followed. In the latter case,
// failedChanges and the fields after it say when the watcher tries again. Meanwhile, batches whose
// own files have not changed are still served.
type view struct {
	dataset   *Dataset
	err       error     // nil if no problem is known
	wrongFile blob.Blob // nil if there is none or the split follows changes

	// failedChanges are the changes that the last attempt to reopen failed to follow, and reopenErr
	// says why.
	failedChanges map[localfile.ChangedError]bool
	reopenErr     error
	retryAt       int64         // clock.Now time of the next try with the same changes
	backoff       time.Duration // delay before retryAt

	// restUntil is when other changes may be tried, in clock.Now time. The watcher rests for as
	// long as the failed attempt took, so a file that keeps changing occupies a file server at most
	// half of the time.
	restUntil int64

	// overwrittenSince is when an attempt first failed because a file was being overwritten, in
	// clock.Now time, if all attempts since then have failed so; 0 otherwise. As soon as the writer
	// closes the file, another attempt may succeed without a further change, so the next one does
	// not wait for retryAt.
	overwrittenSince int64
}

const (
	checkEvery           = time.Second // time between two passes
	idleTimeout          = time.Minute // the goroutine ends after this time without requests
	minBackoff           = time.Second // delay before the first retry of a failed attempt to reopen
	maxBackoff           = 16 * time.Second
	lastRequestPrecision = 100 * time.Millisecond // resolution of lastRequest

	// Requests wait for the writer of an overwritten file, until patience has passed since the
	// first attempt that failed because of it. Before its attempt n, a request pauses for
	// n*patiencePause, so that maxReopens attempts take longer than patience.
	patience      = 3 * time.Second
	patiencePause = 100 * time.Millisecond
)

func newWatcher(d *Dataset, o *Opener, log *slog.Logger, publish func(*Dataset) error) *watcher {
	w := &watcher{
		opener: o, log: log, publish: publish,
		checkNow: make(chan struct{}, 1), nextPass: make(chan struct{}),
	}
	w.view.Store(&view{dataset: d})
	return w
}

// currentView returns the view. If the split was idle, it first waits for a pass, until a second
// has passed or cancel is closed. It checks a wrong file again, so that a restored one is noticed
// immediately.
func (w *watcher) currentView(cancel <-chan struct{}) *view {
	if now := clock.Now(); now-w.lastRequest.Load() > int64(lastRequestPrecision) {
		w.lastRequest.Store(now)
	}
	if !w.awake.Load() {
		w.wake(cancel)
	}
	v := w.view.Load()
	if v.wrongFile == nil {
		return v
	}
	if err := v.wrongFile.Check(); err != nil {
		return &view{dataset: v.dataset, err: err, wrongFile: v.wrongFile}
	}
	restored := &view{dataset: v.dataset}
	w.view.CompareAndSwap(v, restored)
	return restored
}

// wake starts the goroutine if none is running. Unless the last pass ended less than two seconds
// ago, it waits for the next one, but at most a second.
func (w *watcher) wake(cancel <-chan struct{}) {
	w.mu.Lock()
	if w.started == nil {
		w.started = make(chan struct{})
		go w.run(w.started, clock.Now()-w.lastPass > int64(2*checkEvery))
	}
	started := w.started
	w.mu.Unlock()
	select {
	case <-started:
	case <-cancel:
	}
}

// run makes passes until the split is idle. If wait is true, requests wait for the first pass, but
// at most a second.
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
		done := w.nextPass
		w.nextPass = make(chan struct{})
		w.mu.Unlock()
		w.tryPass()
		w.mu.Lock()
		w.lastPass = clock.Now()
		w.mu.Unlock()
		close(done)
		ready()
		select {
		case <-w.checkNow:
		case <-time.After(checkEvery):
		}
		if w.endIfIdle() {
			return
		}
	}
}

// endIfIdle reports whether the goroutine must end because the split is idle.
func (w *watcher) endIfIdle() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	// A request that arrives now either has set lastRequest, or sees awake unset and calls wake.
	w.awake.Store(false)
	if w.waiting > 0 || clock.Now()-w.lastRequest.Load() <= int64(idleTimeout) {
		w.awake.Store(true)
		return false
	}
	w.started = nil
	return true
}

// awaitPass waits for the end of a pass that begins after the call, or until cancel is closed.
func (w *watcher) awaitPass(cancel <-chan struct{}) {
	w.currentView(cancel) // starts the goroutine if necessary
	w.mu.Lock()
	w.waiting++
	next := w.nextPass
	w.mu.Unlock()
	select {
	case w.checkNow <- struct{}{}:
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

// tryPass calls pass. A panic, for example because of a malformed file, becomes the error of files
// with several batches; otherwise, every new worker would panic.
func (w *watcher) tryPass() {
	defer func() {
		if p := recover(); p != nil {
			w.log.Error("checking the token files panicked", "panic", p, "stack", string(debug.Stack()))
			old := w.view.Load()
			v := *old
			if v.wrongFile == nil {
				v.err = fmt.Errorf("checking the token files panicked: %v", p)
			}
			w.view.CompareAndSwap(old, &v) // fails if a request has just reported a wrong file
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
	w.lastResponse.Store(clock.Now())
	defer w.lastResponse.Store(0)
	for _, a := range v.dataset.arrays {
		a.RevalidateNext()
	}
	checkFiles(v.dataset.blobs(), func(file blob.Blob, err error) {
		w.lastResponse.Store(clock.Now())
		if err == nil {
			return
		}
		found.err = err
		if !follows {
			found.wrongFile = file
			w.reportWrongFile(file, err)
		} else if change, ok := errors.AsType[*localfile.ChangedError](err); ok {
			changes[*change] = true
		}
	})
	switch {
	case len(changes) == 0 && follows && found.err != nil:
		kept := *v // keeps the backoff, which a disk error must not reset
		kept.err = found.err
		w.view.CompareAndSwap(v, &kept)
	case len(changes) == 0:
		if found.err != nil || v.err != nil {
			w.view.CompareAndSwap(v, found)
		}
	case clock.Now() < v.restUntil:
	case v.overwrittenSince > 0, !maps.Equal(changes, v.failedChanges):
		w.reopen(v, changes, minBackoff)
	case clock.Now() >= v.retryAt:
		w.reopen(v, changes, min(2*v.backoff, maxBackoff))
	}
}

// reportWrongFile publishes that a file is wrong, for a split that does not follow changes.
func (w *watcher) reportWrongFile(file blob.Blob, err error) {
	if v := w.view.Load(); v.wrongFile == nil {
		w.view.CompareAndSwap(v, &view{dataset: v.dataset, err: err, wrongFile: file})
	}
}

// reopen opens the split again after changes and publishes the result. If that fails, backoff is
// the delay before it tries the same changes again.
func (w *watcher) reopen(v *view, changes map[localfile.ChangedError]bool, backoff time.Duration) {
	old, began := v.dataset, clock.Now()
	fresh, err := w.opener.open(old.Split, old.sources, &w.reopened)
	if err == nil {
		err = cmp.Or(checkArraysStay(old.Sequence.Batch(), fresh.Sequence.Batch()), checkSameEnds(old.mains, fresh.mains))
	}
	if err != nil {
		err = fmt.Errorf("the token files changed, and the new ones cannot be served: %w (%w)", err, syscall.ESTALE)
	} else {
		fresh.Version = old.Version + 1
		if err = w.publish(fresh); err != nil {
			err = fmt.Errorf("the token files changed, but the supervisor could not be informed: %w (%w)", err, syscall.ESTALE)
		}
	}
	if err != nil {
		now := clock.Now()
		failed := &view{
			dataset: old, err: err, reopenErr: err, failedChanges: changes,
			retryAt: now + int64(backoff), backoff: backoff, restUntil: now + (now - began),
		}
		if _, ok := errors.AsType[localfile.OverwrittenError](err); ok {
			failed.overwrittenSince = cmp.Or(v.overwrittenSince, now)
		}
		w.view.Store(failed)
		return
	}
	w.view.Store(&view{dataset: fresh})
	old.release() // sequences that nobody reads anymore still refer to the old arrays
	for change := range changes {
		w.log.Warn("token files changed; now serving the new ones", "split", fresh.Split.Name, "changes", fresh.Version, "file", change.Path,
			"how", change.How, "tokens", fresh.Len(), "fingerprint", fresh.fingerprint)
		break
	}
}

// retryOrFail is called when a request that uses v has found a wrong file. It returns nil if the
// request should try again with the current view, or else the request's error. Before a retry, it
// waits, if necessary, for a pass that sees the change, or until cancel is closed. The request's
// attempts are numbered from 0. While a file is being overwritten, each request waits for at least
// one more pass, and until patience has passed for further ones.
func (w *watcher) retryOrFail(v *view, wrongFile blob.Blob, err error, attempt int, cancel <-chan struct{}) error {
	change, isChange := errors.AsType[*localfile.ChangedError](err)
	switch {
	case v.dataset.Split.OnChange != "follow":
		w.reportWrongFile(wrongFile, err)
		return err
	case !isChange:
		return err
	case v.overwrittenSince > 0 && (attempt == 0 || clock.Now()-v.overwrittenSince < int64(patience)):
		w.awaitWriter(v, attempt, cancel)
	case v.failedChanges[*change], clock.Now() < v.restUntil:
		return v.reopenErr
	case w.view.Load() == v:
		w.awaitPass(cancel)
	}
	return nil
}

// awaitWriter waits for a pass after a pause, in which the writer of an overwritten file may close
// it, or until cancel is closed.
func (w *watcher) awaitWriter(v *view, attempt int, cancel <-chan struct{}) {
	select {
	case <-time.After(max(time.Duration(v.restUntil-clock.Now()), time.Duration(attempt)*patiencePause)):
		w.awaitPass(cancel)
	case <-cancel:
	}
}

// stalledFor returns how long the current pass or reopening has been waiting for a file, or 0.
func (w *watcher) stalledFor() time.Duration {
	lastResponse := w.lastResponse.Load()
	if lastResponse == 0 {
		return 0
	}
	return time.Duration(clock.Now() - max(lastResponse, w.reopened.lastOpened.Load()))
}

// checkArraysStay returns an error unless the arrays of two batches have the same names, dtypes and
// shapes, because the sizes of open files in the mount must not change.
func checkArraysStay(old, fresh array.Batch) error {
	described := func(b array.Batch) (all []string) {
		for _, a := range b.Arrays {
			all = append(all, fmt.Sprintf("%s %s %d", a.Name, a.DType, a.Shape))
		}
		return all
	}
	if oldArrays, newArrays := described(old), described(fresh); !slices.Equal(oldArrays, newArrays) {
		return fmt.Errorf("the arrays of a batch were %q and are now %q; mount again to serve them", oldArrays, newArrays)
	}
	return nil
}

// checkSameEnds returns an error unless the same sources have indexes of documents as before,
// because saved states say whether eot decides where documents end.
func checkSameEnds(old, fresh []*cache.Array) error {
	for i, a := range fresh {
		switch had, has := hasDocuments(old[i]), hasDocuments(a); {
		case had && !has:
			return fmt.Errorf("%s has no index of documents anymore; restore it, or mount again", a.Files()[0])
		case has && !had:
			return fmt.Errorf("%s has an index of documents now; mount again to use it, or remove it", a.Files()[0])
		}
	}
	return nil
}
