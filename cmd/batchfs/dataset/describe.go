package dataset

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"path/filepath"
	"strings"

	"batchfs/cache"
	"batchfs/cache/array"
	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/terminal"
	"batchfs/cmd/batchfs/vocabulary"
	"batchfs/internal/jsonbytes"
	"batchfs/internal/printable"
	"batchfs/sampler"
)

// settings returns the settings that decide the bytes of a batch, by key, for info.json. It leaves
// out those that are not set, and those of features that are not used.
func (d *Dataset) settings() map[string]any {
	q, s := d.Sequence, d.Split
	all := map[string]any{"split": s.Name, "join": s.Join, "token_dtype": q.StoredDType()}
	for _, key := range config.KeysOn(config.OnRows, config.OnBytes) {
		if !d.setting(key).hidden {
			all[key] = s.Value(key)
		}
	}
	all["dtype"] = q.DType
	if all["torch_state"] != nil {
		all["torch_state"] = torchStateHash(q.TorchState)
	}
	return all
}

// sequencePath names the sequence by its path in a mount, with all settings that a path may have.
func (d *Dataset) sequencePath() string {
	all, inPath := d.settings(), d.Split.Values()
	maps.DeleteFunc(all, func(key string, _ any) bool { return inPath[key] == nil })
	if !d.Sequence.DType.IsInteger() {
		all["dtype"] = sampler.Native // the only possible dtype
	}
	return d.Split.Name + "/" + config.JoinSettings(all)
}

// Metadata returns the metadata of .safetensors files: the sequence and the fingerprint of its
// tokens.
func (d *Dataset) Metadata() map[string]string {
	return map[string]string{"sequence": d.sequencePath(), "fingerprint": d.fingerprint}
}

// Info returns the content of info.json.
func (d *Dataset) Info() []byte {
	batch := d.Sequence.Batch()
	all := d.settings()
	maps.Copy(all, map[string]any{
		"sequence":          d.sequencePath(),
		"tokens":            d.Len(),
		"fingerprint":       d.fingerprint,
		"identity":          d.Identity(),
		"state":             d.rowSettings(),
		"files":             jsonTexts(d.Files()),
		"on_change":         d.Split.OnChange,
		"changes":           d.Version,
		"arrays":            d.arrayInfos(),
		"shape":             batch.Stack().Shape,
		"batch_bytes":       batch.MainBytes(),
		"start":             d.Split.Start,
		"steps":             d.Steps,
		"max_steps":         d.MaxSteps(),
		"short_files":       d.Sequence.TooShort(),
		"rows_per_epoch":    d.Sequence.RowsPerEpoch(),
		"batches_per_epoch": d.Sequence.BatchesPerEpoch(),
	})
	if size := d.vocabSize(); size > 0 {
		all["vocab_size"] = size
	}
	if d.Sequence.Rows != sampler.Windows {
		all["long_documents"] = d.longDocuments()
	}
	if len(d.Split.Sources) > 0 {
		all["sources"] = d.sourceInfos()
		if d.Split.Scheduled() {
			all["stages"] = d.phaseInfos()
			if end := d.Sequence.Batches(); end < sampler.MaxBatches {
				all["batches"] = end
			}
		}
	}
	if d.hasEpochs() {
		if batch, rows := d.epochEnd(); batch < d.Sequence.Batches() {
			all["epoch_ends"] = map[string]any{"batch": batch, "rows": rows}
		}
	}
	return indentedJSON(all)
}

// longDocuments returns the number of documents that are longer than a row, in all sources.
func (d *Dataset) longDocuments() (n int64) {
	for _, counts := range d.Sequence.Counts() {
		n += counts.Long
	}
	return n
}

// longDocumentsNote says for people how many documents are longer than a row, and what happens to
// them. It is empty if there are none, or if rows are windows.
func (d *Dataset) longDocumentsNote() string {
	long, all := d.longDocuments(), int64(0)
	if long == 0 {
		return ""
	}
	for _, main := range d.mains {
		all += main.Documents().Count()
	}
	happens := map[sampler.TooLong]string{sampler.Cut: "cut, and continue in other rows", sampler.Drop: "dropped", sampler.Truncate: "truncated"}
	return fmt.Sprintf("%d of %d documents are longer than a row, %d tokens: they are %s", long, all, d.Sequence.BlockSize+1,
		happens[d.Sequence.LongDocuments()])
}

// EpochBatches returns the number of batches in an epoch, or 0 for mixtures and orders without
// epochs.
func (d *Dataset) EpochBatches() uint64 {
	if !d.hasEpochs() {
		return 0
	}
	return uint64(d.Sequence.BatchesPerEpoch())
}

// hasEpochs reports whether all rows belong to the same epochs: those of the split or, of a
// mixture, those of its only source.
func (d *Dataset) hasEpochs() bool {
	return (len(d.Split.Sources) == 0 || d.Split.Source != "") &&
		(d.Sequence.Order == sampler.Sequential || d.Sequence.Order == sampler.Shuffle)
}

// epochEnd returns the batch in which the first epoch ends, and how many of its rows belong to it.
func (d *Dataset) epochEnd() (batch uint64, rows int) {
	q := d.Sequence
	ranks := q.World / q.Hosts() // ranks that share an epoch
	batch = uint64(q.RowsPerEpoch()-1) / uint64(q.BatchSize*ranks)
	for rows < q.BatchSize && q.Epoch(batch, rows) == 0 {
		rows++
	}
	return batch, rows
}

func (d *Dataset) sourceInfos() (list []map[string]any) {
	first := d.Sequence.Phases()[0]
	for i, source := range d.Split.Sources {
		main := d.mains[i]
		info := map[string]any{
			"name": source.Name, "files": jsonTexts(main.Files()), "weight": source.Weight, "rows": first.Rows[i], "of": first.Period,
			"rows_per_epoch": d.Sequence.RowsPerEpochOf(i),
		}
		if source.MaxEpochs > 0 {
			info["max_epochs"] = source.MaxEpochs
		}
		if d.Split.Scheduled() {
			info["fingerprint"] = d.sourceFingerprints[i]
		}
		if main.VocabSize() > 0 {
			info["vocab_size"] = main.VocabSize()
		}
		if d.Sequence.Rows != sampler.Windows {
			info["long_documents"] = d.Sequence.Counts()[i].Long
		}
		list = append(list, info)
	}
	return list
}

func (d *Dataset) arrayInfos() (list []map[string]any) {
	for _, a := range d.Sequence.Batch().Arrays {
		info := map[string]any{"name": a.Name, "dtype": a.DType, "shape": a.Shape, "offset": a.Offset}
		for n, b := range d.Split.AlignedOf(0) {
			if b.Name != a.Name {
				continue
			}
			var files []jsonbytes.String
			for _, arrays := range d.sources {
				files = append(files, jsonTexts(arrays[n+1].Files())...)
			}
			info["at"], info["files"] = b.At, files
		}
		list = append(list, info)
	}
	return list
}

func indentedJSON(v any) []byte {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		panic(err) // JSON can encode all of these types
	}
	return append(text, '\n')
}

func jsonTexts(paths []string) []jsonbytes.String {
	texts := make([]jsonbytes.String, len(paths))
	for i, path := range paths {
		texts[i] = jsonbytes.String(path)
	}
	return texts
}

// vocabSize returns the largest vocabulary size of all sources, or 0 if one is unknown.
func (d *Dataset) vocabSize() (size int64) {
	for _, main := range d.mains {
		if main.VocabSize() == 0 {
			return 0
		}
		size = max(size, main.VocabSize())
	}
	return size
}

// Summary describes the dataset in one line for people.
func (d *Dataset) Summary() string {
	q := d.Sequence
	batch := q.Batch()
	stack := batch.Stack()
	aligned := ""
	for _, b := range d.Split.AlignedOf(0) {
		aligned += ", array " + b.Name
	}
	return fmt.Sprintf("%-8s %d %s, %d bytes a batch, order %s%s, seed %d%s: %s",
		d.Split.Name, stack.Shape, stack.DType, batch.MainBytes(), q.Order, d.shuffleBlockText(), q.Seed, aligned, d.SizeSummary())
}

func (d *Dataset) shuffleBlockText() (text string) {
	q := d.Sequence
	if q.ShuffleBlock == 0 {
		return ""
	}
	text = fmt.Sprintf(" in blocks of %v", d.Split.Values()["shuffle_block"])
	if hosts := q.Hosts(); hosts > 1 {
		text += fmt.Sprintf(", %d rows of host %d of %d", q.RowsPerEpoch(), q.Rank/q.LocalWorld, hosts)
	}
	return text
}

// SizeSummary describes the size for people: the number of tokens or rows, the number of files, how
// many of them are too short, and the names of the first and last file.
func (d *Dataset) SizeSummary() string {
	what, files := "tokens", d.Files()
	if d.Sequence.Layout == sampler.Rows {
		what = "rows"
	}
	names, last := files[0], files[len(files)-1]
	if filepath.Dir(names) == filepath.Dir(last) {
		last = filepath.Base(last)
	}
	if len(files) > 2 {
		names += ", ..."
	}
	if len(files) > 1 {
		names += ", " + last
	}
	count := terminal.Plural(int64(len(files)), "file", "files")
	if n := d.Sequence.TooShort(); n > 0 {
		count += fmt.Sprintf(" (%d too short for a row)", n)
	}
	return fmt.Sprintf("%d %s in %s: %s", d.Len(), what, count, names)
}

// Describe writes the origin of each row of batch k for people. It adds up to chars characters of
// each segment's text if named is not nil or there is a vocabulary next to the token file.
func (d *Dataset) Describe(out io.Writer, k uint64, chars int, named *vocabulary.Vocabulary) error {
	vocabularies, ids := map[string]*vocabulary.Vocabulary{}, d.DocumentIDs()
	printable.Fprintf(out, "batch %d of %s\nfingerprint %s\n", k, d.sequencePath(), d.fingerprint)
	for j := range d.Sequence.BatchSize {
		row, err := d.origin(k, j)
		if err != nil {
			return err
		}
		source := ""
		if len(d.Split.Sources) > 0 {
			source = ", source " + d.Split.Sources[row.source].Name
			if d.Split.Scheduled() {
				source += fmt.Sprintf(", stage %d", row.phase)
			}
		}
		fmt.Fprintf(out, "\nrow %d: number %d, epoch %d%s, ", j, row.row, row.epoch, source)
		several := len(row.segments) > 1
		if several {
			fmt.Fprintf(out, "%d segments\n", len(row.segments))
		}
		for _, segment := range row.segments {
			if several {
				fmt.Fprintf(out, "  from index %d on, ", segment.At)
			}
			if err := d.describeSegment(out, row.source, segment, ids, chars, named, vocabularies); err != nil {
				return err
			}
		}
	}
	return nil
}

// describeSegment writes where a segment is from, its id and the beginning of its text. It uses
// vocabulary v or, if that is nil, the one next to the token file; vocabularies caches these by
// directory.
func (d *Dataset) describeSegment(
	out io.Writer, source int, segment sampler.Segment, ids *DocumentIDs, chars int, v *vocabulary.Vocabulary,
	vocabularies map[string]*vocabulary.Vocabulary,
) (err error) {
	if segment.Inserted {
		fmt.Fprint(out, "inserted bos, then ")
		segment = segment.Copied()
	}
	at := d.mains[source].Locate(segment.Start)
	if d.Sequence.Rows != sampler.Windows {
		fmt.Fprintf(out, "%d tokens of ", segment.Len)
	}
	printable.Fprintf(out, "%s from token %d on", at.Path, at.Index)
	if segment.Document >= 0 {
		fmt.Fprintf(out, ", document %d", segment.Document)
	}
	id, err := ids.Of(source, segment.Document)
	if err != nil {
		return err
	}
	if id != "" {
		printable.Fprintf(out, ", id %s", id)
	}
	fmt.Fprintln(out)
	if d.Sequence.Layout == sampler.Rows {
		return nil // elements that are not tokens have no text
	}
	if v == nil {
		dir, known := filepath.Dir(at.Path), false
		if v, known = vocabularies[dir]; !known {
			if v, err = d.Vocabulary([]string{at.Path}); err != nil {
				return err
			}
			vocabularies[dir] = v
		}
	}
	if v == nil {
		return nil
	}
	first := min(segment.Len, d.Sequence.BlockSize-segment.At) // at most the T elements of x
	text, err := Text(d.mains[source], segment.Start, first, v)
	if err != nil {
		return err
	}
	text = printable.Truncate(text, chars)
	if terminal.Is(out) {
		text = printable.Text(text)
	}
	fmt.Fprintf(out, "    %s\n", strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n    "))
	return nil
}

// Text returns the text of n tokens of an array, starting at index from.
func Text(tokens *cache.Array, from int64, n int, v *vocabulary.Vocabulary) (string, error) {
	if n == 0 {
		return "", nil
	}
	var text strings.Builder
	size := tokens.DType().Size()
	err := tokens.Read([]array.Window{{Start: from, Len: n}}, func(_ int, raw []byte) error {
		text.Reset()
		for ; len(raw) > 0; raw = raw[size:] {
			text.WriteString(v.Text(int(min(tokens.DType().Bits(raw), math.MaxInt))))
		}
		return nil
	})
	return text.String(), err
}

// phaseInfos describes the phases for info.json.
func (d *Dataset) phaseInfos() (list []map[string]any) {
	names := d.Split.SourceNames()
	for i, at := range d.Sequence.Phases() {
		rows, tokens, epochs, why := map[string]int{}, map[string]uint64{}, map[string]float64{}, "configured"
		for source, name := range names {
			before := at.Before[source] * uint64(d.Sequence.Hosts())
			rows[name], tokens[name], epochs[name] = at.Rows[source], before*uint64(d.Sequence.BlockSize), float64(before)/float64(d.Sequence.WindowsOf(source))
		}
		if source := d.Sequence.UsedUpAt(i); source >= 0 {
			why = "max_epochs of " + names[source]
		}
		list = append(list, map[string]any{
			"row": at.Row * uint64(d.Sequence.Hosts()), "batch": at.Batch, "why": why, "rows": rows, "of": at.Period, "tokens": tokens, "epochs": epochs,
		})
	}
	return list
}
