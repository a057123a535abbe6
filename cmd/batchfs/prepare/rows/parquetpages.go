package rows

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	parquetformat "github.com/parquet-go/parquet-go/format"
	"github.com/pierrec/lz4/v4"
)

// A columnReader reads a column chunk for parquet-go, which trusts page headers. The reader rejects
// pages that have more than maxValues, or that decompress to more than their header says.
type columnReader struct {
	file         io.ReaderAt
	maxValues    int64
	codec        parquetformat.CompressionCodec
	next, end    int64 // range of the pages that have not been checked yet
	decompressor interface {
		io.Reader
		Reset(io.Reader) error
	}
	err error

	lz4Sizes []sizeField // in the page headers of a column that is compressed with LZ4
	lz4Page  []byte      // for reuse
}

// A sizeField is where a page header has the uncompressed size of its page.
type sizeField struct {
	at     int64
	length int
}

func newColumnReader(file io.ReaderAt, meta *parquetformat.ColumnMetaData, maxValues int64) *columnReader {
	c := &columnReader{file: file, maxValues: maxValues, codec: meta.Codec, next: meta.DataPageOffset}
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
	case parquetformat.Lz4: // parquet-go reads only the newer LZ4_RAW
		c.err = errors.New("is compressed with old LZ4, which prepare cannot read: compress it with zstd: " +
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
	n, err := c.file.ReadAt(b, at)
	c.hideLZ4Sizes(b[:n], at)
	return n, err
}

// hideLZ4Sizes sets the sizes of LZ4 pages to 0 in bytes that were read at an offset. Otherwise,
// parquet-go v0.32.0 may drop the buffer to which it has decompressed a page, and return zeros.
func (c *columnReader) hideLZ4Sizes(b []byte, at int64) {
	first, _ := slices.BinarySearchFunc(c.lz4Sizes, at, func(f sizeField, at int64) int {
		return cmp.Compare(f.at+int64(f.length), at)
	})
	for _, f := range c.lz4Sizes[first:] {
		for i := range f.length {
			p := f.at + int64(i) - at
			switch {
			case p < 0 || p >= int64(len(b)):
			case i == f.length-1:
				b[p] = 0
			default:
				b[p] = 0x80 // of a number in base 128, a digit 0 that is not the last
			}
		}
	}
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
	case values > c.maxValues:
		return fmt.Errorf("has a page of %d values, but the limit is %d: write the file with smaller row groups or pages "+
			"(pyarrow: row_group_size, data_page_size)", values, c.maxValues)
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
	if c.codec == parquetformat.Lz4Raw {
		if err := c.findLZ4Size(c.next-header-compressed, size); err != nil {
			return err
		}
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

// findLZ4Size finds the uncompressed size of a page in the header at an offset. A header begins
// with the type, which is a byte, and this size, each preceded by a byte.
func (c *columnReader) findLZ4Size(at, size int64) error {
	var begin [3 + binary.MaxVarintLen32]byte
	n, _ := c.file.ReadAt(begin[:], at)
	found, length := binary.Varint(begin[min(3, n):n])
	if begin[0] != 0x15 || begin[2] != 0x15 || length <= 0 || found != size {
		return fmt.Errorf("has an unusual page header at byte %d: write the file again with pyarrow", at)
	}
	c.lz4Sizes = append(c.lz4Sizes, sizeField{at + 3, length})
	return nil
}

// inflatedSize returns the decompressed size of a page in bytes, but at most limit, or 0 if the
// column is not compressed.
func (c *columnReader) inflatedSize(page io.Reader, limit int64) (int64, error) {
	switch {
	case c.codec == parquetformat.Snappy:
		n, err := binary.ReadUvarint(bufio.NewReader(page))
		return int64(min(n, uint64(limit))), err
	case c.codec == parquetformat.Lz4Raw:
		block, err := io.ReadAll(page)
		if err != nil {
			return 0, err
		}
		c.lz4Page = slices.Grow(c.lz4Page[:0], int(limit))
		if n, err := lz4.UncompressBlock(block, c.lz4Page[:limit]); err == nil {
			return int64(n), nil
		}
		return limit, nil // it is larger or damaged
	case c.decompressor == nil:
		return 0, nil
	}
	if err := c.decompressor.Reset(page); err != nil {
		return 0, err
	}
	return io.Copy(io.Discard, io.LimitReader(c.decompressor, limit))
}
