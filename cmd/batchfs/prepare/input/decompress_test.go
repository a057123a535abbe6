package input

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

	"batchfs/cmd/batchfs/internal/testfiles"
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

func gzipped(text string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	io.WriteString(w, text)
	w.Close()
	return b.String()
}

func zstandard(text string) string {
	var b bytes.Buffer
	w, _ := zstd.NewWriter(&b)
	io.WriteString(w, text)
	w.Close()
	return b.String()
}

func skippableFrame(id byte, content string) []byte {
	frame := binary.LittleEndian.AppendUint32([]byte{0x50 | id, 0x2a, 0x4d, 0x18}, uint32(len(content)))
	return append(frame, content...)
}

// Every way to cut a compressed file is an error, unless it leaves whole frames or members.
func TestCompressedFiles(t *testing.T) {
	t.Parallel()
	compress := map[string]func(text string) []byte{
		"gzip": func(text string) []byte { return []byte(gzipped(text)) },
		"zstd": func(text string) []byte { return []byte(zstandard(text)) },
		"raw":  func(text string) []byte { return []byte(testfiles.ZstdFrame(7<<3, text)) },
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
		content, d, err := decompressed(t, []byte(testfiles.ZstdFrame(byte(log-10)<<3, "text")))
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
