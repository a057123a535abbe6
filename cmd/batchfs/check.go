package main

import (
	"fmt"
	"io"
	"reflect"

	"github.com/spf13/cobra"

	"batchfs/cache/blob"
	"batchfs/cmd/batchfs/command"
	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/dataset"
	"batchfs/cmd/batchfs/prepare"
	"batchfs/cmd/batchfs/scan"
	"batchfs/cmd/batchfs/terminal"
	"batchfs/cmd/batchfs/vocabulary"
	"batchfs/internal/failure"
	"batchfs/internal/printable"
)

func checkCommand() *cobra.Command {
	var src config.Flags
	var o scan.CheckOptions
	var b benchmark
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check SPLIT...",
		Short: "Read all files of a split and report what is wrong",
		Long: `Read all files of the splits, on all processors, and report what is wrong:

  files that cannot be read, or do not match the configuration or their header, such as truncated files
  tokens at or above vocab_size: how many, and the first one
  files that end in zeros, as if they were allocated in full but not written to the end
  identical files, and passages that occur twice, in one file or in two
  arrays that do not have one element for each token
  document indexes that decrease
  documents that do not begin with bos or, except the last of a file, end with eot

Tokens inside documents that equal eot are only counted.

If you name several splits, check finds every passage of 64 or more tokens of one that
also occurs in a larger one, such as validation data inside the training data. It
reports how much of which documents leaked and where they are, or passages, if there
are no document indexes. A leak is a problem if it has at least half of a document, or
without indexes 1,000 tokens; --overlap makes every passage of that many tokens a
problem. Passages of 33 tokens that occur more than 16 times in the larger splits are
boilerplate, such as licenses. They are counted but not reported, nor is the rest of a
passage if it has fewer than 32 tokens.

Within a split, check finds repeated passages of at least 65,536 tokens, at any
position. If there is only one split, --overlap sets this length. By default, it is
smaller for small files (a quarter of a file), and larger above 34 billion tokens.
Check does not find copies that differ in a token every few thousand, nor passages
in which a few numbers repeat over and over.

At most 20 findings are printed, the largest leaks first; --json prints all. The last
line says what check looked for.

With --against, check only finds which texts of FILE, such as the questions of a
benchmark, occur in the splits. FILE has one text on each line, or in a field of each
line of JSON or each row of a .parquet or .arrow file, and may be compressed. A text
occurs where all of its tokens do, except two at each end, whatever is around them.
Texts of fewer than 13 tokens are listed, but not searched for. Those that occur more
than 16 times are counted apart, and it is not listed where.

The exit status is 1 if anything is wrong, or if a text of FILE occurs.

SPLIT is a split of the configuration, or its path in a mount. In a mount, the
mount's configuration applies.`,
		Example: `  batchfs check train
  batchfs check train val --data data --json
  batchfs check /mnt/batches/train
  batchfs check train --data data --against gsm8k.jsonl --field question`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("overlap") && o.MinOverlap < 64 {
				return fmt.Errorf("--overlap: must be 64 or more (got %d)", o.MinOverlap)
			}
			if err := b.check(cmd); err != nil {
				return err
			}
			return checkSplits(cmd, &src, args, o, b, asJSON)
		},
	}
	src.Register(cmd)
	cmd.Flags().Int64Var(&o.MinOverlap, "overlap", 0, "report every passage of this many `TOKENS` that occurs twice as a problem")
	b.register(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func checkSplits(cmd *cobra.Command, src *config.Flags, paths []string, o scan.CheckOptions, b benchmark, asJSON bool) error {
	var openers []*dataset.Opener
	named := map[string]bool{}
	for _, path := range paths {
		opener, err := configuredSplit(src, path)
		if err != nil {
			return err
		}
		// Splits of two mounts may have the same name, and the findings are kept by name.
		split := opener.Config.Splits[0]
		if named[split.Name] {
			split.Name = path
		}
		if named[split.Name] {
			return failure.Usage.Wrap(fmt.Errorf("%s: is named twice; name it once", path))
		}
		named[split.Name] = true
		openers = append(openers, opener)
	}
	var report interface{ Print(io.Writer) }
	var ok bool
	if b.file == "" {
		r, err := scan.Check(cmd.Context(), openers, o, cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		report, ok = r, r.OK
	} else {
		r, err := b.search(cmd, openers)
		if err != nil {
			return err
		}
		report, ok = r, r.OK
	}
	if asJSON {
		if err := terminal.WriteJSON(cmd.OutOrStdout(), report); err != nil {
			return err
		}
	} else {
		report.Print(cmd.OutOrStdout())
	}
	if !ok {
		return command.ExitStatus(1)
	}
	return nil
}

// A benchmark is a file of texts that check searches for.
type benchmark struct {
	file string // empty if there is none
	prepare.ItemOptions
}

func (b *benchmark) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&b.file, "against", "", "only search for the texts of this `FILE`, such as the questions of a benchmark")
	f.StringVar(&b.By, "by", "", "with --against: the "+byHelp+" (default: that in vocab.json)")
	f.StringVar(&b.As, "as", "", "with --against: the format of FILE, whatever its name: `text|jsonl|parquet|arrow`")
	f.StringVar(&b.Field, "field", "text", "with --against: the `FIELD` of a line, or column, that holds the text; dots separate nested names")
	cmd.MarkFlagsMutuallyExclusive("against", "overlap")
}

// check returns an error if a flag needs --against.
func (b *benchmark) check(cmd *cobra.Command) error {
	for _, name := range []string{"by", "as", "field"} {
		if cmd.Flags().Changed(name) && b.file == "" {
			return fmt.Errorf("--%s: needs --against, the file of texts to search for", name)
		}
	}
	return nil
}

// search searches splits for the texts. After an interruption, it does not wait for a file that
// does not answer. Errors have a kind, because an exit status of 1 means that texts were found.
func (b *benchmark) search(cmd *cobra.Command, openers []*dataset.Opener) (*scan.ItemReport, error) {
	var found *scan.ItemReport
	err := command.UntilInterrupted(cmd.Context(), func() error {
		manifest, err := manifestOf(openers)
		if err != nil {
			return err
		}
		options := b.ItemOptions
		options.Manifest = manifest
		items, err := prepare.OpenItems(b.file, options, cmd.InOrStdin())
		if err != nil {
			return failure.Usage.Wrap(err)
		}
		read := func(visit func(*scan.Item) error) error {
			isEmpty := true
			err := items.Read(cmd.Context(), func(item prepare.Item) error {
				isEmpty = false
				err := visit(&scan.Item{
					ItemName:  scan.ItemName{Unit: item.Unit, Number: item.Number},
					Text:      printable.Truncate(string(item.Text), 100),
					Encodings: item.Encodings,
				})
				return failure.Data.Wrap(err)
			})
			if err == nil && isEmpty {
				err = fmt.Errorf("%s: has no text to search for; is it complete?", b.file)
			}
			return failure.Usage.Wrap(err)
		}
		found, err = scan.Against(cmd.Context(), openers, scan.ItemSource{Name: b.file, VocabSize: items.VocabSize(), Read: read}, cmd.ErrOrStderr())
		return err
	})
	switch {
	case cmd.Context().Err() != nil:
		return nil, command.ErrInterrupted
	case err != nil:
		return nil, failure.Data.Wrap(err)
	}
	return found, nil
}

// manifestOf returns the vocab.json next to the token files of splits, or nil. It returns an error
// if there are several with different vocabularies.
func manifestOf(openers []*dataset.Opener) (manifest *vocabulary.Manifest, err error) {
	for _, opener := range openers {
		var files []string
		for _, s := range opener.Config.Splits {
			specs, err := opener.ArraySpecs(s)
			if err != nil {
				return nil, err
			}
			for _, spec := range specs {
				if spec.Name == "" {
					files = append(files, spec.Files...)
				}
			}
		}
		if _, _, err := vocabulary.ForFiles(files, opener.Remote); err != nil {
			return nil, err
		}
		read := map[string]bool{} // keyed by path
		for _, file := range files {
			path := blob.Sibling(file, vocabulary.FileName)
			if read[path] {
				continue
			}
			read[path] = true
			m, err := vocabulary.Read(path, opener.Remote)
			switch {
			case err != nil:
				return nil, err
			case m == nil:
				continue
			case manifest == nil:
				manifest = m
			case !reflect.DeepEqual(m.Vocabulary, manifest.Vocabulary):
				return nil, fmt.Errorf("vocab.json next to %s differs from that of other splits, so the same token means different things in them; "+
					"check each split alone", file)
			}
			break
		}
	}
	return manifest, nil
}
