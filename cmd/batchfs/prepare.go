package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

type prepareOptions struct {
	out   string
	by    string
	val   float64
	force bool
}

func prepareCommand() *cobra.Command {
	var o prepareOptions
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
		RunE: func(cmd *cobra.Command, args []string) error { return prepare(cmd, args, o) },
	}
	cmd.Flags().StringVar(&o.out, "out", "", "write to this `DIR`, made if missing (required)")
	cmd.Flags().StringVar(&o.by, "by", "char", "what a token is: `char|byte`")
	cmd.Flags().Float64Var(&o.val, "val", 0.1, "this `FRACTION` of the tokens, the last, is val.bin")
	cmd.Flags().BoolVar(&o.force, "force", false, "replace train.bin, val.bin and vocab.json in DIR")
	return cmd
}

func prepare(cmd *cobra.Command, args []string, o prepareOptions) error {
	switch {
	case o.out == "":
		return errors.New("--out: name the directory to write, such as --out data")
	case o.by != "char" && o.by != "byte":
		return fmt.Errorf("--by: must be char or byte (got %q)", o.by)
	case !(o.val > 0 && o.val < 1): // so put, it refuses NaN too
		return fmt.Errorf("--val: must be between 0 and 1, such as 0.1 (got %v)", o.val)
	}
	texts, err := findTexts(args)
	if err != nil {
		return err
	}
	outputs := []string{"train.bin", "val.bin", "vocab.json"}
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
	if err := writeFile(filepath.Join(tmp, "vocab.json"), vocab.write); err != nil {
		return err
	}
	for _, name := range outputs {
		if err := os.Rename(filepath.Join(tmp, name), filepath.Join(o.out, name)); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s/train.bin: %d tokens\n%[1]s/val.bin: %[3]d tokens\n%[1]s/vocab.json: vocabulary of %[4]d %[5]ss\n"+
		"next: batchfs mount --data %[1]s MOUNTPOINT\n", filepath.Clean(o.out), train, c.tokens-train, vocab.VocabSize, o.by)
	return err
}

func checkOutput(path string, texts []text, force bool) error {
	info, err := os.Stat(path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("--out: %w", err)
	}
	if i := slices.IndexFunc(texts, func(t text) bool { return os.SameFile(t.info, info) }); i >= 0 {
		return fmt.Errorf("%s: is a text and would be written too: name the texts one by one, or choose another --out", texts[i].path)
	}
	if info.IsDir() {
		return fmt.Errorf("%s: is a directory, where a file is to be written: choose another --out", path)
	}
	if !force {
		return fmt.Errorf("%s: exists: give --force to replace it, or choose another --out", path)
	}
	return nil
}

type text struct {
	path   string
	info   fs.FileInfo
	tokens int64 // known after corpus.count
}

// findTexts resolves the command line's arguments, in their order.
func findTexts(args []string) ([]text, error) {
	var paths []string
	for _, arg := range args {
		names := []string{arg}
		// A name that exists is that file, even with a * or a [ in it.
		if _, err := os.Lstat(arg); err != nil && strings.ContainsAny(arg, "*?[") {
			if names, err = filepath.Glob(arg); err != nil {
				return nil, fmt.Errorf("%s: %w", arg, err)
			}
			if !strings.HasPrefix(filepath.Base(arg), ".") { // as a shell does, and Glob does not
				names = slices.DeleteFunc(names, func(name string) bool { return strings.HasPrefix(filepath.Base(name), ".") })
			}
			if len(names) == 0 {
				return nil, fmt.Errorf("%s: matches no file: check the pattern, and where it is looked for", arg)
			}
		}
		for _, name := range names {
			below, err := filesBelow(name)
			if err != nil {
				return nil, err
			}
			paths = append(paths, below...)
		}
	}
	var texts []text
	seen := map[string]bool{}
	for _, path := range paths {
		info, err := os.Stat(path)
		switch {
		case err != nil:
			return nil, err
		case !info.Mode().IsRegular():
			return nil, fmt.Errorf("%s: is not a regular file, and a text is read twice: save it to a file first", path)
		case seen[path]:
			return nil, fmt.Errorf("%s: is named twice: name each text once", path)
		}
		seen[path] = true
		texts = append(texts, text{path: path, info: info})
	}
	return texts, nil
}

func filesBelow(name string) ([]string, error) {
	if info, err := os.Stat(name); err != nil || !info.IsDir() {
		return []string{filepath.Clean(name)}, err
	}
	var paths []string
	root := name + "/" // the slash takes WalkDir through a symbolic link
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case path != root && strings.HasPrefix(d.Name(), "."):
			if d.IsDir() {
				return fs.SkipDir
			}
		case d.Type().IsRegular():
			paths = append(paths, path)
		}
		return nil
	})
	if err == nil && len(paths) == 0 {
		err = fmt.Errorf("%s: no file below it, not counting symbolic links and names that begin with \".\"", name)
	}
	slices.Sort(paths) // WalkDir has a/x before a.txt
	return paths, err
}

// corpus is all texts as one stream of characters, or of bytes.
type corpus struct {
	texts    []text
	by       string
	tokens   int64                    // of all texts
	ids      []int32                  // by character, id+1; 0 for a character that no text has
	in       *bufio.Reader            // of the text being read
	stderr   io.Writer                // where progress is shown
	progress *progressbar.ProgressBar // of a pass, in bytes
}

func newCorpus(texts []text, by string, stderr io.Writer) *corpus {
	return &corpus{texts: texts, by: by, ids: make([]int32, utf8.MaxRune+1), in: bufio.NewReaderSize(nil, 1<<20), stderr: stderr}
}

// start begins a pass, whose progress is shown on a terminal until it ends.
func (c *corpus) start(pass string) {
	var bytes int64
	for _, t := range c.texts {
		bytes += t.info.Size()
	}
	c.progress = newProgress(c.stderr, pass, bytes, progressbar.OptionShowBytes(true))
}

func isTerminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// newProgress shows how far work is, on a terminal.
func newProgress(out io.Writer, what string, most int64, options ...progressbar.Option) *progressbar.ProgressBar {
	return progressbar.NewOptions64(most, append(options, progressbar.OptionSetDescription(what), progressbar.OptionSetWriter(out),
		progressbar.OptionSetVisibility(isTerminal(out)),
		progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish())...)
}

// count is the first pass. It finds the number of tokens in each text and the vocabulary of all.
func (c *corpus) count(ctx context.Context) (*vocabulary, error) {
	c.start("counting")
	defer c.progress.Finish()
	size := 0
	if c.by == "byte" {
		for b := range 256 { // all of them, so that the id is the value
			c.ids[b] = 1
		}
	}
	for i := range c.texts {
		t := &c.texts[i]
		err := c.each(ctx, t.path, func(r rune) error {
			t.tokens++
			if c.ids[r] == 0 {
				c.ids[r] = 1
				if size++; size > 1<<16 {
					return fmt.Errorf("%s: more than 65536 different characters by here, and uint16 numbers no more: use --by byte", t.path)
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		c.tokens += t.tokens
	}
	v := &vocabulary{Kind: c.by}
	for r := range c.ids {
		if c.ids[r] != 0 {
			v.VocabSize++
			c.ids[r] = int32(v.VocabSize)
			if c.by == "char" {
				v.Tokens = append(v.Tokens, string(rune(r)))
			}
		}
	}
	return v, nil
}

// encode is the second pass. It writes the first train tokens to dir/train.bin, the others to dir/val.bin.
func (c *corpus) encode(ctx context.Context, dir string, train int64) error {
	c.start("encoding")
	defer c.progress.Finish()
	return writeFile(filepath.Join(dir, "train.bin"), func(w *bufio.Writer) error {
		return writeFile(filepath.Join(dir, "val.bin"), func(val *bufio.Writer) error {
			var written, want int64
			for _, t := range c.texts {
				changed := fmt.Errorf("%s: changed while it was read: run again when nothing writes to it", t.path)
				want += t.tokens
				err := c.each(ctx, t.path, func(r rune) error {
					if c.ids[r] == 0 || written == want {
						return changed
					}
					if written == train {
						w = val
					}
					written++
					id := c.ids[r] - 1
					w.WriteByte(byte(id)) // an error stays in w, so the next line has it
					return w.WriteByte(byte(id >> 8))
				})
				if err != nil {
					return err
				}
				if written != want {
					return changed
				}
			}
			return nil
		})
	})
}

// each calls visit with every character, or byte, of a text.
func (c *corpus) each(ctx context.Context, path string, visit func(rune) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	c.in.Reset(readerFunc(func(p []byte) (int, error) {
		if err := ctx.Err(); err != nil {
			return 0, fmt.Errorf("stopped before anything was written: %w", err)
		}
		n, err := f.Read(p)
		c.progress.Add(n)
		return n, err
	}))
	next := c.in.ReadRune
	if c.by == "byte" {
		next = func() (rune, int, error) { b, err := c.in.ReadByte(); return rune(b), 1, err }
	}
	for offset := 0; ; {
		r, size, err := next()
		if r == utf8.RuneError && size == 1 {
			// Not UTF-8, unless the read failed within a character: Peek has that error.
			if _, err = c.in.Peek(utf8.UTFMax); err == nil || err == io.EOF {
				return fmt.Errorf("%s: not valid UTF-8 at byte %d: convert it to UTF-8, or use --by byte", path, offset)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = visit(r)
		}
		if err != nil {
			return err
		}
		offset += size
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// vocabulary is vocab.json: token i stands for Tokens[i]. Bytes have no Tokens, being no text.
type vocabulary struct {
	Kind      string   `json:"kind"`
	VocabSize int      `json:"vocab_size"`
	Tokens    []string `json:"tokens,omitempty"`
}

// text is what a token stands for; \ufffd and the number for one that is not in the vocabulary.
func (v *vocabulary) text(token int) string {
	switch {
	case v.Kind == "byte" && token < 256:
		return string([]byte{byte(token)})
	case token < len(v.Tokens):
		return v.Tokens[token]
	}
	return fmt.Sprintf("\ufffd%d", token)
}

func (v *vocabulary) write(w *bufio.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	return enc.Encode(v)
}

// writeFile syncs what it wrote, so that a rename never makes a name for less than the whole file, not even in a power cut.
func writeFile(path string, write func(*bufio.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	if err = write(w); err == nil {
		err = cmp.Or(w.Flush(), f.Sync())
	}
	return cmp.Or(err, f.Close())
}
