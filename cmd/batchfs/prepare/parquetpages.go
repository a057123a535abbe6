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

// maxPageValues limits the values of a page, because parquet-go needs 8 more bytes for each. The
// size of a page has no limit but that of the format, 2 GiB: pyarrow looks at it only once in 1,024
// rows. Tests lower it.
var maxPageValues int64 = 32 << 20

// A columnReader reads a column chunk for parquet-go, which trusts page headers. The reader rejects
// pages that have more than maxPageValues, or that decompress to more than their header says.
type columnReader struct {
	file         io.ReaderAt
	codec        parquetformat.CompressionCodec
	next, end    int64 // range of the pages that have not been checked yet
	decompressor interface {
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
		c.decompressor = new(gzip.Reader)
	case parquetformat.Zstd:
		c.decompressor, c.err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true))
	case parquetformat.Brotli:
		c.decompressor = brotli.NewReader(nil)
	case parquetformat.Lz4, parquetformat.Lz4Raw:
		// parquet-go v0.32.0 cannot read the former, and reads zeros from the latter.
		c.err = errors.New("is compressed with LZ4, which prepare cannot read: compress it with zstd: " +
			`python3 -c 'import sys, pyarrow.parquet as p; p.write_table(p.read_table(sys.argv[1]), sys.argv[2], compression="zstd")' FILE NEW`)
	}
	return c
}

// ReadAt checks the pages up to the end of the range before it reads.
func (c *columnReader) ReadAt(b []byte, at int64) (int, error) {
	for c.err == nil && c.next < min(at+int64(len(b)), c.end) {
		c.err = c.checkPage()
	}
	if c.err != nil {
		return 0, c.err
	}
	return c.file.ReadAt(b, at)
}

// checkPage checks the next page and advances past it.
func (c *columnReader) checkPage() error {
	section := io.NewSectionReader(c.file, c.next, c.end-c.next)
	in := bufio.NewReader(section)
	var h parquetformat.PageHeader
	if err := thrift.NewDecoder(new(thrift.CompactProtocol).NewReader(in)).Decode(&h); err != nil {
		return fmt.Errorf("has a broken page header at byte %d: %w", c.next, err)
	}
	read, _ := section.Seek(0, io.SeekCurrent)
	header := read - int64(in.Buffered())
	v2 := h.DataPageHeaderV2.V
	size, compressed, levels := int64(h.UncompressedPageSize), int64(h.CompressedPageSize),
		int64(v2.RepetitionLevelsByteLength)+int64(v2.DefinitionLevelsByteLength)
	values := int64(max(h.DataPageHeader.V.NumValues, v2.NumValues, h.DictionaryPageHeader.V.NumValues))
	switch {
	case values > maxPageValues:
		return fmt.Errorf("has a page of %d values, but the limit is %d: write the file with smaller row groups or pages "+
			"(pyarrow: row_group_size, data_page_size)", values, maxPageValues)
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
	in.Discard(int(levels)) // levels are not compressed
	inflated, err := c.inflatedSize(io.LimitReader(in, compressed-levels), size+1)
	switch {
	case err != nil:
		return fmt.Errorf("has a broken page: %w", err)
	case inflated > size:
		return fmt.Errorf("has a page that is larger than the %d bytes that its header states", size)
	}
	return nil
}

// inflatedSize returns the decompressed size of a page in bytes, but at most limit, or 0 if the
// column is not compressed.
func (c *columnReader) inflatedSize(page io.Reader, limit int64) (int64, error) {
	switch {
	case c.codec == parquetformat.Snappy:
		n, err := binary.ReadUvarint(bufio.NewReader(page))
		return int64(min(n, uint64(limit))), err
	case c.decompressor == nil:
		return 0, nil
	}
	if err := c.decompressor.Reset(page); err != nil {
		return 0, err
	}
	return io.Copy(io.Discard, io.LimitReader(c.decompressor, limit))
}
