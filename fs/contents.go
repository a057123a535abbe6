package fs

import (
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
)

type directoryContent struct{}

func (directoryContent) size(*tree, inode, BatchList) int64 { return 0 }

func (directoryContent) read(*tree, readRequest) (fuse.ReadResult, error) { return nil, syscall.EISDIR }

type batchJSONContent struct{}

func (batchJSONContent) size(_ *tree, _ inode, b BatchList) int64 { return b.BatchJSONLen() }

func (batchJSONContent) read(t *tree, r readRequest) (fuse.ReadResult, error) {
	return t.compute(r, func(p filePart, dst []byte) error { return p.list.ReadBatchJSON(dst, p.batch, p.off) })
}

type tokensContent struct{}

func (tokensContent) size(_ *tree, _ inode, b BatchList) int64 { return b.Spec().TokensFileSize }

func (tokensContent) read(t *tree, r readRequest) (fuse.ReadResult, error) {
	return t.compute(r, func(p filePart, dst []byte) error { return p.list.ReadTokens(dst, p.off) })
}

// compute replies to a READ with the bytes that fill writes to dst.
func (t *tree) compute(r readRequest, fill func(p filePart, dst []byte) error) (fuse.ReadResult, error) {
	part, err := t.locate(r)
	if err == nil && part.len > 0 {
		err = fill(part, r.buf[:part.len])
	}
	return fuse.ReadResultData(r.buf[:part.len]), err
}
