package input

import (
	"bytes"
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	tokenfile "batchfs/cache/format"
)

// A NonText is a kind of file that prepare refuses to read as text.
type NonText struct {
	what       string
	extensions string // separated by spaces
	magic      string // first bytes; empty if only the name tells
	remedy     string
	Binary     bool // whether --invalid skip leaves such files out
}

const fromCSV = "write its rows as JSON lines: python3 -c 'import csv, json, sys; csv.field_size_limit(1 << 30); " +
	"[print(json.dumps(row)) for row in csv.DictReader(sys.stdin%s)]' <FILE >FILE.jsonl"

var (
	jsonList   = &NonText{what: "a JSON list", remedy: "write one object per line: jq -c '.[]' FILE >FILE.jsonl"}
	jsonObject = &NonText{what: "a JSON object on several lines", remedy: "write it as one line: jq -c . FILE >FILE.jsonl, " +
		"or, if it has a list data of documents: jq -c '.data[]' FILE >FILE.jsonl"}
	jsonLines   = &NonText{what: "a file of JSON lines", remedy: "use --as jsonl, or call it FILE.jsonl"}
	bzip2File   = &NonText{what: "a bzip2 file", extensions: ".bz2", remedy: decompress}
	arrowStream = &NonText{what: "an Arrow stream", remedy: "use --as arrow, or call it FILE.arrow", Binary: true}
	utf16       = &NonText{what: "UTF-16", remedy: "convert it: iconv -f UTF-16 -t UTF-8 FILE >FILE.txt", Binary: true}
)

// The kinds that a name or the first bytes tell. Names come first, because many kinds are zip
// archives.
var nonTexts = []*NonText{
	{"a CSV table", ".csv", "", fmt.Sprintf(fromCSV, ""), false},
	{"a TSV table", ".tsv", "", fmt.Sprintf(fromCSV, `, dialect="excel-tab"`), false},
	{"a NumPy array", ".npy", tokenfile.NpyMagic, "if it holds token ids, mount it without prepare", true},
	{"an archive of NumPy arrays", ".npz", "", "if an array holds token ids, save it with numpy.save and mount that file", true},
	{"a Parquet file", "", tokenfile.ParquetMagic + "\x15", "use --as parquet, or call it FILE.parquet", true},
	{"an Arrow file", "", tokenfile.ArrowMagic, "use --as arrow, or call it FILE.arrow", true},
	{"a PDF file", ".pdf", tokenfile.PDFMagic, "extract its text: pdftotext FILE", true},
	{"a document", ".docx .odt .epub", "", "extract its text: pandoc -t plain FILE -o FILE.txt", true},
	{"an office file", ".doc .xls .xlsx .ppt .pptx .ods .odp", "", "save it as text", true},
	{"an archive", ".zip .tar .tgz .7z .rar", tokenfile.ZipMagic, "unpack it, and name the files in it", true},
	bzip2File,
	{"an xz file", ".xz", tokenfile.XzMagic, decompress, false},
	{"an LZ4 file", ".lz4", tokenfile.LZ4Magic, decompress, false},
	{"a compressed file", ".br .lz .z .sz", "", decompress, false},
	{"an image", ".png .jpg .jpeg .gif .webp .bmp .tif .tiff .ico", "", onlyText, true},
	{"audio or video", ".mp3 .wav .flac .ogg .mp4 .mkv .webm", "", onlyText, true},
	{"a file of numbers", ".bin .idx .pt .pth .pkl .safetensors .h5 .hdf5", "", "if it holds token ids, mount it without prepare; " +
		"otherwise, " + onlyText, true},
}

const decompress = "decompress it; prepare reads only gzip and zstd"

const onlyText = "name only text, such as with --include '*.txt'"

// withoutCompression returns a path in lower case, without the extension of gzip or zstd.
func withoutCompression(path string) string {
	return strings.TrimSuffix(strings.TrimSuffix(strings.ToLower(path), ".gz"), ".zst")
}

// fileExtension returns the extension of a path, in lower case and without that of a compression.
func fileExtension(path string) string { return filepath.Ext(withoutCompression(path)) }

// HasCompressedName reports whether a file should be gzip or zstd, going by its name.
func (in *File) HasCompressedName() bool {
	return withoutCompression(in.Path) != strings.ToLower(in.Path)
}

// NonTextName returns what the name of an input tells, or nil.
func (in *File) NonTextName() *NonText {
	extension := fileExtension(in.Path)
	for _, kind := range nonTexts {
		if slices.Contains(strings.Fields(kind.extensions), extension) {
			return kind
		}
	}
	return nil
}

var (
	listStart      = regexp.MustCompile(`^\s*\[\s*\{\s*"`)
	openObjectLine = regexp.MustCompile(`^\s*\{\s*\n`)
)

// jsonName matches names of JSON lines and lists, such as a.jsonl-00000-of-00010, but not those of
// other formats that resemble JSON, such as a.jsonc.
var jsonName = regexp.MustCompile(`(?i)\.(json|jsonl|jsonlines|ndjson)([-_.]\d.*)?$`)

// NonTextContent returns what the beginning of an input tells, or nil.
func (in *File) NonTextContent(beginning []byte) *NonText {
	begin := beginning[:min(len(beginning), 8<<10)]
	extension := fileExtension(in.Path)
	mayBeJSON := extension == "" || extension == ".txt" || extension == ".jl" || jsonName.MatchString(filepath.Base(in.Path))
	switch {
	case in.AsText:
		return nil
	case bytes.HasPrefix(begin, []byte("\xff\xfe")), bytes.HasPrefix(begin, []byte("\xfe\xff")):
		return utf16
	case tokenfile.IsBzip2(begin):
		return bzip2File
	case in.Format == JSONL && bytes.HasPrefix(bytes.TrimSpace(begin), []byte("[")), mayBeJSON && listStart.Match(begin):
		return jsonList
	case in.Format == JSONL && openObjectLine.Match(begin):
		return jsonObject
	case in.Format == JSONL:
		return nil
	case mayBeJSON && bytes.HasPrefix(begin, []byte("{")):
		if line, _, _ := bytes.Cut(beginning, []byte("\n")); jsontext.Value(line).IsValid() {
			return jsonLines
		}
	}
	for _, kind := range nonTexts {
		if kind.magic != "" && bytes.HasPrefix(begin, []byte(kind.magic)) {
			return kind
		}
	}
	if tokenfile.IsArrowStream(begin) {
		return arrowStream
	}
	controls := 0
	for _, b := range begin {
		if b < ' ' && !('\b' <= b && b <= '\r') && b != '\x1b' {
			controls++
		}
	}
	if 100*controls <= len(begin) {
		return nil
	}
	what := "binary data"
	if kind := http.DetectContentType(begin); !strings.HasPrefix(kind, "text/") && kind != "application/octet-stream" {
		what += " (" + kind + ")"
	}
	return &NonText{what: what, remedy: onlyText, Binary: true}
}

// Refused returns the error for a file of this kind.
func (n *NonText) Refused() error {
	remedy := n.remedy
	if !strings.HasSuffix(remedy, onlyText) {
		remedy += "; to leave it out, " + onlyText
	}
	return fmt.Errorf("is %s, not text (--as text encodes it as it is): %s", n.what, remedy)
}
