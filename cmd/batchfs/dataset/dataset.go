// Package dataset opens the token files of a configuration's splits and binds them to settings: the
// split's own, or those of a path such as "train/rank=3,world=8".
//
// A [Dataset] is an open split with fixed settings. It never changes. A [MountedSequence] is a
// sequence as a mount serves it: when the watcher of its split has opened changed token files,
// under on_change = "follow", it switches to a Dataset of the new ones. A [Snapshot] lets another
// process serve the same batches as a mount without opening files first.
package dataset

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"batchfs/cache"
	"batchfs/cache/blob"
	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/vocabulary"
	"batchfs/fs/state"
	"batchfs/internal/clock"
	"batchfs/sampler"
)

// A Dataset is a split whose token files are open and checked. It is immutable and safe for
// concurrent use.
type Dataset struct {
	Split    *config.Split // TorchState is set if the configuration names a file
	Sequence *sampler.Sequence
	Steps    uint64 // batches in batches.*
	Version  uint64 // times the tokens have changed since the mount was made

	openedFiles
	arrays        []*cache.Array
	mains         []*cache.Array // one for each source
	remote        *blob.Remote
	tables        *sampler.Tables     // cache of precomputed tables, shared by all splits
	formatsDigest func() string       // see digestFormats; computed by the first call
	sourceFormats func() []string     // formatsDigest for each source alone
	fileCount     int                 // files of all arrays, including indexes of documents
	counts        []sampler.RowCounts // one for each source
	// mounted is the sequence with the schedule that was mounted, which determines the sizes of
	// files. It is nil unless a restart has changed the schedule.
	mounted      *sampler.Sequence
	unleasedFile string // a file on which no lease can be had, or empty
}

// An openedFiles has the token files of a split, and what they and vocab.json say.
type openedFiles struct {
	sources            [][]*cache.Array // arrays of each source, beginning with the main one
	hint               vocabHint
	fingerprint        string   // hash of the contents of all token files
	sourceFingerprints []string // fingerprint of each source; nil unless the split is scheduled
}

// A FileCounter counts files that are opened, and knows when the last one was. It is safe for
// concurrent use.
type FileCounter struct {
	Opened     atomic.Int64
	Total      atomic.Int64 // files of the splits that Open has begun to open
	lastOpened atomic.Int64 // clock.Now time of the last opening
}

func (c *FileCounter) countOpened() {
	c.Opened.Add(1)
	c.lastOpened.Store(clock.Now())
}

// Open opens all splits; see [Opener.OpenSplit]. If counter is not nil, it counts their files.
func (o *Opener) Open(counter *FileCounter) ([]*Dataset, error) {
	var all []*Dataset
	for _, s := range o.Config.Splits {
		d, err := o.open(s, nil, counter)
		if err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	return all, nil
}

// OpenPath opens one split of the configuration by its path in a mount: "train", or
// "train/rank=3,world=8" for the split with other settings.
func (o *Opener) OpenPath(path string) (*Dataset, error) {
	return openPath(o.Config, path, o.OpenSplit)
}

func openPath(c *config.Config, path string, open func(*config.Split) (*Dataset, error)) (*Dataset, error) {
	name, settings, _ := strings.Cut(path, "/")
	split, err := c.Named(name)
	if err != nil {
		return nil, err
	}
	d, err := open(split)
	for part := range strings.FieldsFuncSeq(settings, func(r rune) bool { return r == '/' }) {
		if err == nil {
			d, err = d.With(part)
		}
	}
	return d, err
}

// OpenSplit opens and checks the token files of one split. Its errors name the split and the file
// or key that is wrong.
func (o *Opener) OpenSplit(s *config.Split) (*Dataset, error) { return o.open(s, nil, nil) }

// open opens a split. If its files have changed, previous holds the arrays of the old ones;
// otherwise it is nil. counter may be nil.
func (o *Opener) open(s *config.Split, previous [][]*cache.Array, counter *FileCounter) (*Dataset, error) {
	s, f, err := o.openFiles(s, nil, previous, counter)
	if err != nil {
		return nil, err
	}
	return o.newDataset(s, f, nil, nil, nil)
}

// openFiles opens the files of a split, and completes it from vocab.json; see open. known has the
// arrays of the first sources, if they are open already. Of their files, openFiles only reads new
// samples, because the fingerprint samples less of each file the more there are.
func (o *Opener) openFiles(
	s *config.Split, known, previous [][]*cache.Array, counter *FileCounter,
) (_ *config.Split, f openedFiles, err error) {
	s, specs, h, err := o.resolveArrays(s, previous)
	if err != nil {
		return nil, f, err
	}
	specs = slices.DeleteFunc(specs, func(spec ArraySpec) bool { return spec.Source < len(known) })
	filesOf := make([]int, s.SourceCount())
	for i, arrays := range known {
		for _, a := range arrays {
			filesOf[i] += len(a.Files())
		}
	}
	for _, spec := range specs {
		filesOf[spec.Source] += len(spec.Files)
		if counter != nil {
			counter.Total.Add(int64(len(spec.Files)))
		}
	}
	sums := newFingerprints(s, filesOf)
	for i, arrays := range known {
		for _, a := range arrays {
			if err := a.AddTo(sums.with(i)); err != nil {
				return nil, f, fmt.Errorf("splits.%s: %w", s.Name, err)
			}
		}
	}
	sources := make([][]*cache.Array, len(filesOf))
	copy(sources, known)
	for _, spec := range specs {
		var old []*cache.Array
		if previous != nil {
			old = previous[spec.Source]
		}
		spec.Options.Fingerprint = sums.with(spec.Source)
		arrays := sources[spec.Source]
		a, err := o.openArray(spec, len(arrays), old, counter)
		if spec.Name != "" && h.Arrays != nil {
			if err == nil {
				err = checkAligned(arrays[0], a)
			}
			if err != nil {
				err = fmt.Errorf("%w; vocab.json next to the tokens names this array; %s", err, arraysAdvice)
			}
		}
		if err != nil {
			return nil, f, fmt.Errorf("splits.%s: %w", s.Name, err)
		}
		sources[spec.Source] = append(arrays, a)
	}
	f = openedFiles{sources: sources, hint: h, fingerprint: sums.split.String()}
	for _, sum := range sums.sources {
		f.sourceFingerprints = append(f.sourceFingerprints, sum.String())
	}
	return s, f, nil
}

// A fingerprints has the fingerprint of a split and, if it is scheduled, those of its sources.
type fingerprints struct {
	split   *cache.Fingerprint
	sources []*cache.Fingerprint
}

// newFingerprints returns the empty fingerprints of s. filesOf is the number of files of each
// source.
func newFingerprints(s *config.Split, filesOf []int) (f fingerprints) {
	files := 0
	for _, n := range filesOf {
		files += n
		if s.Scheduled() {
			f.sources = append(f.sources, cache.NewFingerprint(n))
		}
	}
	f.split = cache.NewFingerprint(files)
	return f
}

// with returns the fingerprint to which to add the files of a source, one source after the other.
func (f *fingerprints) with(source int) *cache.Fingerprint {
	if f.sources != nil {
		f.split.Also = f.sources[source]
	}
	return f.split
}

// openArray opens array n of a source. If the files of the split have changed, previous has the
// arrays of the source before that; otherwise, it is nil. counter may be nil.
func (o *Opener) openArray(spec ArraySpec, n int, previous []*cache.Array, counter *FileCounter) (*cache.Array, error) {
	if n < len(previous) {
		spec.Options.Previous = previous[n]
	}
	spec.Options.CheckNoWriters = o.CheckWriters && previous == nil
	if counter != nil {
		spec.Options.Opened = counter.countOpened
	}
	return cache.Open(spec.Files, spec.Options)
}

// checkAligned returns an error unless each file of an aligned array has as many elements as its
// token file. Package sampler compares only the totals.
func checkAligned(main, aligned *cache.Array) error {
	tokens := main.Manifest().Files
	for i, f := range aligned.Manifest().Files {
		if n, want := f.Format.Count, tokens[i].Format.Count; n != want {
			return fmt.Errorf("%s has %d elements, but there are %d in %s", f.Path, n, want, tokens[i].Path)
		}
	}
	return nil
}

// newDataset binds token files to the settings of a split. counts, schedule and mounted are nil, or
// come from an earlier Dataset of the split: counts saves counting its rows again, and mounted has
// the settings with which it was mounted.
func (o *Opener) newDataset(
	s *config.Split, f openedFiles, counts []sampler.RowCounts, schedule *sampler.Schedule, mounted *sampler.Settings,
) (*Dataset, error) {
	d := &Dataset{openedFiles: f, arrays: slices.Concat(f.sources...), counts: counts, remote: o.Remote, tables: o.Tables}
	d.formatsDigest = sync.OnceValue(func() string { return digestFormats(f.sources) })
	d.sourceFormats = sync.OnceValue(func() (list []string) {
		for i := range f.sources {
			list = append(list, digestFormats(f.sources[i:i+1]))
		}
		return list
	})
	for _, arrays := range f.sources {
		d.mains = append(d.mains, arrays[0])
	}
	for _, a := range d.arrays {
		d.unleasedFile = cmp.Or(d.unleasedFile, a.Unleased())
	}
	for range d.blobs() {
		d.fileCount++
	}
	if err := d.bindSettings(s, schedule, mounted); err != nil {
		return nil, fmt.Errorf("splits.%s: %w", s.Name, err)
	}
	return d, nil
}

func (d *Dataset) bindSettings(split *config.Split, schedule *sampler.Schedule, mounted *sampler.Settings) (err error) {
	s := *split
	d.Split = &s
	if s.Expect != "" && d.fingerprint != s.Expect {
		return fmt.Errorf("expect_fingerprint is %s, but the fingerprint of the files is %s: their contents or names are different", s.Expect, d.fingerprint)
	}
	// Read only once, because a trainer may overwrite the file later.
	if s.StateFile != "" && s.TorchState == nil {
		if s.TorchState, err = os.ReadFile(s.StateFile); err != nil {
			return fmt.Errorf("torch_state: %w", err)
		}
	}
	if d.Sequence, err = d.newSequence(len(d.sources), s.Settings, schedule); err != nil {
		return err
	}
	if err := d.checkMaxEpochs(); err != nil {
		return err
	}
	d.counts = d.Sequence.Counts()
	if mounted != nil {
		if d.mounted, err = d.newSequence(sourcesIn(mounted), *mounted, nil); err != nil {
			return err
		}
	}
	s.DType = d.Sequence.DType // instead of native, so that equal settings have the same path
	return d.countSteps()
}

// sourcesIn returns the number of sources for which a sequence has settings.
func sourcesIn(s *sampler.Settings) int {
	if s.Stages != nil {
		return len(s.Stages[0].Weights)
	}
	return len(s.Weights)
}

// newSequence returns the sequence of the first n sources. schedule is its schedule, or nil if that
// is not known.
func (d *Dataset) newSequence(n int, settings sampler.Settings, schedule *sampler.Schedule) (*sampler.Sequence, error) {
	var sources []sampler.Source
	vocabSize := slices.Max(d.Split.VocabSizes())
	for i := range n {
		source, err := d.samplerSource(i, vocabSize)
		if err != nil {
			return nil, err
		}
		sources = append(sources, source)
	}
	return sampler.NewWithSchedule(sources, settings, schedule)
}

// samplerSource returns source i for the sampler. vocabSize is the largest of all sources.
func (d *Dataset) samplerSource(i int, vocabSize int64) (from sampler.Source, err error) {
	main := d.mains[i]
	from.Main, from.Tables = main, d.tables
	if i < len(d.counts) {
		from.Counts = d.counts[i]
	}
	if err := d.Split.CheckVocabSize(vocabSize, main.DType(), main.Axes()); err != nil {
		return from, err
	}
	if documents := main.Documents(); documents != nil {
		from.Documents = documents
	} else if d.Split.NeedsIndex() {
		ways := `documents = "files" makes each file one document; batchfs index FILE --eot N writes an index of documents that end with token N`
		needs := fmt.Sprintf("rows = %q needs documents", d.Split.Rows)
		switch {
		case d.Split.DocumentNumbers:
			needs = "document_numbers needs an index of documents"
		case d.Split.Rows == sampler.Windows:
			needs, ways = "documents need known ends", "eot = N says which token ends each document; "+ways
		}
		return from, fmt.Errorf("%s, but nothing says where the documents of %s end: %s", needs, main.Files()[0], ways)
	}
	for _, aligned := range d.sources[i][1:] {
		from.Aligned = append(from.Aligned, aligned)
	}
	return from, nil
}

// countSteps sets Steps: to the key steps, or else to the batches of an epoch.
func (d *Dataset) countSteps() error {
	mounted := cmp.Or(d.mounted, d.Sequence)
	d.Steps = cmp.Or(d.Split.Steps, uint64(mounted.BatchesPerEpoch()))
	if end := max(d.Sequence.Batches(), mounted.Batches()); d.Steps > end {
		return fmt.Errorf("max_epochs of the sources allow %d batches; set steps to at most that (got %d)", end, d.Steps)
	}
	if most := d.mostInFile(); d.Steps > most {
		return fmt.Errorf("%d batches of %d bytes are more than a file can hold; set steps to at most %d", d.Steps, d.Sequence.Batch().Bytes(), most)
	}
	return nil
}

// mostInFile returns how many batches fit in half of the largest possible file, which leaves room
// for headers.
func (d *Dataset) mostInFile() uint64 { return math.MaxInt64 / 2 / uint64(d.Sequence.Batch().Bytes()) }

// MaxSteps returns the number of batches in sequence.bin: all that the sequence has, or as many as
// fit in a file. The key steps can only be larger if a restart has made the sequence shorter.
func (d *Dataset) MaxSteps() uint64 { return min(d.Sequence.Batches(), d.mostInFile()) }

// With returns the dataset with the settings of a path component, such as "rank=3,world=8". The two
// share open files. The error matches syscall.ENOENT if a setting is unknown.
func (d *Dataset) With(settings string) (*Dataset, error) {
	s, err := d.Split.With(settings)
	if err != nil {
		return nil, err
	}
	return d.withSettings(s)
}

// withSettings is like With, for a split that config.Split.With returned.
func (d *Dataset) withSettings(s *config.Split) (_ *Dataset, err error) {
	n, settings := *d, *s
	s = &settings
	// The files decide how documents end, and may be newer than s.
	s.EndOfText, s.HasEOT, s.EOT = d.Split.EndOfText, d.Split.HasEOT, d.Split.EOT
	if n.Split = s; s.DType == sampler.Native {
		s.DType = d.Sequence.StoredDType() // bindSettings chooses the same dtype
	}
	if n.mounted = nil; d.mounted != nil {
		// The mounted schedule lacks sources that a restart has added. A path that selects one of
		// them has no earlier sizes.
		if q, err := d.mounted.With(s.Settings); err == nil {
			n.mounted = q
		}
	}
	if n.Sequence, err = d.Sequence.With(s.Settings); err == nil {
		err = n.countSteps()
	}
	if err == nil {
		err = n.checkMaxEpochs()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.MessagePrefix(), err)
	}
	return &n, nil
}

// Len returns the number of tokens in all sources.
func (d *Dataset) Len() (n int64) {
	for _, main := range d.mains {
		n += main.Len()
	}
	return n
}

// Bytes returns the size of all elements of all arrays.
func (d *Dataset) Bytes() (n int64) {
	for _, a := range d.arrays {
		n += a.Bytes()
	}
	return n
}

// TokensModified returns the latest modification time of the token files.
func (d *Dataset) TokensModified() time.Time { return latestModified(d.mains) }

// BatchesModified returns the modification time that programs such as rsync see for batches: the
// latest time of the files, less an offset of up to a year that depends on the settings. With equal
// settings, it is the same in every mount; with others, it differs.
func (d *Dataset) BatchesModified() time.Time {
	const year = 365 * 24 * time.Hour
	sum := sha256.Sum256([]byte(d.Identity()))
	offset := time.Duration(binary.LittleEndian.Uint64(sum[:])%uint64(year/time.Second)) * time.Second
	latest := latestModified(d.arrays)
	if latest.Unix() < int64(year/time.Second) { // as in a reproducible build; keep it after 1970
		return latest.Add(offset)
	}
	return latest.Add(-offset)
}

func latestModified(arrays []*cache.Array) (latest time.Time) {
	for _, a := range arrays {
		if t := a.Modified(); t.After(latest) {
			latest = t
		}
	}
	return latest
}

// Files returns the paths of the token files, one source after the other.
func (d *Dataset) Files() (paths []string) {
	for _, main := range d.mains {
		paths = append(paths, main.Files()...)
	}
	return paths
}

// Vocabulary returns the vocabulary next to token files, or nil.
func (d *Dataset) Vocabulary(files []string) (*vocabulary.Vocabulary, error) {
	v, _, err := vocabulary.ForFiles(files, d.remote)
	return v, err
}

// Arrays returns the arrays of each source, the main array first.
func (d *Dataset) Arrays() [][]*cache.Array { return d.sources }

// CheckEnd returns an error, which matches syscall.ENODATA, if the sequence ends before batch k.
func (d *Dataset) CheckEnd(k uint64) error {
	n := d.Sequence.Batches()
	if k < n {
		return nil
	}
	return fmt.Errorf("batch %d of %s: %w", k, d.Split.Path(), state.EndedError(n))
}

// TryRead checks that batches can be read, by reading the one with which next begins, up to 1 MiB.
func (d *Dataset) TryRead() error {
	defer d.release()
	if err := d.CheckEnd(d.Split.Start); err != nil {
		return err
	}
	return d.Sequence.Read(make([]byte, min(d.Sequence.Batch().Bytes(), 1<<20)), d.Split.Start, 0)
}

func (d *Dataset) isRemote() bool { return slices.ContainsFunc(d.arrays, (*cache.Array).IsRemote) }

func (d *Dataset) release() {
	for _, a := range d.arrays {
		a.Release()
	}
}
