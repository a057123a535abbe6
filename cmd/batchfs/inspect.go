package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"batchfs/cache"
	"batchfs/sampler"
)

// Batches of more rows have no batch/<k>.json: it would be made in memory.
const maxProvenance = 1 << 16

// provenance is what batch/<k>.json says: where each row of a batch comes from.
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

func (o opened) provenance(k uint64) provenance {
	p := provenance{k, o.label(), o.tokens.Fingerprint(), o.identity(), nil}
	p.Settings["split"], p.Settings["join"], p.Settings["token_dtype"] = o.split.Split, o.split.Join, o.split.TokenDType
	for j := range o.sequence.BatchSize {
		at := o.tokens.Locate(o.sequence.Start(k, j))
		row := rowOrigin{o.sequence.Row(k, j), o.sequence.Epoch(k, j), at.Path, at.Index, nil}
		if len(o.split.Sources) > 0 {
			row.Source = &at.Source
		}
		p.Rows = append(p.Rows, row)
	}
	return p
}

func inspectCommand() *cobra.Command {
	var src configFlags
	var asJSON bool
	var find int64
	var epoch uint64
	cmd := &cobra.Command{
		Use:   "inspect SPLIT K",
		Short: "Say where the rows of a batch come from, or which batches hold a token",
		Long: `Inspect says where each row of batch K comes from: its number among all rows, its epoch, the file and the index of its
first token there; and its text, if a vocab.json of batchfs prepare lies beside the token file. With --json it is what
a mount shows as batch/<k>.json.

With --find it says which batches of an epoch hold a token: that at TOKEN_INDEX of all the split's tokens, in the order of
the files in info.json. For the orders shuffle and sequential that is computed, for the others every row of the epoch is
looked at. In a mixture, the epoch is that of the token's source.`,
		Example: `  batchfs inspect train 12345
  batchfs inspect train/rank=3,world=8 12345 --json
  batchfs inspect train --find 1000000 --epoch 2`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			finding := cmd.Flags().Changed("find")
			var k uint64
			switch {
			case finding == (len(args) == 2):
				return errors.New("name a batch, as in batchfs inspect train 17, or a token, as in batchfs inspect train --find 1000")
			case !finding && cmd.Flags().Changed("epoch"):
				return errors.New("--epoch is for --find: a batch's number says its epoch")
			case !finding:
				var err error
				if k, err = strconv.ParseUint(args[1], 10, 64); err != nil || k >= sampler.MaxBatches {
					return fmt.Errorf("batch number: must be a whole number from 0 to %d (got %q)", uint64(sampler.MaxBatches-1), args[1])
				}
			}
			o, err := src.openSplit(args[0])
			switch {
			case err != nil:
				return err
			case finding:
				return o.find(cmd, find, epoch, asJSON)
			case asJSON:
				_, err = cmd.OutOrStdout().Write(indented(o.provenance(k)))
				return err
			}
			return o.describe(cmd.OutOrStdout(), k)
		},
	}
	src.flags(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().Int64Var(&find, "find", 0, "say which batches hold the token at this `TOKEN_INDEX`")
	cmd.Flags().Uint64Var(&epoch, "epoch", 0, "with --find: of this epoch")
	return cmd
}

// describe is provenance for people.
func (o opened) describe(out io.Writer, k uint64) error {
	p := o.provenance(k)
	vocabularies := map[string]*vocabulary{} // by directory
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
			if v, err = readVocabulary(filepath.Join(dir, "vocab.json")); err != nil {
				return err
			}
			vocabularies[dir] = v
		}
		if v != nil {
			text, err := o.text(o.sequence.Start(k, j), v)
			if err != nil {
				return err
			}
			if isTerminal(out) {
				text = printable(text)
			}
			fmt.Fprintf(out, "    %s\n", strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n    "))
		}
	}
	return nil
}

// readVocabulary returns nil where there is none, or another program's: that of GPT-2 has the same name.
func readVocabulary(path string) (*vocabulary, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	v := new(vocabulary)
	if err == nil {
		err = json.Unmarshal(raw, v)
	}
	var other *json.UnmarshalTypeError
	switch {
	case errors.As(err, &other), err == nil && v.Kind != "char" && v.Kind != "byte":
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("%s: %w; make it anew with batchfs prepare, or move it away", path, err)
	}
	return v, nil
}

// text is what the T tokens from start on stand for.
func (o opened) text(start int64, v *vocabulary) (string, error) {
	var text strings.Builder
	window := cache.Window{Start: start, Len: o.sequence.BlockSize}
	err := o.tokens.Read([]cache.Window{window}, func(_ cache.Window, raw []byte) error {
		for ; len(raw) > 0; raw = raw[o.tokens.Width:] {
			token := uint32(binary.LittleEndian.Uint16(raw))
			if o.tokens.Width == 4 {
				token = binary.LittleEndian.Uint32(raw)
			}
			text.WriteString(v.text(int(token)))
		}
		return nil
	})
	return text.String(), err
}

// printable leaves nothing in a text that a terminal would obey.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

// find says which batches hold a token.
func (o opened) find(cmd *cobra.Command, pos int64, epoch uint64, asJSON bool) error {
	if pos < 0 || pos >= o.tokens.Len() {
		return fmt.Errorf("--find: must be from 0 to %d, the last token of the split (got %d)", o.tokens.Len()-1, pos)
	}
	at := o.tokens.Locate(pos)
	type found struct {
		Batch uint64 `json:"batch"`
		Rank  int    `json:"rank"`
		J     int    `json:"j"`     // row of the batch
		Row   uint64 `json:"row"`   // its global number
		Index int    `json:"index"` // of the token in the row: of x from 0 to T-1, of y from 1 to T
	}
	result := struct {
		File  string  `json:"file"`
		Index int64   `json:"index"`
		Epoch uint64  `json:"epoch"`
		Finds []found `json:"finds"`
	}{at.Path, at.Index, epoch, []found{}}

	bar := newProgress(cmd.ErrOrStderr(), "looking at rows", 1)
	for _, f := range o.sequence.Find(pos, epoch, func(rows, of int64) bool {
		bar.ChangeMax64(of)
		bar.Set64(rows)
		return cmd.Context().Err() == nil
	}) {
		k, rank, j := o.sequence.Batch(f.Row)
		result.Finds = append(result.Finds, found{k, rank, j, f.Row, f.Index})
	}
	bar.Finish()
	if cmd.Context().Err() != nil {
		return errors.New("interrupted")
	}
	out := cmd.OutOrStdout()
	if asJSON {
		_, err := out.Write(indented(result))
		return err
	}
	fmt.Fprintf(out, "token %d of %s, number %d of split %s, in epoch %d:\n", at.Index, at.Path, pos, o.split.Split, epoch)
	for _, f := range result.Finds {
		var where []string
		if f.Index < o.sequence.BlockSize {
			where = append(where, fmt.Sprintf("x[%d, %d]", f.J, f.Index))
		}
		if f.Index > 0 {
			where = append(where, fmt.Sprintf("y[%d, %d]", f.J, f.Index-1))
		}
		fmt.Fprintf(out, "  batch %d of rank %d: %s, row number %d\n", f.Batch, f.Rank, strings.Join(where, " and "), f.Row)
	}
	if len(result.Finds) == 0 {
		fmt.Fprintln(out, "  in no batch")
	}
	return nil
}
