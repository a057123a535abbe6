// Package prepare has the command `batchfs prepare`, which turns text into token files to mount.
package prepare

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"batchfs/cmd/batchfs/vocabulary"
)

type options struct {
	out   string
	by    string
	val   float64
	force bool
}

// Command returns `batchfs prepare`.
func Command() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "prepare TEXT... --out DIR",
		Short: "Turn text into token files to mount",
		Long: `Prepare turns text into DIR/train.bin and DIR/val.bin, headerless little-endian
uint16 tokens, and DIR/vocab.json, which says what each token stands for.

A TEXT is a file, a directory (every file below it, sorted by path) or a glob.
In directories and globs, names that begin with "." are left out; in directories,
so are symbolic links. The texts are joined in the order given, with nothing between.

A token is a character or a byte. --by char numbers the sorted set of the text's
Unicode code points, as nanoGPT's data/shakespeare_char/prepare.py does. --by byte
takes the byte's value, so any file will do.

Nothing is normalised: a \r stays a \r. nanoGPT's prepare.py reads with Python, which
turns \r\n into \n, so the tokens of such a text differ.

The text is read twice and never held in memory. DIR gets its new files when all of
them are complete: a failure or Ctrl-C changes none and leaves no part of one.`,
		Example: `  batchfs prepare input.txt --out data
  batchfs prepare books/ 'notes/*.md' --out data --val 0.05
  batchfs prepare /usr/share/dict/words --by byte --out data --force`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return o.prepare(cmd, args) },
	}
	cmd.Flags().StringVar(&o.out, "out", "", "write to this `DIR`, made if missing (required)")
	cmd.Flags().StringVar(&o.by, "by", vocabulary.Char, "what a token is: `char|byte`")
	cmd.Flags().Float64Var(&o.val, "val", 0.1, "this `FRACTION` of the tokens, the last, is val.bin")
	cmd.Flags().BoolVar(&o.force, "force", false, "replace train.bin, val.bin and vocab.json in DIR")
	return cmd
}

func (o options) prepare(cmd *cobra.Command, args []string) error {
	switch {
	case o.out == "":
		return errors.New("--out: name the directory to write, such as --out data")
	case o.by != vocabulary.Char && o.by != vocabulary.Byte:
		return fmt.Errorf("--by: must be char or byte (got %q)", o.by)
	case !(o.val > 0 && o.val < 1): // so put, it refuses NaN too
		return fmt.Errorf("--val: must be between 0 and 1, such as 0.1 (got %v)", o.val)
	}
	texts, err := findTexts(args)
	if err != nil {
		return err
	}
	// The vocabulary first: a mount that follows a change of the tokens reads it again then.
	outputs := []string{vocabulary.FileName, "train.bin", "val.bin"}
	for _, name := range outputs {
		if err := checkOutput(filepath.Join(o.out, name), texts, o.force); err != nil {
			return err
		}
	}
	// Before the texts are read, which may take long: can DIR be written?
	if err := os.MkdirAll(o.out, 0o777); err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	tmp, err := os.MkdirTemp(o.out, ".prepare-*")
	if err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	defer os.RemoveAll(tmp)

	c := newCorpus(texts, o.by, cmd.ErrOrStderr())
	vocab, err := c.count(cmd.Context())
	if err != nil {
		return err
	}
	train := int64(float64(c.tokens) * (1 - o.val)) // nanoGPT's int(n*0.9): 1-0.1 is 0.9 to the last bit
	if train == 0 || train == c.tokens {
		return fmt.Errorf("--val: %v of %d tokens leaves %d for train.bin and %d for val.bin: give more text or another fraction",
			o.val, c.tokens, train, c.tokens-train)
	}
	if err := c.encode(cmd.Context(), tmp, train); err != nil {
		return err
	}
	if err := writeFile(filepath.Join(tmp, vocabulary.FileName), func(w *bufio.Writer) error { return vocab.Write(w) }); err != nil {
		return err
	}
	for _, name := range outputs {
		if err := os.Rename(filepath.Join(tmp, name), filepath.Join(o.out, name)); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s/train.bin: %d tokens\n%[1]s/val.bin: %[3]d tokens\n%[1]s/vocab.json: vocabulary of %[4]d %[5]ss\n"+
		"next: batchfs mount --data %[1]s MOUNTPOINT\n", filepath.Clean(o.out), train, c.tokens-train, vocab.Size, o.by)
	return err
}
