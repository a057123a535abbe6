// Package dataset turns a configuration into datasets: it opens the token files of each split and binds them to the split's
// settings, or to settings in a path.
//
// A [Dataset] describes itself (info.json, the origin of each row, which batches hold a token) and becomes a [Served] one,
// which follows its token files when they change. All datasets of a mount make a [Snapshot], from which another process serves
// the same.
package dataset

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"batchfs/cache"
	"batchfs/cache/array"
	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/vocabulary"
	"batchfs/sampler"
)

// A Dataset is a split whose token files are open and checked; or such a split under the settings of a path, which shares
// everything with the split that depends on the files. It does not change, and is safe for concurrent use.
type Dataset struct {
	Split    *config.Split     // its TorchState is set if the configuration names a file
	Sequence *sampler.Sequence // the batches
	Steps    uint64            // batches in batches.bin
	Version  uint64            // counts how often the tokens have changed since the mount began

	sources     []source
	hint        hint
	fingerprint string    // of the files of all sources
	files       int       // of all arrays, and of their documents
	groups      [][]int64 // sampler.Source.Groups of each source, where they are known
	unleased    string    // a file of which Unwritten could not find out, or empty
}

// A source is the arrays of a source of a split: the tokens, or what else the main one is, and those beside it.
type source []*cache.Array

func (s source) main() *cache.Array { return s[0] }

// Open opens and checks the token files of all splits.
func Open(c *config.Config) ([]*Dataset, error) {
	var all []*Dataset
	for _, s := range c.Splits {
		d, err := OpenSplit(s, c.Memory)
		if err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	return all, nil
}

// OpenPath opens one split of the configuration by its path in a mount: "train", or "train/rank=3,world=8" for the split under
// settings.
func OpenPath(c *config.Config, path string) (*Dataset, error) { return openPath(c, path, OpenSplit) }

func openPath(c *config.Config, path string, open func(*config.Split, config.Memory) (*Dataset, error)) (*Dataset, error) {
	name, settings, _ := strings.Cut(path, "/")
	split, err := c.Named(name)
	if err != nil {
		return nil, err
	}
	d, err := open(split, c.Memory)
	for part := range strings.FieldsFuncSeq(settings, func(r rune) bool { return r == '/' }) {
		if err == nil {
			d, err = d.With(part)
		}
	}
	return d, err
}

// OpenSplit opens and checks the token files of one split. The error names the split, and the file or the key that is wrong.
func OpenSplit(s *config.Split, m config.Memory) (*Dataset, error) { return open(s, m, nil) }

// open opens a split. previous are its sources before their files changed, or nil.
func open(s *config.Split, m config.Memory, previous []source) (*Dataset, error) {
	s, files, h, err := withFound(s)
	if err != nil {
		return nil, err
	}
	all := len(config.AllFiles(files))
	fingerprint := cache.NewFingerprint(all)
	sources := make([]source, len(files))
	for i, from := range files {
		for n, paths := range slices.Concat([][]string{from.Main}, from.Beside) {
			o := options(s, m, i, n, h)
			o.Fingerprint = fingerprint
			if previous != nil && n < len(previous[i]) {
				o.Previous = previous[i][n]
			}
			opened, err := cache.Open(paths, o)
			if n > 0 && h.Arrays != nil {
				if err == nil {
					err = alongside(sources[i].main(), opened)
				}
				if err != nil {
					err = fmt.Errorf("%w; vocab.json beside the tokens names it; %s", err, noArrays)
				}
			}
			if err != nil {
				return nil, fmt.Errorf("splits.%s: %w", s.Split, err)
			}
			sources[i] = append(sources[i], opened)
		}
	}
	return newDataset(s, sources, h, fingerprint.String(), nil)
}

// alongside returns an error unless each file of an array has as many elements as that of the tokens. Package sampler compares joined files in sum.
func alongside(main, beside *cache.Array) error {
	tokens := main.Manifest().Files
	for i, f := range beside.Manifest().Files {
		if n, of := f.Format.Count, tokens[i].Format.Count; n != of {
			return fmt.Errorf("%s has %d elements, but there are %d in %s", f.Path, n, of, tokens[i].Path)
		}
	}
	return nil
}

// A hint is what the vocab.json beside token files says of them, where the configuration says nothing.
type hint struct {
	VocabSize  int64       // 0: nothing
	TokenDType array.DType // "": nothing
	EOT        int64       // one more than the token that is the last of each document; 0: nothing

	Arrays [][]config.Beside // of each source; nil where the configuration has the key
}

// apply returns a split that knows what the hint says of documents and arrays, and nothing of what another hint said.
func (h hint) apply(s *config.Split) *config.Split { return s.WithFound(h.EOT-1, h.Arrays) }

const noArrays = "make the files again with batchfs prepare, name others in arrays, or set arrays = [] to serve none"

// withFound returns a split that knows what lies beside its files, those files, and the hint.
func withFound(s *config.Split) (*config.Split, []config.SourceFiles, hint, error) {
	files, err := s.Files()
	if err != nil {
		return nil, nil, hint{}, err
	}
	h, err := besideFiles(s, files)
	if err == nil {
		s = h.apply(s)
		if err = s.CheckBeside(); err != nil {
			err = fmt.Errorf("%w, as vocab.json beside the tokens says; %s", err, noArrays)
		}
	}
	if err != nil {
		err = fmt.Errorf("splits.%s: %w", s.Split, err)
	}
	for i, arrays := range h.Arrays {
		for _, b := range arrays {
			files[i].Beside = append(files[i].Beside, b.Files)
		}
	}
	return s, files, h, err
}

// besideFiles returns the hint that lies beside the files of the sources without a vocab_size. If all have one, it is for want of a
// usable vocab.json or for a larger vocabulary than that; what such a file says of other things still holds.
func besideFiles(s *config.Split, files []config.SourceFiles) (h hint, err error) {
	var all, guessed []string
	for i, written := range s.VocabSizes() {
		all = append(all, files[i].Main...)
		if written == 0 {
			guessed = append(guessed, files[i].Main...)
		}
	}
	v, shards, err := vocabulary.Of(all)
	switch {
	case len(guessed) == 0:
		err = nil
	case len(guessed) < len(all):
		v, _, err = vocabulary.Of(guessed)
	}
	if err == nil && !s.WroteArrays() {
		for _, from := range files {
			arrays, err := besideShards(from.Main, shards)
			if err != nil {
				return h, fmt.Errorf("%w; %s", err, noArrays)
			}
			h.Arrays = append(h.Arrays, arrays)
		}
	}
	if v == nil {
		return h, err
	}
	h.VocabSize = int64(v.Size)
	if dtype := array.DType(v.TokenDType); dtype == array.Uint16 || dtype == array.Uint32 {
		h.TokenDType = dtype
	}
	if v.EOTAt == "end" && v.EOT != nil {
		h.EOT = int64(*v.EOT) + 1
	}
	return h, nil
}

// besideShards returns the arrays beside files, all of which have the same.
func besideShards(files []string, shards map[string]vocabulary.Shard) (list []config.Beside, err error) {
	described := func(file string) (all []string) {
		for _, a := range shards[file].Arrays {
			all = append(all, a.Name+" of "+a.DType)
		}
		return all
	}
	first := described(files[0])
	for n, a := range shards[files[0]].Arrays {
		b, ok := config.NewBeside(a.Name, a.DType)
		if !ok {
			return nil, fmt.Errorf("vocab.json beside %s names an array %q that no split can have", files[0], first[n])
		}
		list = append(list, b)
	}
	for _, file := range files {
		if now := described(file); !slices.Equal(now, first) {
			return nil, fmt.Errorf("vocab.json names arrays %q beside %s, and %q beside %s: all files of a split must have the same",
				first, files[0], now, file)
		}
		for n, a := range shards[file].Arrays {
			list[n].Files = append(list[n].Files, filepath.Join(filepath.Dir(file), filepath.Base(a.File)))
		}
	}
	return list, nil
}

// options are those of array n of source i of a split, 0 for the main one. h is what lies beside the files.
func options(s *config.Split, m config.Memory, i, n int, h hint) cache.Options {
	o := cache.Options{Remote: s.Remote, Follow: s.OnChange == "follow", Join: s.Join, Access: m.Access, DropPageCache: m.PageCache == "drop"}
	if n == 0 {
		o.Format, o.Tensor, o.DType, o.Axes, o.GuessedDType = s.Format, s.Tensor, s.TokenDType, s.Shape, !s.Wrote("token_dtype")
		if o.GuessedDType {
			o.DType = cmp.Or(h.TokenDType, o.DType)
		}
		o.VocabSize = cmp.Or(s.VocabSizes()[i], h.VocabSize)
		switch {
		case s.Ends == sampler.EndsByIndex && s.FilesAreDocuments:
			o.Documents = cache.FilesAreDocuments
		case s.Ends == sampler.EndsByIndex:
			o.Documents = cache.DocumentsIndexed
		}
		return o
	}
	if o.Access == cache.Remap { // a mapping costs as much for the few bytes of a mask as for tokens
		o.Access = cache.Pread
	}
	b := s.BesideOf(i)[n-1]
	o.Format, o.Tensor, o.DType, o.Axes, o.Beside = b.Format, b.Tensor, b.DType, b.Shape, b.Name
	return o
}

// newDataset binds tokens to a split's settings. groups are what Groups of its Sequence gave before, or nil. It fails on a wrong
// fingerprint, too few tokens, or a torch_state that cannot be used.
func newDataset(s *config.Split, sources []source, h hint, fingerprint string, groups [][]int64) (*Dataset, error) {
	d := &Dataset{sources: sources, hint: h, fingerprint: fingerprint, groups: groups}
	d.files = len(d.allFiles())
	if err := d.bind(s); err != nil {
		return nil, fmt.Errorf("splits.%s: %w", s.Split, err)
	}
	return d, nil
}

func (d *Dataset) bind(split *config.Split) (err error) {
	s := *split
	if s.Expect != "" && d.fingerprint != s.Expect {
		return fmt.Errorf("expect_fingerprint is %s, but that of the files is %s: they are other data, or have other names", s.Expect, d.fingerprint)
	}
	// Read once: a trainer may write to the file later, and that must not change the batches of a mount.
	if s.StateFile != "" && s.TorchState == nil {
		if s.TorchState, err = readState(s.StateFile); err != nil {
			return fmt.Errorf("torch_state: %w", err)
		}
	}
	d.Split = &s
	settings := s.Settings
	for _, source := range s.Sources {
		settings.Weights = append(settings.Weights, source.Weight)
	}
	var sources []sampler.Source
	for i, arrays := range d.sources {
		from := sampler.Source{Main: arrays.main()}
		if d.groups != nil {
			from.Groups = d.groups[i]
		}
		if err := s.CheckVocabSize(from.Main.DType(), from.Main.Axes()); err != nil {
			return err
		}
		if documents := arrays.main().Documents(); documents != nil {
			from.Documents = documents
		} else if s.Ends == sampler.EndsByIndex {
			return noDocuments(arrays.main().Files()[0], s.Rows)
		}
		for _, beside := range arrays[1:] {
			from.Beside = append(from.Beside, beside)
		}
		sources = append(sources, from)
	}
	if d.Sequence, err = sampler.New(sources, settings); err != nil {
		return err
	}
	d.groups = d.Sequence.Groups()
	s.DType = d.Sequence.DType // not native, so that equal settings in a path have one name
	return d.countSteps()
}

// noDocuments says that nothing says where the documents of a token file end, and what helps.
func noDocuments(file string, rows sampler.Rows) error {
	ways := `documents = "files" makes each file one; batchfs index FILE --eot N makes an index where token N ends each document`
	if rows == sampler.Windows {
		ways = "eot = N says which token ends each document; " + ways
	}
	return fmt.Errorf("nothing says where the documents of %s end: %s", file, ways)
}

// readState reads a file of the size that torch.get_rng_state() gives. It reads a little more, so that the error about a longer
// file can tell its size.
func readState(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, 1<<16))
}

func (d *Dataset) countSteps() error {
	if d.Steps = d.Split.Steps; d.Steps == 0 {
		d.Steps = uint64(d.Sequence.BatchesPerEpoch())
	}
	// The last byte of batches.bin must have an offset, and batches.npy has a header before its first byte.
	if size := d.Sequence.Batch().Bytes(); d.Steps > math.MaxInt64/2/uint64(size) {
		return fmt.Errorf("%d batches of %d bytes are more than a file can hold; set steps to fewer", d.Steps, size)
	}
	return nil
}

// With returns the dataset under the settings of a path component, such as "rank=3,world=8". It takes the same small amount of
// memory however many token files there are. The error is syscall.ENOENT if a setting is unknown.
func (d *Dataset) With(settings string) (*Dataset, error) {
	s, err := d.Split.With(settings)
	if err != nil {
		return nil, err
	}
	return d.withSettings(s)
}

// withSettings returns the dataset under the settings of s, a split that With of the same split returned, maybe before its files changed.
func (d *Dataset) withSettings(s *config.Split) (_ *Dataset, err error) {
	n, now := *d, *s
	s = &now // with the ends of documents that the files have now; their arrays are the same
	s.EndOfText, s.Ends, s.EOT = d.Split.EndOfText, d.Split.Ends, d.Split.EOT
	if n.Split = s; s.DType == sampler.Native {
		s.DType = d.Sequence.Stored() // as bind does
	}
	if n.Sequence, err = d.Sequence.With(s.Settings); err == nil {
		err = n.countSteps()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Origin(), err)
	}
	return &n, nil
}

// Len returns the number of tokens of all sources.
func (d *Dataset) Len() (n int64) {
	for _, source := range d.sources {
		n += source.main().Len()
	}
	return n
}

// Files returns the paths of the token files, source after source.
func (d *Dataset) Files() (paths []string) {
	for _, source := range d.sources {
		paths = append(paths, source.main().Files()...)
	}
	return paths
}

// allFiles returns the paths of the files of all arrays, and of the indexes of their documents.
func (d *Dataset) allFiles() (paths []string) {
	for _, array := range d.arrays() {
		paths = append(paths, array.AllFiles()...)
	}
	return paths
}

// Arrays are those of each source, the main one first.
func (d *Dataset) Arrays() [][]*cache.Array {
	all := make([][]*cache.Array, len(d.sources))
	for i, s := range d.sources {
		all[i] = s
	}
	return all
}

// arrays are those of all sources.
func (d *Dataset) arrays() []*cache.Array { return slices.Concat(d.sources...) }

// FilesNamed says in words how many token files there are, and names them; of many it names the first two and the last. A file
// in the directory of the one before is named without it.
func (d *Dataset) FilesNamed() string {
	files := d.Files()
	names := slices.Clone(files)
	for i, file := range files[1:] {
		if dir := filepath.Dir(file); dir == filepath.Dir(files[i]) {
			names[i+1] = filepath.Base(file)
		}
	}
	if len(names) > 4 {
		names = []string{names[0], names[1], "...", names[len(names)-1]}
	}
	if len(files) == 1 {
		return "1 file: " + names[0]
	}
	return fmt.Sprintf("%d files: %s", len(files), strings.Join(names, ", "))
}

// TryRead reads the beginning of the first batch that next gives, up to 1 MiB. The error says in words what readers of a mount
// get as an errno.
func (d *Dataset) TryRead() error {
	defer d.release()
	return d.Sequence.Read(make([]byte, min(d.Sequence.Batch().Bytes(), 1<<20)), d.Split.Start, 0)
}

// Unwritten returns an error if somebody has one of the token files open for writing: see [cache.Array.Unwritten]. It is called
// before others use d.
func (d *Dataset) Unwritten() error {
	for _, array := range d.arrays() {
		unknown, err := array.Unwritten()
		if err != nil {
			return fmt.Errorf("splits.%s: %w", d.Split.Split, err)
		}
		d.unleased = cmp.Or(d.unleased, unknown)
	}
	return nil
}

// release lets go of what is kept of the files between two reads.
func (d *Dataset) release() {
	for _, array := range d.arrays() {
		array.Release()
	}
}

// check looks whether the files are still those that were opened: at all of them once a second.
func (d *Dataset) check() error { return d.eachArray((*cache.Array).Check) }

// eachArray calls do with the arrays of all sources until it fails. It allocates nothing: requests call it.
func (d *Dataset) eachArray(do func(*cache.Array) error) error {
	for _, source := range d.sources {
		for _, array := range source {
			if err := do(array); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkBatch looks at the files that batch k is read from, once at each; at all files for array.AllBatches, and at none for array.NoBatch. It
// looks at all files too where they are no more than the rows, of which each may be of another file.
func (d *Dataset) checkBatch(k uint64) (err error) {
	if k == array.AllBatches || k != array.NoBatch && d.files <= d.Sequence.BatchSize {
		return d.eachArray((*cache.Array).CheckAll)
	}
	pass := cache.NewPass()
	d.Sequence.Windows(k, func(source, column int, w cache.Window) bool {
		err = d.sources[source][column].CheckWindow(w, pass)
		return err == nil
	})
	return err
}
