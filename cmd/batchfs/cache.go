package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"batchfs/cache"
	"batchfs/cache/blocks"
	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/dataset"
	"batchfs/cmd/batchfs/terminal"
	"batchfs/fs/state"
)

func cacheCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cache",
		Short: "Look at the block cache, clear it, or fill it",
		Long: `The block cache is store.cache_dir of the configuration: what was fetched of objects in stores, for all mounts of this host.
It may be deleted at any time, also while batches are served.`,
		Example: "  batchfs cache status -c config.toml",
	}
	cmd.AddCommand(
		cacheDirCommand("status", "Show what the block cache has of which object, and what readers need", func(cmd *cobra.Command, o *dataset.Opener) error {
			objects, sets, err := blocks.Usage(o.Remote.Blocks)
			if err != nil {
				return err
			}
			total := int64(0)
			for _, object := range objects {
				printf(cmd.OutOrStdout(), "%s: %d blocks, %d bytes of %d\n", object.Name, object.Blocks, object.Bytes, object.Size)
				total += object.Bytes
			}
			for _, s := range sets {
				printf(cmd.OutOrStdout(), "%s\n", workingSetInWords(s))
			}
			printf(cmd.OutOrStdout(), "%s: %d bytes of %d\n", o.Config.Store.CacheDir, total, o.Config.Store.CacheBytes)
			return nil
		}),
		cacheDirCommand("prune", "Remove from the block cache what no mount reads", func(cmd *cobra.Command, o *dataset.Opener) error {
			removed, err := blocks.Prune(o.Remote.Blocks)
			if err != nil {
				return err
			}
			printf(cmd.OutOrStdout(), "%s: %d bytes removed\n", o.Config.Store.CacheDir, removed)
			return nil
		}),
		fillCommand(),
	)
	return cmd
}

func cacheDirCommand(name, short string, run func(*cobra.Command, *dataset.Opener) error) *cobra.Command {
	var flags config.Flags
	cmd := &cobra.Command{
		Use:     name,
		Short:   short,
		Example: fmt.Sprintf("  batchfs cache %s -c config.toml", name),
		Args:    cobra.NoArgs,
		RunE: interruptible(func(cmd *cobra.Command, _ []string) error {
			c, err := flags.Load()
			if err != nil {
				return err
			}
			if c.Store.CacheDir == "" {
				return errors.New("the configuration has no block cache: set store.cache_dir")
			}
			return run(cmd, dataset.NewOpener(c))
		}),
	}
	flags.Register(cmd)
	return cmd
}

func workingSetInWords(s blocks.SavedWorkingSet) string {
	reader := s.Name
	if !s.Live {
		reader += ", which no mount reads"
	}
	return fmt.Sprintf("%s: %d bytes needed, %d kept; last read at %s", reader, s.Needed, s.Stored, s.Touched.Format(time.DateTime))
}

func fillCommand() *cobra.Command {
	var settings []string
	cmd := cacheDirCommand("fill", "Fetch into the block cache what a rank or a host reads", func(cmd *cobra.Command, o *dataset.Opener) error {
		return fillCache(cmd, o, settings)
	})
	cmd.Use, cmd.Args = "fill [SPLIT]...", cobra.ArbitraryArgs
	cmd.Long = `Fetch what an epoch needs of all splits, or of SPLITs, in the order in which it will be read, until there is no more room. With shuffle_block,
that is the share of a host: name it with --rank, --world and --local-world, or in the path of a SPLIT, as in train/rank=8,world=16,local_world=8.
Else it is all of a split.`
	cmd.Example = "  batchfs cache fill -c config.toml --rank $RANK --world $WORLD_SIZE --local-world $LOCAL_WORLD_SIZE"
	for _, key := range []string{"rank", "world", "local_world"} {
		cmd.Flags().Func(strings.ReplaceAll(key, "_", "-"), "the setting `"+key+"` of the reader", func(value string) error {
			settings = append(settings, key+"="+value)
			return nil
		})
	}
	return cmd
}

func fillCache(cmd *cobra.Command, o *dataset.Opener, settings []string) error {
	paths := cmd.Flags().Args()
	if len(paths) == 0 {
		for _, s := range o.Config.Splits {
			paths = append(paths, s.Name)
		}
	}
	var splits []*dataset.Dataset
	var sets []*cache.WorkingSet
	var of, done int64
	for _, path := range paths {
		d, err := o.OpenPath(path)
		if err != nil {
			return err
		}
		rank := settings
		if d.Split.ShuffleBlock == 0 { // which has hosts
			rank = slices.DeleteFunc(slices.Clone(rank), func(s string) bool { return strings.HasPrefix(s, "local_world") })
		}
		if len(rank) > 0 {
			if d, err = d.With(strings.Join(rank, ",")); err != nil {
				return err
			}
		}
		if set := d.WorkingSet(d.Split.Path()); set != nil {
			splits, sets = append(splits, d), append(sets, set)
			of += set.Needed
		}
	}
	if of == 0 {
		return errors.New("the configuration names no objects of a store: there is nothing to fetch")
	}
	progress := terminal.NewProgress(cmd.ErrOrStderr(), "fetching", of, terminal.Bytes)
	defer progress.Finish()
	var err error
	for i, d := range splits {
		if err = d.Fill(cmd.Context(), sets[i], func(n int64) {
			done += n
			progress.Set(done, of)
		}); err != nil {
			break
		}
	}
	o.Remote.Flush()
	to := o.Config.Store
	printf(cmd.OutOrStdout(), "%s: %d bytes needed, %d fetched\n", to.CacheDir, of, o.Remote.Store.Counts.Bytes.Load())
	if errors.Is(err, blocks.ErrFull) {
		return fmt.Errorf("%s is full: batches need %d bytes of it, and store.cache_bytes is %d; what other mounts read stays", to.CacheDir, of, to.CacheBytes)
	}
	return err
}

// recordCacheUse records every few seconds how full a directory of blocks is. It lists all blocks, for a hundredth of the time at most.
func recordCacheUse(o blocks.Options, to *state.Gauges) {
	for o.Dir != "" {
		began := time.Now()
		objects, sets, err := blocks.Usage(o)
		if err == nil {
			var used, needed, there int64
			for _, object := range objects {
				used += object.Bytes
			}
			for _, s := range sets {
				if s.Live {
					needed, there = needed+s.Needed, there+s.Stored
				}
			}
			to.CacheUsed.Store(used)
			to.CacheNeeded.Store(needed)
			to.CacheStored.Store(there)
			to.CacheLimit.Store(o.Limit)
		}
		var disk unix.Statfs_t
		if unix.Statfs(o.Dir, &disk) == nil {
			to.CacheFree.Store(int64(disk.Bavail) * disk.Bsize)
			to.CacheDisk.Store(int64(disk.Blocks) * disk.Bsize)
		}
		time.Sleep(max(5*time.Second, 100*time.Since(began)))
	}
}
