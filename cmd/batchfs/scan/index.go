package scan

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"batchfs/cache"
	"batchfs/cache/blob"
	"batchfs/cache/format"
	"batchfs/cmd/batchfs/terminal"
	"batchfs/internal/printable"
)

// An Index is the result of [WriteIndex].
type Index struct {
	Path      string
	Documents int64
}

// WriteIndex writes the index of documents path.index next to a token file, in the format of
// datatrove: the number of tokens up to the end of each document, as little-endian uint64. Each
// document ends with the token eot, but the last one may end with the file. If eot is negative,
// vocab.json provides it. An existing index with other content, or the .idx of Megatron-LM, is only
// replaced if force is true.
func WriteIndex(ctx context.Context, path string, o cache.Options, eot int64, force bool, stderr io.Writer) (index Index, err error) {
	if blob.IsRemote(path) {
		return index, fmt.Errorf("%s: an index must be next to its token file, which batchfs index does not write to a store: index a copy of the "+
			"file on this machine, and upload the index as %s%s", path, path, format.IndexSuffix)
	}
	if o, eot, err = completeFromVocabulary(path, o, eot); err != nil {
		return index, err
	}
	if eot < 0 {
		return index, errors.New("--eot: give the token that ends each document, such as --eot 50256 for GPT-2")
	}
	a, err := cache.Open([]string{path}, o)
	if err != nil {
		return index, err
	}
	index.Path = path + format.IndexSuffix
	switch {
	case a.Manifest().Files[0].Format.Name == "megatron" && !force:
		return index, fmt.Errorf("%s: Megatron-LM's .idx next to it already says where its documents end; use --force to write %s, which counts instead",
			path, index.Path)
	case !isTokens(a):
		return index, fmt.Errorf("%s holds %s, not tokens", path, a.DType())
	case a.DType().Size() < 8 && eot>>(8*a.DType().Size()) > 0:
		return index, fmt.Errorf("%s: its tokens are %s, so none can be %d; is --eot right?", path, a.DType(), eot)
	}
	// The name is random, because in a container, a run that was killed may have had the same
	// process number.
	hidden := filepath.Join(filepath.Dir(path), fmt.Sprintf(".%s-%s", filepath.Base(index.Path), rand.Text()[:10]))
	tmp, err := os.OpenFile(hidden, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o666)
	if err != nil {
		return index, err
	}
	defer os.Remove(tmp.Name())
	defer tmp.Close()
	sum := sha256.New()
	w := bufio.NewWriterSize(io.MultiWriter(tmp, sum), blockSize)
	if index.Documents, err = writeEnds(ctx, w, a, eot, path, stderr); err != nil {
		return index, err
	}
	if err := cmp.Or(w.Flush(), tmp.Sync()); err != nil {
		return index, err
	}
	existing, err := fileSum(index.Path)
	switch {
	case err == nil && bytes.Equal(existing, sum.Sum(nil)):
		return index, nil
	case err == nil && !force:
		return index, fmt.Errorf("%s exists and has other ends of documents; use --force to replace it", index.Path)
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return index, err
	}
	return index, os.Rename(tmp.Name(), index.Path)
}

func writeEnds(ctx context.Context, w io.Writer, a *cache.Array, eot int64, path string, stderr io.Writer) (documents int64, err error) {
	progress := terminal.NewProgress(stderr, printable.Name(path), a.Bytes(), terminal.Bytes)
	defer progress.Finish()
	d, last := decoder{dtype: a.DType()}, int64(0)
	var ends []byte
	err = read(ctx, a, 0, a.Len(), func(at int64, raw []byte) error {
		ends = ends[:0]
		for i, v := range d.decode(raw) {
			if v == uint64(eot) {
				last = at + int64(i) + 1
				ends = binary.LittleEndian.AppendUint64(ends, uint64(last))
			}
		}
		documents += int64(len(ends) / 8)
		progress.Add(len(raw))
		_, err := w.Write(ends)
		return err
	})
	switch {
	case err != nil:
		return 0, err
	case documents == 0:
		return 0, fmt.Errorf("%s: no document ends with token %d, because the file does not contain it; is --eot right?", path, eot)
	case last < a.Len(): // the rest is a document too
		documents++
		_, err = w.Write(binary.LittleEndian.AppendUint64(nil, uint64(a.Len())))
	}
	return documents, err
}

func fileSum(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	sum := sha256.New()
	_, err = io.Copy(sum, f)
	return sum.Sum(nil), err
}
