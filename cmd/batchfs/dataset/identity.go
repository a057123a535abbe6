package dataset

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"batchfs/cache"
	"batchfs/sampler"
)

// Identity returns 32 hexadecimal digits. If they are equal for two sequences, every batch has the
// same bytes in both, except that the tokens may differ under on_change = "follow". If the split is
// scheduled, a hash of each source and the schedule follow: see Continues.
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
	return digest(all) + " " + strings.Join(sources, ",") + " " + d.schedule()
}

// sourceHashes returns, for each source alone, the fingerprint, or "" if the split follows changes,
// and a hash of how its files are read.
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

// identityInputs returns everything that determines the bytes of a batch, and nothing else. Equal
// sequences have equal values, however their settings are written.
func (d *Dataset) identityInputs() map[string]any {
	q, first := d.Sequence, d.Sequence.Stages()[0]
	all := map[string]any{"order": q.Order, "rank": q.Rank, "world": q.World}
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
	if q.Layout != sampler.Elements {
		all["at"] = at
	}
	if d.Split.OnChange == "follow" {
		all["files"] = d.readSettings(0, len(d.sources))
	} else {
		all["files"] = []any{d.fingerprint, d.formatsDigest(), d.Split.Join && d.hasShards()}
	}
	d.addOrder(all)
	d.addDocuments(all)
	return all
}

func (d *Dataset) addOrder(all map[string]any) {
	q := d.Sequence
	switch q.Order {
	case sampler.Torch, sampler.Torch26: // each rank has its own generator
		delete(all, "rank")
		delete(all, "world")
		if q.TorchState != nil {
			sum := sha256.Sum256(q.TorchState)
			all["torch_state"] = sum[:]
		} else {
			all["seed"] = uint32(q.Seed) + uint32(q.Rank)
		}
	case sampler.Random, sampler.Shuffle:
		all["split"], all["seed"] = q.Name, q.Seed // both select the random stream
	}
	if q.ShuffleBlock > 0 {
		all["shuffle_block"], all["local_world"] = q.ShuffleBlock, q.LocalWorld
	}
}

func (d *Dataset) addDocuments(all map[string]any) {
	q := d.Sequence
	if q.Rows != sampler.Windows {
		all["rows"] = q.Rows
	}
	if !q.UsesDocuments() {
		return
	}
	all["mask_targets"] = d.Split.MaskTargetsSetting()
	if q.MaskTargets && q.IgnoreIndex != sampler.DefaultIgnoreIndex {
		all["ignore_index"] = q.IgnoreIndex
	}
	if slices.ContainsFunc(d.mains, hasDocuments) {
		all["ends"] = d.Split.DocumentsSetting() == "files"
	}
	if q.BOS != nil {
		all["bos"] = q.BOS
	} else if d.dependsOnEOT() {
		all["eot"] = q.EOT
	}
}

// dependsOnEOT reports whether eot decides where documents end, or what fills a row.
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

// rowSettings returns everything that decides the rows of a run, except batch_size and world, as
// plain numbers and strings. A saved state holds all of it. It is the same on all ranks and, under
// on_change = "follow", for all tokens. Settings without effect have fixed values, such as 0, or -1
// for eot and bos.
func (d *Dataset) rowSettings() map[string]any {
	q, s := d.Sequence, d.Split
	follow := s.OnChange == "follow"
	all := map[string]any{
		"split": "", "order": q.Order, "seed": uint64(0), "torch_state": "",
		"shuffle_block": q.ShuffleBlock, "local_world": q.LocalWorld,
		"layout": q.Layout, "rows": q.Rows, "block_size": q.BlockSize,
		"documents": fmt.Sprint(s.DocumentsSetting()), "mask_targets": fmt.Sprint(s.MaskTargetsSetting()), "ignore_index": int64(0), "eot": int64(-1), "bos": d.Split.BeginOfText,
		"join": strconv.FormatBool(s.Join && (follow || d.hasShards())), "weights": "", "arrays": "",
		"fingerprint": d.fingerprint, "formats": d.formatsDigest(),
	}
	if q.Order == sampler.Random || q.Order == sampler.Shuffle {
		all["split"] = q.Name
	}
	if isTorch := q.Order == sampler.Torch || q.Order == sampler.Torch26; isTorch && q.TorchState != nil {
		all["torch_state"] = torchStateHash(q.TorchState)
	} else if isTorch {
		all["seed"] = uint64(uint32(q.Seed)) // see addOrder
	} else if q.Order != sampler.Sequential {
		all["seed"] = q.Seed
	}
	if d.dependsOnEOT() {
		all["eot"] = int64(q.EOT)
	}
	if q.MaskTargets {
		all["ignore_index"] = q.IgnoreIndex
	}
	if follow {
		all["fingerprint"], all["formats"] = "", digest(d.readSettings(0, len(d.sources)))
	}
	var weights, arrays []string
	for _, rows := range q.Stages()[0].Rows {
		weights = append(weights, strconv.Itoa(rows))
	}
	if len(weights) > 1 {
		all["weights"] = strings.Join(weights, ":")
	}
	if s.Scheduled() {
		fingerprints, formats := d.sourceHashes()
		all["fingerprint"], all["formats"], all["weights"], all["join"] = strings.Join(fingerprints, ","), strings.Join(formats, ","), d.schedule(), ""
		if all["split"] != "" && (len(s.Sources) > 1 || s.Settings.Stages != nil) {
			all["split"] = q.Name + "/" // the streams of its sources
		}
	}
	for _, a := range q.Arrays {
		if q.Layout == sampler.Elements {
			a.At = ""
		}
		arrays = append(arrays, strings.Trim(a.Name+":"+string(a.At), ":"))
	}
	all["arrays"] = strings.Join(arrays, ",")
	if q.Layout == sampler.Elements {
		all["block_size"] = 0
	}
	return all
}

func torchStateHash(state []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(state)) }

// hasShards reports whether a source has several files. Only then does join affect the batches.
func (d *Dataset) hasShards() bool {
	return slices.ContainsFunc(d.mains, func(main *cache.Array) bool { return len(main.Files()) > 1 })
}

// readSettings returns the settings that say how to read the token files. They identify the data of
// sources from up to to if the split follows changes.
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

// digestFormats returns a digest of which files belong to which array of which source, and of the
// location and type of their elements. The fingerprint covers only contents.
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
