package dataset

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"

	"batchfs/cache/blob"
	"batchfs/cmd/batchfs/vocabulary"
)

// DocumentIDs finds the ids of documents in the files that batchfs prepare --id writes next to
// token files. It is safe for concurrent use.
type DocumentIDs struct {
	dataset *Dataset
	// shards returns the token files in vocab.json by path, and none if it is broken, which others
	// report.
	shards func() map[string]vocabulary.Shard
	mu     sync.Mutex         // guards files and what is in them; held while one is read
	files  map[string]*idFile // by token file; nil for one without ids
}

// DocumentIDs returns the ids of the documents of d.
func (d *Dataset) DocumentIDs() *DocumentIDs {
	shards := sync.OnceValue(func() map[string]vocabulary.Shard {
		_, shards, _ := vocabulary.ForFiles(d.Files(), d.remote)
		return shards
	})
	return &DocumentIDs{dataset: d, shards: shards, files: map[string]*idFile{}}
}

// Of returns the id of a document of a source, or an empty string if it has none. A number below 0
// stands for an unknown document.
func (i *DocumentIDs) Of(source int, number int64) (string, error) {
	documents := i.dataset.mains[source].Documents()
	if documents == nil || number < 0 {
		return "", nil
	}
	at := documents.Locate(number)
	i.mu.Lock()
	defer i.mu.Unlock()
	f, known := i.files[at.Path]
	if !known {
		if name := i.shards()[at.Path].IDs; name != "" {
			f = &idFile{path: blob.Sibling(at.Path, filepath.Base(name)), remote: i.dataset.remote, starts: []int64{0}}
		}
		i.files[at.Path] = f
	}
	if f == nil {
		return "", nil
	}
	line, err := f.line(at.Index)
	// The token files may have been copied without it. For a missing object, S3 says that it is
	// forbidden to those who may not list.
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) && blob.IsRemote(f.path) {
		return "", nil
	}
	var text string
	if err == nil && json.Unmarshal([]byte(line), &text) != nil {
		text = line // a number
	}
	return text, err
}

// An idFile is a file with a line of JSON for each document.
type idFile struct {
	path   string
	remote *blob.Remote
	starts []int64 // offset of every startEvery-th line, as far as the file was read
}

const startEvery = 1024

// line returns line n without its end.
func (f *idFile) line(n int64) (string, error) {
	stamp, file, err := blob.Open(f.path, nil, f.remote)
	if err != nil {
		return "", err
	}
	defer file.Close()
	from := min(n/startEvery, int64(len(f.starts))-1)
	offset := f.starts[from]
	buffer := 1 << 16
	if blob.IsRemote(f.path) {
		buffer = 1 << 20 // each fill is a request
	}
	lines := bufio.NewReaderSize(io.NewSectionReader(file, offset, stamp.Size-offset), buffer)
	for number := from * startEvery; ; number++ {
		if number == int64(len(f.starts))*startEvery {
			f.starts = append(f.starts, offset)
		}
		line, err := lines.ReadString('\n')
		switch {
		case err == io.EOF:
			return "", fmt.Errorf("%s: has %d lines, but document %d needs one: prepare the token files again", f.path, number, n)
		case err != nil:
			return "", err
		case number == n:
			return strings.TrimSuffix(line, "\n"), nil
		}
		offset += int64(len(line))
	}
}
