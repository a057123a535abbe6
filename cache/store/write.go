package store

import (
	"context"
	"errors"
	"io"

	"github.com/minio/minio-go/v7"
)

// minPart is the size of the parts of an upload in bytes, unless there would be more than maxParts.
// The size of an object alone decides its parts, so equal objects have equal ETags. It is a
// variable so that tests can lower it.
var minPart int64 = 16 << 20

const (
	maxParts       = 10_000
	uploadAttempts = 3
)

// Put writes an object of a known size. It appears whole or not at all. The result has its ETag.
func (c *Client) Put(ctx context.Context, o Object, from io.ReaderAt, size int64) (Object, error) {
	o.Size = size
	part := max(minPart, (size+maxParts-1)/maxParts)
	if size <= part {
		err := c.retry(ctx, o, "write", func(ctx context.Context, progress func()) error {
			info, err := c.core.PutObject(ctx, o.Bucket, o.Key, readSection(from, 0, size, progress), size, "", "", minio.PutObjectOptions{})
			o.ETag = info.ETag
			return err
		})
		return o, err
	}
	for attempt := 1; ; attempt++ {
		etag, err := c.putParts(ctx, o, from, part)
		var vanished vanishedError
		if errors.As(err, &vanished) && attempt < uploadAttempts {
			continue // another program has aborted it
		}
		o.ETag = etag
		return o, err
	}
}

// A vanishedError means that an upload does not exist anymore.
type vanishedError struct{ error }

func (v vanishedError) Unwrap() error { return v.error }

func (c *Client) putParts(ctx context.Context, o Object, from io.ReaderAt, part int64) (etag string, err error) {
	var id string
	try := func(operation string, do func(ctx context.Context, progress func()) error) {
		if err == nil {
			isVanished := false
			err = c.retry(ctx, o, operation, func(ctx context.Context, progress func()) error {
				err := do(ctx, progress)
				isVanished = minio.ToErrorResponse(err).Code == "NoSuchUpload"
				return err
			})
			if err != nil && isVanished {
				err = vanishedError{err}
			}
		}
	}
	try("begin to write", func(ctx context.Context, _ func()) (err error) {
		id, err = c.core.NewMultipartUpload(ctx, o.Bucket, o.Key, minio.PutObjectOptions{})
		return err
	})
	var parts []minio.CompletePart
	for off := int64(0); off < o.Size; off += part {
		n := min(part, o.Size-off)
		number := len(parts) + 1
		var done minio.ObjectPart
		try("write a part", func(ctx context.Context, progress func()) (err error) {
			done, err = c.core.PutObjectPart(ctx, o.Bucket, o.Key, id, number, readSection(from, off, n, progress), n, minio.PutObjectPartOptions{})
			return err
		})
		parts = append(parts, minio.CompletePart{PartNumber: number, ETag: done.ETag})
	}
	try("write", func(ctx context.Context, _ func()) error {
		info, err := c.core.CompleteMultipartUpload(ctx, o.Bucket, o.Key, id, parts, minio.PutObjectOptions{})
		etag = info.ETag
		return err
	})
	return etag, err
}

// readSection returns a reader of n bytes that calls progress for each read.
func readSection(from io.ReaderAt, off, n int64, progress func()) io.Reader {
	return &progressReader{io.NewSectionReader(from, off, n), progress}
}

type progressReader struct {
	io.Reader
	progress func()
}

func (p *progressReader) Read(buf []byte) (int, error) {
	n, err := p.Reader.Read(buf)
	p.progress()
	return n, err
}

// AbortUploads ends the uploads of objects whose keys begin with prefix, and for which ours returns
// true, that other programs have begun and not completed.
func (c *Client) AbortUploads(ctx context.Context, scheme, bucket, prefix string, ours func(key string) bool) error {
	return c.retry(ctx, Object{Scheme: scheme, Bucket: bucket, Key: prefix + "*"}, "abort uploads", func(ctx context.Context, progress func()) error {
		for upload := range c.core.ListIncompleteUploads(ctx, bucket, prefix, true) {
			if upload.Err != nil {
				return upload.Err
			}
			progress()
			if !ours(upload.Key) {
				continue
			}
			err := c.core.AbortMultipartUpload(ctx, bucket, upload.Key, upload.UploadID)
			if err != nil && minio.ToErrorResponse(err).Code != "NoSuchUpload" {
				return err
			}
		}
		return context.Cause(ctx)
	})
}
