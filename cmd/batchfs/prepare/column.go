package prepare

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	parquetformat "github.com/parquet-go/parquet-go/format"
)

// maxPage is the most bytes of a page of parquet, because parquet-go holds it whole. Tests make it smaller.
var maxPage int64 = 256 << 20

// A columnReader reads a column chunk of a parquet file. It refuses a page that is larger than maxPage, or larger than its header says
// when it is decompressed: parquet-go trusts the header.
type columnReader struct {
	file      io.ReaderAt
	codec     parquetformat.CompressionCodec
	next, end int64 // of the pages that were not checked yet
	inflate   interface {
		io.Reader
		Reset(io.Reader) error
	}
	err error
}

func newColumnReader(file io.ReaderAt, meta *parquetformat.ColumnMetaData) *columnReader {
	c := &columnReader{file: file, codec: meta.Codec, next: meta.DataPageOffset}
	if meta.DictionaryPageOffset != 0 {
		c.next = meta.DictionaryPageOffset
	}
	c.end = c.next + meta.TotalCompressedSize
	switch c.codec {
	case parquetformat.Gzip:
		c.inflate = new(gzip.Reader)
	case parquetformat.Zstd:
		c.inflate, c.err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true))
	case parquetformat.Brotli:
		c.inflate = brotli.NewReader(nil)
	case parquetformat.Lz4Raw: // parquet-go v0.32.0 takes such pages for zeros
		c.err = errors.New("is compressed with LZ4, which prepare does not read: write the file with zstd")
	}
	return c
}

func (c *columnReader) ReadAt(b []byte, at int64) (int, error) {
	for c.err == nil && c.next < min(at+int64(len(b)), c.end) {
		c.err = c.check()
	}
	if c.err != nil {
		return 0, c.err
	}
	return c.file.ReadAt(b, at)
}

// check checks the next page.
func (c *columnReader) check() error {
	section := io.NewSectionReader(c.file, c.next, c.end-c.next)
	in := bufio.NewReader(section)
	var h parquetformat.PageHeader
	if err := thrift.NewDecoder(new(thrift.CompactProtocol).NewReader(in)).Decode(&h); err != nil {
		return fmt.Errorf("has a broken page header at byte %d: %w", c.next, err)
	}
	read, _ := section.Seek(0, io.SeekCurrent)
	header := read - int64(in.Buffered())
	v2 := h.DataPageHeaderV2.V
	size, compressed, levels := int64(h.UncompressedPageSize), int64(h.CompressedPageSize), int64(v2.RepetitionLevelsByteLength)+int64(v2.DefinitionLevelsByteLength)
	values := int64(max(h.DataPageHeader.V.NumValues, v2.NumValues, h.DictionaryPageHeader.V.NumValues))
	switch {
	case max(size, compressed) > maxPage || values > maxPage/8: // parquet-go has 8 bytes beside a value
		return fmt.Errorf("has a page of %d bytes and %d values, and memory holds %d bytes and %d values at most: "+
			"write the file with smaller row groups or pages (pyarrow: row_group_size, data_page_size)", max(size, compressed), values, maxPage, maxPage/8)
	case min(size, compressed, levels, compressed-levels) < 0:
		return fmt.Errorf("has a broken page header at byte %d", c.next)
	}
	if v2.IsCompressed.Valid && !v2.IsCompressed.V {
		levels = compressed
	}
	c.next += header + compressed
	if levels == compressed {
		return nil
	}
	in.Discard(int(levels)) // which are not compressed
	inflated, err := c.inflated(io.LimitReader(in, compressed-levels), size+1)
	switch {
	case err != nil:
		return fmt.Errorf("has a broken page: %w", err)
	case inflated > size:
		return fmt.Errorf("has a page of more bytes than the %d that its header says", size)
	}
	return nil
}

// inflated is how many bytes a page has when it is decompressed, or most.
func (c *columnReader) inflated(page io.Reader, most int64) (int64, error) {
	switch {
	case c.codec == parquetformat.Snappy:
		n, err := binary.ReadUvarint(bufio.NewReader(page))
		return int64(min(n, uint64(most))), err
	case c.inflate == nil:
		return 0, nil
	}
	if err := c.inflate.Reset(page); err != nil {
		return 0, err
	}
	return io.Copy(io.Discard, io.LimitReader(c.inflate, most))
}
