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

// identityInputs returns everything that determines the bytes of a batch, and nothing else. If two
// sequences are equal, so are their inputs, however their settings are written.
func (d *Dataset) identityInputs() map[string]any {
	q, first := d.Sequence, d.Sequence.Phases()[0]
	all := map[string]any{}
	for _, key := range append(config.KeysOn(config.OnRows, config.OnBytes), "split") {
		if value := d.effect(key); value != nil {
			all[key] = value
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
	for _, key := range []string{"batch_size", "block_size", "dtype", "layout", "documents", "document_numbers", "source"} {
		delete(all, key) // the arrays and shares show it
	}
	if q.Layout != sampler.Rows {
		all["at"] = at
	}
	if d.Split.OnChange == "follow" {
		all["files"] = d.readSettings(0, len(d.sources))
	} else {
		all["files"] = []any{d.fingerprint, d.formatsDigest(), d.effect("join")}
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

// effect returns the value of a setting, or nil if no batch depends on it under the other settings.
// key is "split", "join", or a key with the effect OnRows or OnBytes. For the default of a new key,
// effect must return nil, because identities of sequences without it must not change.
func (d *Dataset) effect(key string) any {
	q, s := d.Sequence, d.Split
	isRandom := q.Order == sampler.Random || q.Order == sampler.Shuffle
	switch key {
	case "split": // selects the random stream, together with seed
		return valueIf(isRandom, q.Name)
	case "seed":
		if isTorch(q.Order) {
			return valueIf(q.TorchState == nil, uint64(uint32(q.Seed)))
		}
		return valueIf(isRandom, q.Seed)
	case "torch_state":
		return valueIf(isTorch(q.Order) && q.TorchState != nil, torchStateHash(q.TorchState))
	case "rank", "world": // with the torch orders, part of the seed
		return valueIf(!isTorch(q.Order), s.Value(key))
	case "shuffle_block":
		return valueIf(q.ShuffleBlock > 0, q.ShuffleBlock)
	case "local_world":
		return valueIf(q.ShuffleBlock > 0, q.LocalWorld)
	case "block_size":
		return valueIf(q.Layout != sampler.Rows, q.BlockSize)
	case "rows":
		return valueIf(q.Rows != sampler.Windows, q.Rows)
	case "too_long": // document-first truncates anyway
		return valueIf(q.TooLong == sampler.Drop || q.TooLong == sampler.Truncate && q.Rows != sampler.DocumentFirst, q.TooLong)
	case "document_numbers":
		return valueIf(q.DocumentNumbers, true)
	case "mask_targets":
		return valueIf(q.UsesDocuments(), s.MaskTargetsSetting())
	case "ignore_index":
		return valueIf(q.MaskTargets, q.IgnoreIndex)
	case "eot":
		return valueIf(d.dependsOnEOT(), q.EOT)
	case "bos":
		return valueIf(q.BOS != nil, s.BeginOfText)
	case "join": // followed tokens may get a second file later
		return s.Join && (s.OnChange == "follow" || d.hasShards())
	}
	return s.Value(key)
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
// the split follows changes, for all versions of its tokens. A setting on which no row depends has
// a fixed value, such as 0, or -1 for eot and bos, or is left out if it is in addedSettings.
func (d *Dataset) rowSettings() map[string]any {
	q, s := d.Sequence, d.Split
	none := map[string]any{"split": "", "seed": 0, "torch_state": "", "shuffle_block": 0, "local_world": 1, "block_size": 0,
		"rows": sampler.Windows, "mask_targets": false, "ignore_index": 0, "eot": -1, "bos": -1}
	all := map[string]any{}
	for _, key := range append(config.KeysOn(config.OnRows), "split") {
		value := d.effect(key)
		if value == nil {
			value = none[key]
		}
		if value != nil {
			all[key] = plain(value)
		}
	}
	delete(all, "source") // the weights show it
	var weights, arrays []string
	for _, rows := range q.Phases()[0].Rows {
		weights = append(weights, strconv.Itoa(rows))
	}
	if all["weights"] = ""; len(weights) > 1 {
		all["weights"] = strings.Join(weights, ":")
	}
	all["join"], all["fingerprint"], all["formats"] = plain(d.effect("join")), d.fingerprint, d.formatsDigest()
	if s.OnChange == "follow" {
		all["fingerprint"], all["formats"] = "", digest(d.readSettings(0, len(d.sources)))
	}
	if s.Scheduled() {
		fingerprints, formats := d.sourceHashes()
		all["fingerprint"], all["formats"], all["weights"], all["join"] = strings.Join(fingerprints, ","), strings.Join(formats, ","), d.Sequence.Schedule().String(), ""
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
