package dataset

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"batchfs/cache"
	"batchfs/cache/array"
	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/terminal"
	"batchfs/cmd/batchfs/vocabulary"
	"batchfs/internal/jsontext"
	"batchfs/sampler"
)

// identity returns the settings that decide the bytes of a batch, besides those of the tokens, by key.
func (d *Dataset) identity() map[string]any {
	all := d.Split.Values()
	delete(all, "start")
	delete(all, "steps")
	all["dtype"] = d.Sequence.DType // not native
	if d.Sequence.ShuffleBlock == 0 {
		delete(all, "shuffle_block")
		delete(all, "local_world")
	}
	if d.Sequence.TorchState != nil {
		all["torch_state"] = fmt.Sprintf("sha256:%x", sha256.Sum256(d.Sequence.TorchState))
	}
	return all
}

// label names the sequence by the path that leads to it in a mount of the same tokens under any settings.
func (d *Dataset) label() string {
	all := d.identity()
	delete(all, "torch_state")
	if !d.Sequence.DType.IsInteger() {
		all["dtype"] = sampler.Native // there is no other
	}
	return d.Split.Split + "/" + config.JoinSettings(all)
}

// Metadata says in files of tensors which batches they hold.
func (d *Dataset) Metadata() map[string]string {
	return map[string]string{"sequence": d.label(), "fingerprint": d.fingerprint}
}

// Info returns the content of info.json: everything that decides the bytes of the batches, and their sizes.
func (d *Dataset) Info() []byte {
	q := d.Sequence
	batch, settings := q.Batch(), d.settings()
	stack := batch.Stack()
	type source struct {
		Files     []jsontext.String `json:"files"`
		Weight    float64           `json:"weight"`
		VocabSize int64             `json:"vocab_size,omitempty"`
		Rows      int               `json:"rows"` // of
		Of        int               `json:"of"`   // rows
	}
	var sources []source
	for i, from := range d.Split.Sources {
		rows, of := q.Share(i)
		sources = append(sources, source{jsonTexts(d.sources[i].main().Files()), from.Weight, d.sources[i].main().VocabSize(), rows, of})
	}
	return indented(struct {
		Split           string            `json:"split"`
		Sequence        string            `json:"sequence"`
		Tokens          int64             `json:"tokens"`
		Fingerprint     string            `json:"fingerprint"`
		Files           []jsontext.String `json:"files"`
		Sources         []source          `json:"sources,omitempty"`
		OnChange        string            `json:"on_change"`
		Version         uint64            `json:"changes"`
		Join            bool              `json:"join"`
		TokenDType      array.DType       `json:"token_dtype"`
		VocabSize       int64             `json:"vocab_size,omitempty"`
		BatchSize       int               `json:"batch_size"`
		BlockSize       int               `json:"block_size"`
		DType           array.DType       `json:"dtype"`
		Layout          sampler.Layout    `json:"layout"`
		Rows            any               `json:"rows,omitempty"`
		Documents       any               `json:"documents,omitempty"`
		MaskTargets     any               `json:"mask_targets,omitempty"`
		EOT             any               `json:"eot,omitempty"`
		Shape           []int             `json:"shape"`
		BatchBytes      int64             `json:"batch_bytes"`
		Arrays          []arrayInfo       `json:"arrays"`
		Order           sampler.Order     `json:"order"`
		Seed            uint64            `json:"seed"`
		TorchState      any               `json:"torch_state,omitempty"`
		ShuffleBlock    any               `json:"shuffle_block,omitempty"`
		LocalWorld      any               `json:"local_world,omitempty"`
		Rank            int               `json:"rank"`
		World           int               `json:"world"`
		Start           uint64            `json:"start"`
		Steps           uint64            `json:"steps"`
		RowsPerEpoch    int64             `json:"rows_per_epoch"`
		BatchesPerEpoch int64             `json:"batches_per_epoch"`
	}{
		q.Split, d.label(), d.Len(), d.fingerprint, jsonTexts(d.Files()), sources, d.Split.OnChange, d.Version,
		d.Split.Join, q.Stored(), d.vocabSize(), q.BatchSize, q.BlockSize, stack.DType, q.Layout,
		settings["rows"], settings["documents"], settings["mask_targets"], settings["eot"], stack.Shape, batch.MainBytes(), d.arrayInfos(), q.Order, q.Seed,
		settings["torch_state"], settings["shuffle_block"], settings["local_world"], q.Rank, q.World, d.Split.Start, d.Steps, q.RowsPerEpoch(), q.BatchesPerEpoch(),
	})
}

// An arrayInfo describes an array of a batch, as it lies in a .safetensors file.
type arrayInfo struct {
	Name   string            `json:"name"`
	DType  array.DType       `json:"dtype"`
	Shape  []int             `json:"shape"`
	Offset int64             `json:"offset"`
	At     sampler.At        `json:"at,omitempty"`    // of one beside the tokens, as are the files
	Files  []jsontext.String `json:"files,omitempty"` // of all sources
}

func (d *Dataset) arrayInfos() (list []arrayInfo) {
	for _, a := range d.Sequence.Batch().Arrays {
		info := arrayInfo{Name: a.Name, DType: a.DType, Shape: a.Shape, Offset: a.Offset}
		for n, b := range d.Split.BesideOf(0) {
			if b.Name != a.Name {
				continue
			}
			info.At = b.At
			for _, source := range d.sources {
				info.Files = append(info.Files, jsonTexts(source[n+1].Files())...)
			}
		}
		list = append(list, info)
	}
	return list
}

func jsonTexts(paths []string) []jsontext.String {
	texts := make([]jsontext.String, len(paths))
	for i, path := range paths {
		texts[i] = jsontext.String(path)
	}
	return texts
}

// vocabSize bounds the tokens of all sources: they are below it. It is 0 unless it is known of every source.
func (d *Dataset) vocabSize() (size int64) {
	for _, source := range d.sources {
		if source.main().VocabSize() == 0 {
			return 0
		}
		size = max(size, source.main().VocabSize())
	}
	return size
}

func indented(v any) []byte {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		panic(err) // only of types that JSON does not have
	}
	return append(text, '\n')
}

// Summary describes the dataset in one line for people.
func (d *Dataset) Summary() string {
	q := d.Sequence
	batch := q.Batch()
	stack := batch.Stack()
	beside := ""
	for _, b := range d.Split.BesideOf(0) {
		beside += ", array " + b.Name
	}
	return fmt.Sprintf("%-8s %d %s, %d bytes a batch, order %s%s, seed %d%s: %s",
		d.Split.Split, stack.Shape, stack.DType, batch.MainBytes(), q.Order, d.inBlocks(), q.Seed, beside, d.Counted())
}

// inBlocks says in words what shuffle_block does to the order.
func (d *Dataset) inBlocks() (text string) {
	q := d.Sequence
	if q.ShuffleBlock == 0 {
		return ""
	}
	text = fmt.Sprintf(" in blocks of %v", d.Split.Values()["shuffle_block"])
	if hosts := q.World / q.LocalWorld; hosts > 1 {
		text += fmt.Sprintf(", %d rows of host %d of %d", q.RowsPerEpoch(), q.Rank/q.LocalWorld, hosts)
	}
	return text
}

// Counted says in words how many tokens there are, or rows, and in which files.
func (d *Dataset) Counted() string {
	what := "tokens"
	if d.Sequence.Layout == sampler.Elements {
		what = "rows"
	}
	return fmt.Sprintf("%d %s in %s", d.Len(), what, d.FilesNamed())
}

// settings are those that decide what batches hold, by key.
func (d *Dataset) settings() map[string]any {
	all := d.identity()
	all["split"], all["join"], all["token_dtype"] = d.Split.Split, d.Split.Join, d.Sequence.Stored()
	if d.Split.Ends != sampler.EndsUnknown {
		all["documents"], all["mask_targets"], all["rows"], all["eot"] = d.Split.DocumentsSetting(), d.Split.MaskTargets, d.Split.Rows, d.Split.EndOfText
	}
	return all
}

// A rowOrigin is where a row of a batch comes from.
type rowOrigin struct {
	row    uint64 // global number
	epoch  uint64
	source int
	file   string
	start  int64 // index in the file of the row's first token
	pieces []sampler.Piece
}

// origin says where row j of batch k comes from. The error is one of reading where documents end.
func (d *Dataset) origin(k uint64, j int) (r rowOrigin, err error) {
	r = rowOrigin{row: d.Sequence.Row(k, j), epoch: d.Sequence.Epoch(k, j)}
	if r.source, r.pieces, err = d.Sequence.Pieces(k, j); err == nil {
		at := d.sources[r.source].main().Locate(r.pieces[0].Start)
		r.file, r.start = at.Path, at.Index
	}
	return r, err
}

// Origins are the files batch/<k>.json of a dataset: where each row of batch k comes from, that is its number among all rows, its
// epoch, its file and source, and the index in the file of its first token; where an index of documents is known, also the number of the
// first token's document, and how many pieces of documents a row is made of. Every row takes a line of the same width, so that
// any part of the file can be made by itself, and the size is known.
type Origins struct {
	d     *Dataset
	head  []byte // of the file, behind the number of the batch
	width int    // of a row's line in bytes
}

const (
	originsFirst = "{\n  \"batch\": %13d" // 13 digits have room for sampler.MaxBatches
	originsLast  = "  ]\n}\n"
)

// Origins returns the origins of the rows of d's batches.
func (d *Dataset) Origins() *Origins {
	const behind = "\n}\n"
	head := indented(struct {
		Sequence    string         `json:"sequence"`
		Fingerprint string         `json:"fingerprint"`
		Settings    map[string]any `json:"settings"`
	}{d.label(), d.fingerprint, d.settings()})
	head = fmt.Appendf(nil, ",%s,\n  \"rows\": [\n", head[len("{"):len(head)-len(behind)])
	o := &Origins{d: d, head: head}
	longest := 0
	for _, path := range d.Files() {
		longest = max(longest, len(jsonOf(path)))
	}
	o.width = len(o.line(rowOrigin{source: max(len(d.Split.Sources)-1, 0), pieces: make([]sampler.Piece, 1)})) - len(jsonOf("")) + longest
	return o
}

func jsonOf(path string) []byte {
	text, _ := jsontext.String(path).MarshalJSON() // which never fails
	return text
}

// line is that of a row, without what fills it up to the width.
func (o *Origins) line(r rowOrigin) []byte {
	line := fmt.Appendf(nil, `    {"row": %20d, "epoch": %20d, "file": %s, "start": %19d`, r.row, r.epoch, jsonOf(r.file), r.start)
	if o.d.Split.Ends == sampler.EndsByIndex {
		line = fmt.Appendf(line, `, "document": %19d, "pieces": %10d`, r.pieces[0].Document, len(r.pieces))
	}
	if len(o.d.Split.Sources) > 0 {
		line = fmt.Appendf(line, `, "source": %d`, r.source)
	}
	return append(line, "},\n"...)
}

// Len is the length of the file of each batch.
func (o *Origins) Len() int64 {
	return int64(len(o.first(0))+len(o.head)) + int64(o.d.Sequence.BatchSize)*int64(o.width) + int64(len(originsLast))
}

func (o *Origins) first(k uint64) []byte { return fmt.Appendf(nil, originsFirst, k) }

// Read fills dst with what the file of batch k holds from byte off on, within its length. k is below sampler.MaxBatches. The error is
// one of reading where documents end.
func (o *Origins) Read(dst []byte, k uint64, off int64) error {
	take := func(part []byte) {
		if off >= int64(len(part)) {
			off -= int64(len(part))
			return
		}
		dst = dst[copy(dst, part[off:]):]
		off = 0
	}
	take(o.first(k))
	take(o.head)
	rows, width := o.d.Sequence.BatchSize, int64(o.width)
	j := int(min(off/width, int64(rows)))
	for off -= int64(j) * width; j < rows && len(dst) > 0; j++ {
		origin, err := o.d.origin(k, j)
		if err != nil {
			return err
		}
		line := o.line(origin)
		padding := bytes.Repeat([]byte{' '}, o.width-len(line))
		end := []byte(",\n")
		if j == rows-1 {
			end = []byte(" \n")
		}
		take(slices.Concat(line[:len(line)-len(end)], padding, end))
	}
	take([]byte(originsLast))
	return nil
}

// Write writes the file of batch k.
func (o *Origins) Write(out io.Writer, k uint64) error {
	part := make([]byte, 1<<16)
	for off := int64(0); off < o.Len(); off += int64(len(part)) {
		part = part[:min(int64(len(part)), o.Len()-off)]
		if err := o.Read(part, k, off); err != nil {
			return err
		}
		if _, err := out.Write(part); err != nil {
			return err
		}
	}
	return nil
}

// Describe writes for people where each row of batch k comes from, with the text of each row where a vocabulary lies beside its token file.
// k is below sampler.MaxBatches.
func (d *Dataset) Describe(out io.Writer, k uint64) error {
	vocabularies := map[string]*vocabulary.Manifest{} // by directory
	fmt.Fprintf(out, "batch %d of %s\nfingerprint %s\n", k, d.label(), d.fingerprint)
	for j := range d.Sequence.BatchSize {
		row, err := d.origin(k, j)
		if err != nil {
			return err
		}
		source := ""
		if len(d.Split.Sources) > 0 {
			source = fmt.Sprintf(", source %d", row.source)
		}
		fmt.Fprintf(out, "\nrow %d: number %d, epoch %d%s, ", j, row.row, row.epoch, source)
		if len(row.pieces) > 1 {
			fmt.Fprintf(out, "%d pieces\n", len(row.pieces))
		}
		for _, p := range row.pieces {
			at := d.sources[row.source].main().Locate(p.Start)
			if len(row.pieces) > 1 {
				fmt.Fprintf(out, "  from index %d on, ", p.At)
			}
			if d.Sequence.Rows != sampler.Windows {
				fmt.Fprintf(out, "%d tokens of ", p.Len)
			}
			fmt.Fprintf(out, "%s from token %d on", terminal.Printable(at.Path), at.Index)
			if p.Document >= 0 {
				fmt.Fprintf(out, ", document %d", p.Document)
			}
			fmt.Fprintln(out)
			if d.Sequence.Layout == sampler.Elements {
				continue // of numbers there is no text
			}
			dir := filepath.Dir(at.Path)
			v, known := vocabularies[dir]
			if !known {
				if v, err = vocabulary.Read(filepath.Join(dir, vocabulary.FileName)); err != nil {
					return err
				}
				vocabularies[dir] = v
			}
			if v == nil {
				continue
			}
			text, err := d.text(row.source, p, v)
			if err != nil {
				return err
			}
			if terminal.Is(out) {
				text = terminal.Printable(text)
			}
			fmt.Fprintf(out, "    %s\n", strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n    "))
		}
	}
	return nil
}

// text returns what the tokens of a piece of a row stand for, up to the first T of the row.
func (d *Dataset) text(source int, p sampler.Piece, v *vocabulary.Manifest) (string, error) {
	tokens := d.sources[source].main()
	size := tokens.DType().Size()
	var text strings.Builder
	first := min(p.Len, d.Sequence.BlockSize-p.At)
	if first == 0 {
		return "", nil
	}
	err := tokens.Read([]cache.Window{{Start: p.Start, Len: first}}, func(_ int, raw []byte) error {
		text.Reset()
		for ; len(raw) > 0; raw = raw[size:] {
			text.WriteString(v.Text(int(min(tokens.DType().Bits(raw), math.MaxInt))))
		}
		return nil
	})
	return text.String(), err
}
