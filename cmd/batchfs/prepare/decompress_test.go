package prepare

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// decompressed returns the content of a compressed file.
func decompressed(t *testing.T, file []byte) (content []byte, d *decompressor, err error) {
	t.Helper()
	d, err = newDecompressor(file[:min(len(file), 4)], bytes.NewReader(file))
	if err != nil || d == nil {
		return nil, d, err
	}
	defer d.close()
	content, err = io.ReadAll(d)
	return content, d, err
}

func skippableFrame(id byte, content string) []byte {
	frame := binary.LittleEndian.AppendUint32([]byte{0x50 | id, 0x2a, 0x4d, 0x18}, uint32(len(content)))
	return append(frame, content...)
}

// rawFrame returns a zstd frame with an uncompressed block. descriptor holds the window, as in RFC
// 8878, section 3.1.1.1.2.
func rawFrame(descriptor byte, content string) []byte {
	n := len(content)<<3 | 1
	return append([]byte{0x28, 0xb5, 0x2f, 0xfd, 0, descriptor, byte(n), byte(n >> 8), byte(n >> 16)}, content...)
}

// Every way to cut a compressed file is an error, unless it leaves whole frames or members.
func TestCompressedFiles(t *testing.T) {
	t.Parallel()
	compress := map[string]func(text string) []byte{
		"gzip": func(text string) []byte {
			var b bytes.Buffer
			w := gzip.NewWriter(&b)
			w.Write([]byte(text))
			w.Close()
			return b.Bytes()
		},
		"zstd": func(text string) []byte { return []byte(zstandard(text)) },
		"raw":  func(text string) []byte { return rawFrame(7<<3, text) },
	}
	between := map[string][][]byte{
		"gzip": {nil, {0}, make([]byte, 600), make([]byte, 70_000)},
		"zstd": {nil, skippableFrame(0, ""), skippableFrame(15, "abcd"), skippableFrame(4, strings.Repeat("\x28\xb5\x2f\xfd", 20_000))},
	}
	between["raw"] = between["zstd"]
	for kind, compress := range compress {
		for _, extra := range between[kind] {
			var file []byte
			if kind != "gzip" {
				file = append(file, extra...)
			}
			// whole has the content of all files that may end where the key says.
			whole := map[int]string{len(file): ""}
			content := ""
			for _, text := range []string{"first", strings.Repeat("second ", 300), "", "last\n"} {
				file = append(file, compress(text)...)
				content += text
				whole[len(file)] = content
				for range extra {
					if kind == "gzip" {
						file = append(file, 0)
						whole[len(file)] = content
					}
				}
				if kind != "gzip" {
					file = append(file, extra...)
					whole[len(file)] = content
				}
			}
			for n := 4; n <= len(file); n++ {
				if n > 300 && n < len(file)-300 {
					n = min(n+10_000, len(file)-300)
				}
				got, d, err := decompressed(t, file[:n])
				want, isWhole := whole[n]
				switch {
				case d == nil && err == nil:
					t.Fatalf("%s, %d of %d bytes: is not recognized", kind, n, len(file))
				case isWhole && (err != nil || string(got) != want):
					t.Fatalf("%s, %d of %d bytes: got %d bytes and %v, want %d", kind, n, len(file), len(got), err, len(want))
				case !isWhole && !errors.Is(err, errTruncated) && !errors.Is(err, errTrailing):
					t.Fatalf("%s, %d of %d bytes: got %d bytes and %v, want that it is truncated", kind, n, len(file), len(got), err)
				}
			}
			if _, _, err := decompressed(t, append(bytes.Clone(file), "garbage"...)); err != errTrailing {
				t.Errorf("%s with bytes after its end: %v", kind, err)
			}
		}
	}
}

// An error of a disk or a store is reported as it is, wherever it occurs, and not as damage.
func TestCompressedFilesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	failed := errors.New("the store does not answer")
	for _, file := range []string{gzipped("text"), gzipped("text") + gzipped("more"), zstandard("text"), string(skippableFrame(0, "abcd")) + zstandard("text")} {
		for n := 4; n <= len(file); n++ {
			d, err := newDecompressor([]byte(file[:4]), io.MultiReader(strings.NewReader(file[:n]), iotest.ErrReader(failed)))
			if err == nil {
				_, err = io.Copy(io.Discard, d)
				d.close()
			}
			if err != failed {
				t.Errorf("after %d of %d bytes: %v, want %v", n, len(file), err, failed)
			}
		}
	}
}

func TestZstdWindows(t *testing.T) {
	t.Parallel()
	for log := 10; log <= 34; log++ {
		content, d, err := decompressed(t, rawFrame(byte(log-10)<<3, "text"))
		switch {
		case log <= 31 && (err != nil || string(content) != "text" || d.window != 1<<log):
			t.Errorf("a window of 2^%d bytes: %q, %v", log, content, err)
		case log > 31 && (err == nil || !strings.Contains(err.Error(), "more than 2 GiB")):
			t.Errorf("a window of 2^%d bytes: %q, %v, want an error", log, content, err)
		}
	}
	var b bytes.Buffer
	w, _ := zstd.NewWriter(&b, zstd.WithWindowSize(zstd.MaxWindowSize))
	io.Copy(w, io.LimitReader(strings.NewReader(strings.Repeat("a text that repeats ", 1<<16)), 1<<20))
	w.Close()
	if content, _, err := decompressed(t, b.Bytes()); len(content) != 1<<20 || err != nil {
		t.Errorf("%d bytes, %v", len(content), err)
	}
}

// prepare announces large windows, and reads such files with --invalid skip, too, which reads texts
// twice.
func TestPrepareLargeWindow(t *testing.T) {
	useSmallChunks(t, 4<<10, 1<<20)
	text := strings.Repeat("many words ", 1<<12)
	writeFilesHere(t, map[string]string{"a.txt.zst": string(rawFrame(21<<3, text)), "b.jsonl.zst": zstandard("{\"text\": \"last\"}\n"), "c": text + "\xff"})
	for _, invalid := range []string{"error", "skip"} {
		said := prepared(t, "a.txt.zst b.jsonl.zst --by byte --val 0 --force --out out --invalid "+invalid)
		const want = "decompressing takes up to 2.1 GB of memory, because zstd --long compressed 1 file; the one with the largest window is a.txt.zst\n"
		if got := decoded(readManifest(t), readTokens(t, "out/train.bin")); got != text+"last" || !strings.Contains(said, want) {
			t.Errorf("--invalid %s: %d bytes of text, want %d; said %q", invalid, len(got), len(text)+4, said)
		}
	}
}

// --invalid skip leaves out no compressed file, because it may hold text.
func TestPrepareKeepsCompressedFiles(t *testing.T) {
	for name, test := range map[string]struct{ content, want string }{
		"a.gz":        {"\x00\x01\xff\x02", "is neither gzip nor zstd, and not text"},
		"a.jsonl.zst": {"\x25\xb5\x2f\xfd\x00", "is neither gzip nor zstd, and not text"},
		"a.bz2":       {"", "is a bzip2 file, not text (--as text encodes it as it is): decompress it"},
		"a":           {"BZh51AY&SY\x00\x01\xff", "is a bzip2 file"},
		"a.txt":       {"\xfd7zXZ\x00\x00", "is an xz file"},
		"a.lz4":       {"", "is an LZ4 file"},
		"lz4":         {"\x04\x22\x4d\x18\x00", "is an LZ4 file"},
		"a.br":        {"", "is a compressed file"},
		"cut.gz":      {gzipped("some text")[:20], "is truncated: its compressed data has no end"},
		"cut.zst":     {zstandard("some text")[:12], "is truncated: its compressed data has no end"},
		"more.gz":     {gzipped("some text") + "\x00more", "has bytes after the end of the compressed data"},
		"more.zst":    {zstandard("some text") + "more", "has bytes after the end of the compressed data"},
	} {
		writeFilesHere(t, map[string]string{name: test.content})
		for _, invalid := range []string{"error", "skip"} {
			wantError(t, name+" --by pairs --val 0 --force --out out --invalid "+invalid, name+": "+test.want)
		}
	}
	writeFilesHere(t, map[string]string{"BZh.txt": "BZh9 is no bzip2 file", "plain.gz": "plain text"})
	prepared(t, "BZh.txt plain.gz --by pairs --val 0 --force --out out --invalid skip")
}
