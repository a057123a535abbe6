package dataset

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"batchfs/cache"
	"batchfs/cache/array"
	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/terminal"
	"batchfs/cmd/batchfs/vocabulary"
	"batchfs/fs"
	"batchfs/sampler"
)

// identity returns the settings that decide the bytes of a batch, besides those of the tokens, by key.
func (d *Dataset) identity() map[string]any {
	all := d.Split.Values()
	delete(all, "start")
	delete(all, "steps")
	all["dtype"] = d.Sequence.DType // not native
	if d.Sequence.TorchState != nil {
		all["torch_state"] = fmt.Sprintf("sha256:%x", sha256.Sum256(d.Sequence.TorchState))
	}
	return all
}

// label names the sequence by the path that leads to it in a mount of the same tokens under any settings.
func (d *Dataset) label() string {
	all := d.identity()
	delete(all, "torch_state")
	return d.Split.Split + "/" + config.JoinSettings(all)
}

// info returns the content of info.json: everything that decides the bytes of the batches, and their sizes.
func (d *Dataset) info() []byte {
	q := d.Sequence
	batch := q.Arrays()
	stack := batch.Stack()
	type source struct {
		Files     []string `json:"files"`
		Weight    float64  `json:"weight"`
		VocabSize int64    `json:"vocab_size,omitempty"`
		Rows      int      `json:"rows"` // of
		Of        int      `json:"of"`   // rows
	}
	var sources []source
	for i, from := range d.Split.Sources {
		rows, of := q.Share(i)
		sources = append(sources, source{d.sources[i].Files(), from.Weight, d.sources[i].VocabSize(), rows, of})
	}
	return indented(struct {
		Split           string         `json:"split"`
		Sequence        string         `json:"sequence"`
		Tokens          int64          `json:"tokens"`
		Fingerprint     string         `json:"fingerprint"`
		Files           []string       `json:"files"`
		Sources         []source       `json:"sources,omitempty"`
		OnChange        string         `json:"on_change"`
		Version         fs.Version     `json:"changes"`
		Join            bool           `json:"join"`
		TokenDType      array.DType    `json:"token_dtype"`
		VocabSize       int64          `json:"vocab_size,omitempty"`
		BatchSize       int            `json:"batch_size"`
		BlockSize       int            `json:"block_size"`
		DType           array.DType    `json:"dtype"`
		Layout          sampler.Layout `json:"layout"`
		Shape           []int          `json:"shape"`
		BatchBytes      int64          `json:"batch_bytes"`
		Order           sampler.Order  `json:"order"`
		Seed            uint64         `json:"seed"`
		TorchState      any            `json:"torch_state,omitempty"`
		Rank            int            `json:"rank"`
		World           int            `json:"world"`
		Start           uint64         `json:"start"`
		Steps           uint64         `json:"steps"`
		RowsPerEpoch    int64          `json:"rows_per_epoch"`
		BatchesPerEpoch int64          `json:"batches_per_epoch"`
	}{
		q.Split, d.label(), d.Len(), d.fingerprint, d.Files(), sources, d.Split.OnChange, d.version,
		d.Split.Join, d.Split.TokenDType, d.vocabSize(), q.BatchSize, q.BlockSize, stack.DType, q.Layout, stack.Shape, batch.MainBytes(), q.Order, q.Seed,
		d.identity()["torch_state"], q.Rank, q.World, d.Split.Start, d.steps, q.RowsPerEpoch(), q.BatchesPerEpoch(),
	})
}

// vocabSize bounds the tokens of all sources: they are below it. It is 0 unless it is known of every source.
func (d *Dataset) vocabSize() (size int64) {
	for _, tokens := range d.sources {
		if tokens.VocabSize() == 0 {
			return 0
		}
		size = max(size, tokens.VocabSize())
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
	batch := q.Arrays()
	stack := batch.Stack()
	return fmt.Sprintf("%-8s %d %s, %d bytes a batch, order %s, seed %d: %d tokens in %s",
		d.Split.Split, stack.Shape, stack.DType, batch.MainBytes(), q.Order, q.Seed, d.Len(), d.FilesNamed())
}

// maxProvenance is the most rows of a batch that has a batch/<k>.json, which is made in memory.
const maxProvenance = 1 << 16

// provenance is the content of batch/<k>.json: where each row of a batch comes from.
type provenance struct {
	Batch       uint64         `json:"batch"`
	Sequence    string         `json:"sequence"`
	Fingerprint string         `json:"fingerprint"`
	Settings    map[string]any `json:"settings"`
	Rows        []rowOrigin    `json:"rows"`
}

type rowOrigin struct {
	Row    uint64 `json:"row"` // global number
	Epoch  uint64 `json:"epoch"`
	File   string `json:"file"`
	Start  int64  `json:"start"`            // index in the file of the row's first token
	Source *int   `json:"source,omitempty"` // where the split mixes several
}

func (d *Dataset) provenance(k uint64) provenance {
	p := provenance{k, d.label(), d.fingerprint, d.identity(), nil}
	p.Settings["split"], p.Settings["join"], p.Settings["token_dtype"] = d.Split.Split, d.Split.Join, d.Split.TokenDType
	for j := range d.Sequence.BatchSize {
		source, start := d.Sequence.Start(k, j)
		at := d.sources[source].Locate(start)
		row := rowOrigin{d.Sequence.Row(k, j), d.Sequence.Epoch(k, j), at.Path, at.Index, nil}
		if len(d.Split.Sources) > 0 {
			row.Source = &source
		}
		p.Rows = append(p.Rows, row)
	}
	return p
}

// Provenance returns as JSON where each row of batch k comes from: its number among all rows, its epoch, its file and source,
// and the index in the file of its first token. A mount shows it as batch/<k>.json. k is below sampler.MaxBatches.
func (d *Dataset) Provenance(k uint64) []byte { return indented(d.provenance(k)) }

// Describe writes the provenance of batch k for people, with the text of each row where a vocabulary lies beside its token file.
// k is below sampler.MaxBatches.
func (d *Dataset) Describe(out io.Writer, k uint64) error {
	p := d.provenance(k)
	vocabularies := map[string]*vocabulary.Vocabulary{} // by directory
	fmt.Fprintf(out, "batch %d of %s\nfingerprint %s\n", k, p.Sequence, p.Fingerprint)
	for j, row := range p.Rows {
		source := ""
		if row.Source != nil {
			source = fmt.Sprintf(", source %d", *row.Source)
		}
		fmt.Fprintf(out, "\nrow %d: number %d, epoch %d%s, %s from token %d on\n", j, row.Row, row.Epoch, source, row.File, row.Start)
		dir := filepath.Dir(row.File)
		v, known := vocabularies[dir]
		if !known {
			var err error
			if v, err = vocabulary.Read(filepath.Join(dir, vocabulary.FileName)); err != nil {
				return err
			}
			vocabularies[dir] = v
		}
		if v == nil {
			continue
		}
		text, err := d.text(k, j, v)
		if err != nil {
			return err
		}
		if terminal.Is(out) {
			text = terminal.Printable(text)
		}
		fmt.Fprintf(out, "    %s\n", strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n    "))
	}
	return nil
}

// text returns what the first T tokens of row j of batch k stand for.
func (d *Dataset) text(k uint64, j int, v *vocabulary.Vocabulary) (string, error) {
	source, start := d.Sequence.Start(k, j)
	tokens := d.sources[source]
	size := tokens.DType().Size()
	var text strings.Builder
	err := tokens.Read([]cache.Window{{Start: start, Len: d.Sequence.BlockSize}}, func(_ int, raw []byte) error {
		for ; len(raw) > 0; raw = raw[size:] {
			token := uint32(binary.LittleEndian.Uint16(raw))
			if size == 4 {
				token = binary.LittleEndian.Uint32(raw)
			}
			text.WriteString(v.Text(int(token)))
		}
		return nil
	})
	return text.String(), err
}
