package dataset

import (
	"fmt"
	"iter"
	"slices"
	"sync"

	"batchfs/cache"
	"batchfs/cache/blob"
)

const (
	checkers        = 4 // goroutines that check files; few, to spare file servers
	maxSerialChecks = 8 // if a batch has more files, they are checked concurrently
)

// blobs returns the files of all arrays, including indexes of documents.
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

// blobLists recycles lists between calls of checkBatch.
var blobLists = sync.Pool{New: func() any { return new([]blob.Blob) }}

// checkBatch checks the files of batch k, and returns a wrong one with its error. Unless the split
// follows changes, the error may be that of a file of another batch.
func (d *Dataset) checkBatch(k uint64) (wrong blob.Blob, err error) {
	list := blobLists.Get().(*[]blob.Blob)
	defer blobLists.Put(list)
	// To check a few files takes less time than to find those of the batch.
	if d.fileCount <= d.Sequence.BatchSize {
		*list = (*list)[:0]
		for _, a := range d.arrays {
			*list = slices.AppendSeq(*list, a.Blobs())
		}
		if wrong, err = checkList(*list); err == nil || d.Split.OnChange != "follow" {
			return wrong, err
		}
	}
	*list = (*list)[:0]
	series := cache.NewSeries()
	for w, err := range d.Sequence.Windows(k) {
		if err != nil {
			break // reading the batch reports it
		}
		*list = slices.AppendSeq(*list, d.sources[w.Source][w.Column].BlobsOf(w.Window, series))
	}
	return checkList(*list)
}

// checkList checks files, and returns a wrong one with its error.
func checkList(files []blob.Blob) (wrong blob.Blob, err error) {
	if len(files) > maxSerialChecks {
		return checkMany(files)
	}
	for _, file := range files {
		if err := file.Check(); err != nil {
			return file, err
		}
	}
	return nil, nil
}

// checkMany is checkList for many files, which it checks concurrently. It is not part of checkList,
// so that checkList allocates nothing for few files.
func checkMany(files []blob.Blob) (wrong blob.Blob, err error) {
	checkFiles(slices.Values(files), func(file blob.Blob, e error) {
		if e != nil {
			wrong, err = file, e
		}
	})
	return wrong, err
}

// checkFiles checks files concurrently, and calls visit with each result, one call at a time.
func checkFiles(files iter.Seq[blob.Blob], visit func(blob.Blob, error)) {
	todo := make(chan blob.Blob)
	var mu sync.Mutex // serializes calls of visit
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

func tryCheck(file blob.Blob) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("checking %s panicked: %v", file.Path(), p)
		}
	}()
	return file.Check()
}
