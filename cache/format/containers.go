package format

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"path"
	"regexp"
	"slices"
	"strings"
)

// describeBeginning recognizes kinds of files by their first bytes, and returns a description like
// those in magics. It returns "" if the file may hold tokens.
func (in *Input) describeBeginning() (string, error) {
	first, err := in.head(firstBytes)
	if err != nil {
		return "", err
	}
	for _, magic := range magics {
		if bytes.HasPrefix(first, []byte(magic.prefix)) {
			return magic.description, nil
		}
	}
	switch {
	case IsBzip2(first):
		return "compressed with bzip2; decompress it: bunzip2 FILE", nil
	case len(first) >= 13 && string(first[:3]) == "\x5d\x00\x00" && string(first[5:13]) == "\xff\xff\xff\xff\xff\xff\xff\xff":
		return "compressed with lzma; decompress it: unlzma FILE", nil
	case len(first) >= 12 && string(first[:4]) == "RIFF" && string(first[8:12]) == "WAVE":
		return "sound (WAV), not tokens", nil
	case len(first) > 262 && string(first[257:262]) == "ustar":
		return "a tar archive, not tokens; extract the files", nil
	case isPickle(first):
		return "a Python pickle, not headerless tokens; write the array in it on its own, as NumPy's tofile does", nil
	case IsArrowStream(first):
		return "an Arrow stream, not tokens; " + tableRemedy, nil
	case in.isTFRecord(first):
		return "a TFRecord file, not headerless tokens; write the tokens in it on their own, as NumPy's tofile does", nil
	}
	if sharded, err := in.isSampleShard(first); sharded || err != nil {
		return "a shard of LitData or MosaicML Streaming, not headerless tokens; write the tokens in it on their own, as NumPy's tofile does", err
	}
	if packed, err := in.isPbin(first); packed || err != nil {
		return "a packed dataset of Modalities (.pbin), not headerless tokens; write the tokens in it on their own, as NumPy's tofile does", err
	}
	if skippable, err := in.isSkippable(first); skippable || err != nil {
		return "compressed with zstd or lz4; decompress it: unzstd FILE, or unlz4 FILE", err
	}
	return "", nil
}

// oldPickle matches the bytes after the version number in pickles of version 2 and 3: the start of
// a list or a dictionary, or the module and name of a class or function.
var oldPickle = regexp.MustCompile(`^([\]}]q\x00|c[A-Za-z_][\w.]*\n[A-Za-z_][\w.]*\n)`)

func isPickle(first []byte) bool {
	if len(first) < 12 || first[0] != 0x80 {
		return false
	}
	switch first[1] {
	case 2, 3:
		return oldPickle.Match(first[2:])
	case 4, 5: // a frame follows, which begins with its length
		return first[2] == 0x95 && string(first[8:11]) == "\x00\x00\x00"
	}
	return false
}

// IsArrowStream reports whether a file is an IPC stream of Arrow. Such a stream begins with a
// marker (since Arrow 0.15), the length of a flatbuffer, and the flatbuffer itself, which holds a
// Message with a schema.
func IsArrowStream(first []byte) bool {
	b := bytes.TrimPrefix(first, []byte("\xff\xff\xff\xff"))
	if len(b) < 36 {
		return false
	}
	length, b := binary.LittleEndian.Uint32(b), b[4:]
	root := int64(binary.LittleEndian.Uint32(b))
	if length < 32 || length > 1<<28 || root > int64(len(b))-4 {
		return false
	}
	at := func(pos int64) int64 { // returns the uint16 at pos, or a number that fails every check
		if pos < 0 || pos > int64(len(b))-2 {
			return 1 << 16
		}
		return int64(binary.LittleEndian.Uint16(b[pos:]))
	}
	// The Message refers to a table with the offsets of its fields.
	table := root - int64(int32(binary.LittleEndian.Uint32(b[root:])))
	size, version, kind := at(table), at(table+4), at(table+6)
	const schema = 1
	return size >= 10 && size <= 14 && version < 64 && kind < 64 && kind > 0 && at(root+version) < 5 && at(root+kind)&0xff == schema
}

// isTFRecord reports whether a file is a TFRecord file, which begins with the length of a record
// and a checksum of that length.
func (in *Input) isTFRecord(first []byte) bool {
	if len(first) < 12 {
		return false
	}
	length, sum := binary.LittleEndian.Uint64(first), crc32.Checksum(first[:8], crc32.MakeTable(crc32.Castagnoli))
	return length < uint64(in.Size) && (sum>>15|sum<<17)+0xa282ead8 == binary.LittleEndian.Uint32(first[8:])
}

// isSampleShard reports whether a file is a shard of LitData or MosaicML Streaming. Such a shard
// begins with its number of samples, the offset of each sample, and the size of the file. Beyond
// 4 GiB, LitData drops the upper bits of both.
func (in *Input) isSampleShard(first []byte) (bool, error) {
	if len(first) < 12 {
		return false, nil
	}
	samples, begin := int64(binary.LittleEndian.Uint32(first)), int64(binary.LittleEndian.Uint32(first[4:]))
	end := 4 * (samples + 2) // position after the size of the file
	if samples < 1 || begin < end || begin > in.Size || end > in.Size {
		return false, nil
	}
	last, err := in.read(end-4, 4)
	return err == nil && binary.LittleEndian.Uint32(last) == uint32(in.Size), err
}

// isPbin reports whether a file is a packed dataset of Modalities: the size of all tokens, the size
// of one, the tokens, and a pickle of the documents.
func (in *Input) isPbin(first []byte) (bool, error) {
	const header, pickle = 12, 12
	if len(first) < header {
		return false, nil
	}
	tokens, width := binary.LittleEndian.Uint64(first), binary.LittleEndian.Uint32(first[8:])
	if width != 1 && width != 2 && width != 4 || tokens > uint64(in.Size) || in.Size-int64(tokens) < header+pickle {
		return false, nil
	}
	last, err := in.read(header+int64(tokens), pickle)
	return err == nil && isPickle(last), err
}

// isSkippable reports whether a file begins with a skippable frame of zstd or lz4, which another
// frame or the end of the file follows.
func (in *Input) isSkippable(first []byte) (bool, error) {
	if !IsSkippable(first) || len(first) < 8 {
		return false, nil
	}
	next := 8 + int64(binary.LittleEndian.Uint32(first[4:]))
	if next >= in.Size-4 {
		return next == in.Size, nil
	}
	magic, err := in.read(next, 4)
	return string(magic) == ZstdMagic || string(magic) == LZ4Magic || IsSkippable(magic), err
}

// IsSkippable reports whether a zstd or lz4 frame with these first bytes has no content (RFC 8878,
// section 3.1.2). Writers of seekable files and pzstd add such frames.
func IsSkippable(b []byte) bool {
	return len(b) >= 4 && b[0]>>4 == 5 && string(b[1:4]) == "\x2a\x4d\x18"
}

// IsBzip2 reports whether a file with these first bytes is compressed with bzip2.
func IsBzip2(b []byte) bool {
	return len(b) > 9 && string(b[:3]) == "BZh" && string(b[4:10]) == "1AY&SY"
}

// describeEnd recognizes kinds of files by their last bytes, and returns a description like those
// in magics. size is the size of the file. It returns "" if the file may hold tokens.
func describeEnd(last []byte, size int64) string {
	n := len(last)
	// footer reports whether the file ends in a footer, the length of the footer, and magic.
	footer := func(magic string) bool {
		rest, ok := bytes.CutSuffix(last, []byte(magic))
		return ok && len(rest) >= 4 && int64(binary.LittleEndian.Uint32(rest[len(rest)-4:]))+4+2*int64(len(magic)) <= size
	}
	switch {
	case footer(ParquetMagic), footer("PARE"):
		return parquetDescription
	case footer(arrowFooter):
		return arrowDescription
	case n >= 22 && string(last[n-22:n-18]) == "PK\x05\x06" && string(last[n-2:]) == "\x00\x00":
		return zipDescription
	case n >= 9 && string(last[n-4:]) == "\xb1\xea\x92\x8f":
		return "compressed with zstd; decompress it: unzstd FILE"
	}
	return ""
}

// These are the extensions of files that do not hold headerless tokens.
var (
	containerExtensions = []string{
		".safetensors", ".npz", ".arrow", ".arrows", ".feather", ".ipc", ".parquet", ".orc", ".avro", ".lance", ".h5", ".hdf5", ".mat", ".nc",
		".tfrecord", ".tfrecords", ".array_record", ".arrayrecord", ".mds", ".msgpack", ".pb",
		".gz", ".gzip", ".tgz", ".zst", ".zstd", ".xz", ".bz2", ".lz4", ".lz", ".lzma", ".lzo", ".br", ".sz", ".snappy", ".z", ".zip", ".7z", ".rar", ".tar",
		".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".dill", ".gguf", ".onnx", ".model", ".sqlite", ".db", ".mdb", ".idx", ".index", ".metadata", ".crc",
		".pdf", ".png", ".jpg", ".jpeg", ".gif", ".webp", ".wav", ".mp3", ".flac", ".mp4",
	}
	textExtensions = []string{
		".txt", ".md", ".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".html", ".htm", ".xml", ".yaml", ".yml", ".toml", ".py", ".ipynb", ".log", ".md5", ".sha256",
	}
)

// checkName returns an error if the extension belongs to a kind of file that does not hold
// headerless tokens. It is meant for files whose content was not recognized.
func (in *Input) checkName() error {
	const headerless = "if it holds nothing but tokens, set format = \"headerless\""
	switch extension := path.Ext(in.Path); {
	case slices.Contains(containerExtensions, strings.ToLower(extension)):
		return fmt.Errorf("%s is named %s, but does not look like a complete file of that kind; %s", in.Path, extension, headerless)
	case slices.Contains(textExtensions, strings.ToLower(extension)):
		return fmt.Errorf("%s is named %s, like a file of text, not of tokens; batchfs prepare tokenizes text; %s", in.Path, extension, headerless)
	}
	return nil
}
