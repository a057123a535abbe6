package config

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"batchfs/cache/array"
	"batchfs/sampler"
)

// check returns an error for values that are wrong only in combination, whatever the token files
// are. The sampler relies on it.
func (s *Split) check() error {
	switch {
	case len(s.Tokens) == 0 && len(s.Sources) == 0:
		return fmt.Errorf("%s: split %s must have tokens, e.g. tokens = \"data/%s.bin\" (got none)", s.MessagePrefix(), s.Name, s.Name)
	case len(s.Tokens) > 0 && len(s.Sources) > 0:
		return fmt.Errorf("%s: split %s must have tokens or sources, not both", s.MessagePrefix("tokens", "sources"), s.Name)
	case len(s.Aligned) > 0 && len(s.Sources) > 0:
		return fmt.Errorf("%s: split %s has sources; list the arrays of each source in [[splits.%s.sources.arrays]]",
			s.MessagePrefix("arrays"), s.Name, s.Name)
	case s.Rank >= s.World:
		return fmt.Errorf("%s: must be below world, which is %d in splits.%s (got %d)", s.MessagePrefix("rank", "world"), s.World, s.Path(), s.Rank)
	case s.BatchSize*s.World > sampler.MaxRows:
		return fmt.Errorf("%s: batch_size times world must be at most %d, %s (got %d times %d in splits.%s)",
			s.MessagePrefix("batch_size", "world"), sampler.MaxRows, maxRowsReason, s.BatchSize, s.World, s.Path())
	}
	for _, check := range []func() error{s.checkSources, s.CheckAligned, s.checkHostShares, s.checkRows, s.checkTorch} {
		if err := check(); err != nil {
			return err
		}
	}
	if s.IsSet("token_dtype") {
		return s.CheckVocabSize(slices.Max(s.VocabSizes()), s.TokenDType, s.Shape)
	}
	return nil
}

func (s *Split) checkSources() error {
	sum, seen := 0., map[string]int{}
	for i, source := range s.Sources {
		if j, ok := seen[source.Name]; ok {
			return fmt.Errorf("%s: sources %d and %d of split %s have the name %q; give each its own", s.MessagePrefix("sources"), j, i, s.Name, source.Name)
		}
		seen[source.Name] = i
		sum += source.Weight
	}
	weight, isSet := s.keyRefs["sources.weight"]
	missing, isMissing := s.keyRefs["sources.noweight"]
	switch {
	case len(s.StageTables) > 0 && len(s.Sources) == 0:
		return fmt.Errorf("%s: split %s has no sources; list its files as [[splits.%[2]s.sources]]", s.MessagePrefix("stages"), s.Name)
	case len(s.StageTables) > 0 && isSet:
		return fmt.Errorf("%s: split %s has stages, which have the weights of its sources; leave out weight, or stages", weight, s.Name)
	case len(s.StageTables) == 0 && isMissing:
		return fmt.Errorf("%s: must have weight, %s (got none)", missing, sourceTable.find("weight").rule)
	case s.Source != "" && len(s.Sources) == 0:
		return fmt.Errorf("%s: split %s has no sources; leave source out", s.MessagePrefix("source"), s.Name)
	case s.Source != "" && s.Only == 0:
		return fmt.Errorf("%s: %w", s.MessagePrefix("source"), s.unknownSource(s.Source))
	case len(s.Sources) > 0 && len(s.StageTables) == 0 && sum == 0:
		return fmt.Errorf("%s: all sources of split %s have weight 0; raise that of one", s.MessagePrefix("sources"), s.Name)
	}
	return s.checkStages()
}

func (s *Split) checkStages() error {
	last := uint64(0)
	for i, stage := range s.StageTables {
		for _, name := range slices.Sorted(maps.Keys(stage.Weights)) {
			if s.sourceIndex(name) < 0 {
				return fmt.Errorf("%s: %w", s.StagePrefix(i, "weights", name), s.unknownSource(name))
			}
		}
		row := s.Stages[i].BeginsAt(s.BlockSize)
		switch set := min(stage.FromTokens, 1) + min(stage.FromRow, 1); {
		case i == 0 && set > 0:
			return fmt.Errorf("%s: the first stage begins at row 0; leave out from_tokens and from_row", s.StagePrefix(i))
		case i > 0 && set != 1:
			return fmt.Errorf("%s: must have either from_tokens or from_row (got %s)", s.StagePrefix(i), []string{"none", "", "both"}[set])
		case stage.FromTokens > 0 && s.Layout == sampler.Rows:
			return fmt.Errorf("%s: layout rows has no tokens; replace from_tokens with from_row", s.StagePrefix(i))
		case i > 0 && row <= last:
			return fmt.Errorf("%s: must begin after row %d, where the stage before it begins (got row %d)", s.StagePrefix(i), last, row)
		}
		last = row
	}
	return nil
}

func (s *Split) unknownSource(name string) error {
	return fmt.Errorf("split %s has no source %q; its sources are %s", s.Name, name, strings.Join(s.SourceNames(), ", "))
}

// checkRows checks what rows and targets consist of.
func (s *Split) checkRows() error {
	switch ofDocuments := s.Rows != sampler.Windows; {
	case s.Layout == sampler.Rows && s.DocumentNumbers:
		return fmt.Errorf("%s: layout rows has no documents; leave out document_numbers", s.MessagePrefix("document_numbers", "layout"))
	case s.Layout == sampler.Rows && (s.Documents || ofDocuments):
		return fmt.Errorf("%s: layout rows has no documents; leave out documents and rows (got rows = %q in splits.%s)",
			s.MessagePrefix("documents", "rows", "layout"), s.Rows, s.Path())
	case s.MaskTargets && s.Layout != sampler.XY:
		return fmt.Errorf("%s: mask_targets is for y, which layout %s does not have; set layout = \"xy\", or leave mask_targets out",
			s.MessagePrefix("mask_targets", "layout"), s.Layout)
	case s.Rows == sampler.Packed && s.BlockSize > sampler.MaxPacked:
		return fmt.Errorf("%s: packed rows need a block_size of at most %d (got %d in splits.%s)",
			s.MessagePrefix("block_size", "rows"), sampler.MaxPacked, s.BlockSize, s.Path())
	case (s.Documents || s.DocumentNumbers || ofDocuments) && s.BlockSize > math.MaxInt32:
		return fmt.Errorf("%s: documents need a block_size of at most %d (got %d in splits.%s)",
			s.MessagePrefix("block_size", "documents", "document_numbers", "rows"), math.MaxInt32, s.BlockSize, s.Path())
	case s.BeginOfText >= 0 && !ofDocuments:
		return fmt.Errorf("%s: bos begins segments of documents; set rows = \"packed\" or \"document\", or leave bos out (got rows = %q)",
			s.MessagePrefix("bos", "rows"), s.Rows)
	case s.TooLong != sampler.Cut && !ofDocuments:
		return fmt.Errorf("%s: windows hold tokens of any document, however long; set rows = \"packed\", \"document\" or "+
			"\"document-first\", or leave too_long out (got rows = %q)",
			s.MessagePrefix("too_long", "rows"), s.Rows)
	}
	return nil
}

// checkTorch checks that the torch orders can draw the rows.
func (s *Split) checkTorch() error {
	hasCap := slices.ContainsFunc(s.Sources, func(source Source) bool { return source.MaxEpochs > 0 })
	switch {
	case s.Order != sampler.Torch && s.Order != sampler.Torch26:
		return nil
	case s.Rows != sampler.Windows:
		return fmt.Errorf("%s: order %s draws windows; choose another order, or rows = \"windows\" (got rows = %q)",
			s.MessagePrefix("order", "rows"), s.Order, s.Rows)
	case len(s.Sources) > 1 || len(s.StageTables) > 0:
		return fmt.Errorf("%s: order %s draws from one array of tokens and cannot mix sources; choose another order",
			s.MessagePrefix("order", "sources"), s.Order)
	case s.Source != "" || hasCap:
		return fmt.Errorf("%s: order %s draws without end from one array of tokens; choose another order, or leave out max_epochs and source",
			s.MessagePrefix("order", "source", "sources"), s.Order)
	case s.StateFile != "" && (s.Rank != 0 || s.World != 1):
		return fmt.Errorf("%s: torch_state is that of one rank: set rank = 0 and world = 1, or leave it out (got rank %d of %d)",
			s.MessagePrefix("torch_state", "rank", "world"), s.Rank, s.World)
	}
	return nil
}

func (s *Split) checkHostShares() error {
	switch {
	case s.ShuffleBlock == 0 && s.LocalWorld > 1:
		return fmt.Errorf("%s: needs shuffle_block, which gives each host a share of the tokens (got %d without it in splits.%s); set both or neither",
			s.MessagePrefix("local_world"), s.LocalWorld, s.Path())
	case s.ShuffleBlock == 0:
		return nil
	case s.Order != sampler.Shuffle:
		return fmt.Errorf("%s: needs order = \"shuffle\" (got %q in splits.%s); set that, or shuffle_block = 0",
			s.MessagePrefix("shuffle_block", "order"), s.Order, s.Path())
	case s.Rows != sampler.Windows:
		return fmt.Errorf("%s: needs rows = \"windows\" (got %q in splits.%s); set shuffle_block = 0, because rows of documents are "+
			"read from a few places at a time anyway",
			s.MessagePrefix("shuffle_block", "rows"), s.Rows, s.Path())
	case s.World%s.LocalWorld != 0:
		return fmt.Errorf("%s: must divide world, which is %d in splits.%s (got %d)", s.MessagePrefix("local_world", "world"), s.World, s.Path(), s.LocalWorld)
	case s.World/s.LocalWorld > sampler.MaxHosts:
		return fmt.Errorf("%s: world / local_world, the number of hosts, must be at most %d (got %d / %d in splits.%s)",
			s.MessagePrefix("world", "local_world"), sampler.MaxHosts, s.World, s.LocalWorld, s.Path())
	case s.IsRemote() && s.ShuffleBlock%s.storeBlock != 0:
		return fmt.Errorf("%s: must be a multiple of store.block_bytes, which is %d (got %d in splits.%s), or else two hosts would fetch the same block",
			s.MessagePrefix("shuffle_block"), s.storeBlock, s.ShuffleBlock, s.Path())
	}
	return nil
}

// CheckVocabSize returns an error if dtype cannot hold the tokens of a vocabulary of this size, the
// largest of VocabSizes. It accepts elements with axes, because they are not tokens.
func (s *Split) CheckVocabSize(size int64, dtype array.DType, axes []int) error {
	if len(axes) == 0 && dtype.IsInteger() && size > dtype.Values() {
		return fmt.Errorf("%s: %s cannot hold the tokens of a vocabulary of %d in splits.%s; did you mean token_dtype = \"uint32\"?",
			s.MessagePrefix("vocab_size", "sources"), dtype, size, s.Path())
	}
	return nil
}

// CheckAligned returns an error unless all sources have the same aligned arrays, at most
// maxAligned, with different names.
func (s *Split) CheckAligned() error {
	first := ""
	for i, source := range s.sources() {
		most := maxAligned
		if s.DocumentNumbers {
			most--
		}
		if len(source.Aligned) > most {
			return fmt.Errorf("%s: must be at most %d arrays (got %d)", s.MessagePrefix("arrays", "sources"), most, len(source.Aligned))
		}
		var names []string
		seen := map[string]bool{}
		for _, b := range source.Aligned {
			if seen[b.Name] {
				return fmt.Errorf("%s: two arrays have the name %q", s.MessagePrefix("arrays", "sources"), b.Name)
			}
			seen[b.Name] = true
			names = append(names, b.Name+" at "+string(b.At))
		}
		if first = cmp.Or(first, fmt.Sprint(names)); fmt.Sprint(names) != first {
			return fmt.Errorf("%s: source %d has the arrays %s, source 0 has %s; all sources must have the same arrays in the same order",
				s.MessagePrefix("sources"), i, names, first)
		}
	}
	return nil
}

// maxAligned leaves room for the other arrays of a batch, at most six without document_numbers.
const maxAligned = array.MaxArrays - 6
