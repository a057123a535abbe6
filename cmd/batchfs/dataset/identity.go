package dataset

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"batchfs/cache"
	"batchfs/cmd/batchfs/config"
	"batchfs/sampler"
)

// Identity identifies the batches. If two sequences have the same identity, every batch has the
// same bytes in both, except that the tokens may differ under on_change = "follow". An identity
// consists of 32 hexadecimal digits. If the split is scheduled, the hashes of its sources and the
// schedule follow, so that Continues can compare them.
func (d *Dataset) Identity() string {
	all := d.identityInputs()
	if !d.Split.Scheduled() {
		return digest(all)
	}
	all["files"], all["shares"] = nil, nil
	var sources []string
	fingerprints, formats := d.sourceHashes()
	for i := range formats {
		sources = append(sources, digest([]string{fingerprints[i], formats[i]}))
	}
	return digest(all) + " " + strings.Join(sources, ",") + " " + d.Sequence.Schedule().String()
}

// sourceHashes returns the fingerprint of each source, and a hash of how its files are read. If the
// split follows changes, the fingerprints are empty.
func (d *Dataset) sourceHashes() (fingerprints, formats []string) {
	if d.Split.OnChange != "follow" {
		for _, f := range d.sourceFormats() {
			formats = append(formats, digest([]any{f, d.Split.Join}))
		}
		return d.sourceFingerprints, formats
	}
	for i := range d.sources {
		fingerprints, formats = append(fingerprints, ""), append(formats, digest(d.readSettings(i, i+1)))
	}
	return fingerprints, formats
}

// digest returns a hash of v as 32 hexadecimal digits. Readers compare digests of different
// versions of batchfs, so v and its JSON must not change unless the batches do.
func digest(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // JSON can encode all of these types
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

// identityInputs returns everything that determines the bytes of a batch, and nothing else, however
// the settings are written.
func (d *Dataset) identityInputs() map[string]any {
	q, first := d.Sequence, d.Sequence.Phases()[0]
	all := map[string]any{}
	for _, key := range append(config.KeysOn(config.OnRows, config.OnBytes), "split") {
		if setting := d.setting(key); setting.effect != nil && !setting.inArrays {
			all[key] = setting.effect
		}
	}
	var arrays, at, shares []any
	for _, a := range q.Batch().Arrays {
		arrays = append(arrays, []any{a.Name, a.DType, a.Shape, a.Offset})
	}
	for _, a := range q.Arrays {
		at = append(at, []any{a.Name, a.At})
	}
	for i := range d.Split.Sources {
		shares = append(shares, first.Rows[i])
	}
	all["arrays"], all["shares"] = arrays, shares
	if q.Layout != sampler.Rows {
		all["at"] = at
	}
	if d.Split.OnChange == "follow" {
		all["files"] = d.readSettings(0, len(d.sources))
	} else {
		all["files"] = []any{d.fingerprint, d.formatsDigest(), d.setting("join").effect}
	}
	if q.UsesDocuments() && slices.ContainsFunc(d.mains, hasDocuments) {
		all["ends"] = d.Split.DocumentsSetting() == "files"
	}
	if q.IgnoreIndex == sampler.DefaultIgnoreIndex {
		delete(all, "ignore_index")
	}
	if all["torch_state"] != nil {
		sum := sha256.Sum256(q.TorchState)
		all["torch_state"] = sum[:]
	} else if isTorch(q.Order) { // each rank has its own generator
		all["seed"] = uint32(q.Seed) + uint32(q.Rank)
	}
	return all
}

// A setting is what a key means for a sequence: for its identity, the state of a run and info.json.
type setting struct {
	effect   any  // the value, or nil if no batch depends on it under the other settings
	none     any  // what a state has instead of a nil effect; if nil, the state lacks the key
	inArrays bool // whether arrays and shares show it in an identity
	hidden   bool // whether info.json lacks it, because it is not set or its feature is not used
}

// setting describes "split", "join", or a key with the effect OnRows or OnBytes. For the default of
// a new key, effect and none must be nil, because identities and states of sequences without it
// must not change. Such a key is also one of addedSettings.
func (d *Dataset) setting(key string) setting {
	q, s := d.Sequence, d.Split
	isRandom := q.Order == sampler.Random || q.Order == sampler.Shuffle
	hasEnds := s.HasEOT || s.UsesDocuments()
	switch key {
	case "split": // selects the random stream, together with seed
		return setting{effect: valueIf(isRandom, q.Name), none: ""}
	case "seed":
		if isTorch(q.Order) {
			return setting{effect: valueIf(q.TorchState == nil, uint64(uint32(q.Seed))), none: 0}
		}
		return setting{effect: valueIf(isRandom, q.Seed), none: 0}
	case "torch_state":
		return setting{effect: valueIf(isTorch(q.Order) && q.TorchState != nil, torchStateHash(q.TorchState)), none: "", hidden: q.TorchState == nil}
	case "rank", "world": // with the torch orders, part of the seed
		return setting{effect: valueIf(!isTorch(q.Order), s.Value(key))}
	case "shuffle_block":
		return setting{effect: valueIf(q.ShuffleBlock > 0, q.ShuffleBlock), none: 0, hidden: q.ShuffleBlock == 0}
	case "local_world":
		return setting{effect: valueIf(q.ShuffleBlock > 0, q.LocalWorld), none: 1, hidden: q.ShuffleBlock == 0}
	case "block_size":
		return setting{effect: valueIf(q.Layout != sampler.Rows, q.BlockSize), none: 0, inArrays: true}
	case "batch_size", "dtype", "layout":
		return setting{effect: s.Value(key), inArrays: true}
	case "source": // shares and weights show it
		return setting{hidden: s.Source == ""}
	case "documents":
		return setting{effect: s.Value(key), inArrays: true, hidden: !hasEnds}
	case "document_numbers":
		return setting{effect: valueIf(q.DocumentNumbers, true), inArrays: true, hidden: !q.DocumentNumbers}
	case "rows":
		return setting{effect: valueIf(q.Rows != sampler.Windows, q.Rows), none: sampler.Windows, hidden: !hasEnds}
	case "too_long": // document-first truncates anyway
		matters := q.TooLong == sampler.Drop || q.TooLong == sampler.Truncate && q.Rows != sampler.DocumentFirst
		return setting{effect: valueIf(matters, q.TooLong), hidden: !matters}
	case "mask_targets":
		return setting{effect: valueIf(q.UsesDocuments(), s.MaskTargetsSetting()), none: false, hidden: !hasEnds}
	case "ignore_index":
		return setting{effect: valueIf(q.MaskTargets, q.IgnoreIndex), none: 0, hidden: !q.MaskTargets}
	case "eot":
		return setting{effect: valueIf(d.dependsOnEOT(), q.EOT), none: -1, hidden: !hasEnds}
	case "bos":
		return setting{effect: valueIf(q.BOS != nil, s.BeginOfText), none: -1, hidden: q.BOS == nil}
	case "join": // followed tokens may get a second file later
		return setting{effect: s.Join && (s.OnChange == "follow" || d.hasShards())}
	}
	return setting{effect: s.Value(key)}
}

func valueIf[V any](decides bool, value V) any {
	if decides {
		return value
	}
	return nil
}

func isTorch(o sampler.Order) bool { return o == sampler.Torch || o == sampler.Torch26 }

// dependsOnEOT reports whether eot decides where documents end, or fills up rows.
func (d *Dataset) dependsOnEOT() bool {
	q := d.Sequence
	for i := range d.mains {
		if q.EndsByToken(i) {
			return true
		}
	}
	return q.Rows != sampler.Windows && q.BOS == nil
}

func hasDocuments(a *cache.Array) bool { return a.Documents() != nil }

// rowSettings returns everything that determines the rows of a run, except batch_size and world, as
// numbers and strings. They become part of a saved state. They are the same on all ranks and, if
// the split follows changes, for all versions of its tokens.
func (d *Dataset) rowSettings() map[string]any {
	q, s := d.Sequence, d.Split
	all := map[string]any{}
	for _, key := range append(config.KeysOn(config.OnRows), "split") {
		setting := d.setting(key)
		if setting.effect == nil {
			setting.effect = setting.none
		}
		if setting.effect != nil {
			all[key] = plain(setting.effect)
		}
	}
	var weights, arrays []string
	for _, rows := range q.Phases()[0].Rows {
		weights = append(weights, strconv.Itoa(rows))
	}
	if all["weights"] = ""; len(weights) > 1 {
		all["weights"] = strings.Join(weights, ":")
	}
	all["join"], all["fingerprint"], all["formats"] = plain(d.setting("join").effect), d.fingerprint, d.formatsDigest()
	if s.OnChange == "follow" {
		all["fingerprint"], all["formats"] = "", digest(d.readSettings(0, len(d.sources)))
	}
	if s.Scheduled() {
		fingerprints, formats := d.sourceHashes()
		all["fingerprint"], all["formats"] = strings.Join(fingerprints, ","), strings.Join(formats, ",")
		all["weights"], all["join"] = d.Sequence.Schedule().String(), ""
		if all["split"] != "" && (len(s.Sources) > 1 || s.Stages != nil) {
			all["split"] = q.Name + "/" // the streams of its sources
		}
	}
	for _, a := range q.Arrays {
		if q.Layout == sampler.Rows {
			a.At = ""
		}
		arrays = append(arrays, strings.Trim(a.Name+":"+string(a.At), ":"))
	}
	all["arrays"] = strings.Join(arrays, ",")
	return all
}

// plain returns a whole number as an int64, and any other value as a string.
func plain(value any) any {
	switch v := reflect.ValueOf(value); {
	case v.CanInt():
		return v.Int()
	case v.CanUint():
		return int64(v.Uint())
	}
	return fmt.Sprint(value)
}

func torchStateHash(state []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(state)) }

// hasShards reports whether a source has several files. Only then does join affect the batches.
func (d *Dataset) hasShards() bool {
	return slices.ContainsFunc(d.mains, func(main *cache.Array) bool { return len(main.Files()) > 1 })
}

// readSettings returns the settings that say how to read the files of sources from to to-1. If the
// split follows changes, they identify its data.
func (d *Dataset) readSettings(from, to int) []any {
	s := d.Split
	list := []any{s.Join, s.Tensor, s.TokenDType}
	for i := from; i < to; i++ {
		for _, b := range s.AlignedOf(i) {
			list = append(list, []any{b.Tensor, b.DType})
		}
	}
	return list
}

// digestFormats returns a digest of what the fingerprint does not cover: which files belong to
// which array of which source, and where and of which type their elements are.
func digestFormats(sources [][]*cache.Array) string {
	var all [][][][]any // indices: source, array, file, field
	for _, arrays := range sources {
		var source [][][]any
		for _, a := range arrays {
			var files [][]any
			for _, f := range a.Manifest().Files {
				// A snapshot may turn nil into an empty slice, which JSON encodes differently.
				axes := append([]int{}, f.Format.Axes...)
				files = append(files, []any{f.Format.Offset, f.Format.Count, f.Format.DType, axes})
			}
			source = append(source, files)
		}
		all = append(all, source)
	}
	return digest(all)
}
