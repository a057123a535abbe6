package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"batchfs/cache"
	"batchfs/cache/blocks"
	"batchfs/cmd/batchfs/command"
	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/dataset"
	"batchfs/cmd/batchfs/terminal"
)

func cacheCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cache COMMAND",
		Short: "Show, prune or fill the block cache",
		Long: `The block cache is the directory store.cache_dir of the configuration. It holds
blocks of objects that were fetched from a store, and all of the user's mounts on
this host can share it. You can delete it at any time, even while batches are served.`,
		Example: "  batchfs cache status -c config.toml",
		// Without RunE, cobra prints help, and succeeds, if there is no such subcommand.
		Args:                  cobra.NoArgs,
		RunE:                  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		DisableFlagsInUseLine: true,
	}
	cmd.AddCommand(
		cacheDirCommand("status", "Show which objects the block cache holds and how much its readers need", func(cmd *cobra.Command, o *dataset.Opener) error {
			objects, sets, err := blocks.Usage(o.Remote.Blocks)
			if err != nil {
				return err
			}
			total := int64(0)
			for _, object := range objects {
				printf(cmd.OutOrStdout(), "%s: %d blocks, %d bytes of %d\n", object.Name, object.Blocks, object.StoredBytes, object.Size)
				total += object.StoredBytes
			}
			for _, s := range sets {
				printf(cmd.OutOrStdout(), "%s\n", s)
			}
			printf(cmd.OutOrStdout(), "%s: %d bytes of %d\n", o.Config.Store.CacheDir, total, o.Config.Store.CacheBytes)
			return nil
		}),
		cacheDirCommand("prune", "Remove the blocks that no mount needs", func(cmd *cobra.Command, o *dataset.Opener) error {
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
		RunE: command.Interruptible(func(cmd *cobra.Command, _ []string) error {
			c, err := flags.Load()
			if err != nil {
				return err
			}
			if c.Store.CacheDir == "" {
				return errors.New("the configuration has no block cache; set store.cache_dir")
			}
			return run(cmd, dataset.NewOpener(c))
		}),
	}
	flags.Register(cmd)
	return cmd
}

func fillCommand() *cobra.Command {
	cmd := cacheDirCommand("fill", "Fetch the blocks that a rank or a host will read", fillCache)
	cmd.Use, cmd.Args = "fill [SPLIT]...", cobra.ArbitraryArgs
	cmd.Long = `Fetch the blocks that one epoch of the SPLITs needs, in the order in which they will
be read. It fails if the cache has no room for them. Without a SPLIT, all splits are
fetched.

With shuffle_block, only the share of one host is fetched. Name one of its ranks in
the path of a SPLIT, as in train/rank=8,world=16,local_world=8. Without
shuffle_block, the whole split is fetched.`
	cmd.Example = "  batchfs cache fill -c config.toml train/rank=$RANK,world=$WORLD_SIZE,local_world=$LOCAL_WORLD_SIZE"
	return cmd
}

// fillCache fetches the blocks of the named splits, or of all splits.
func fillCache(cmd *cobra.Command, o *dataset.Opener) error {
	paths := cmd.Flags().Args()
	if len(paths) == 0 {
		for _, s := range o.Config.Splits {
			paths = append(paths, s.Name)
		}
	}
	var splits []*dataset.Dataset
	var sets []*cache.WorkingSet
	var total, done int64
	for _, path := range paths {
		d, err := o.OpenPath(path)
		if err != nil {
			return err
		}
		set := d.WorkingSet(d.Split.Path())
		// Ranks of a host have the same working set.
		isKnown := func(known *cache.WorkingSet) bool { return known.WorkingSet == set.WorkingSet }
		if set != nil && !slices.ContainsFunc(sets, isKnown) {
			splits, sets = append(splits, d), append(sets, set)
			total += set.Needed
		}
	}
	if total == 0 {
		return errors.New("nothing to fetch: the configuration names no objects in a store")
	}
	progress := terminal.NewProgress(cmd.ErrOrStderr(), "fetching", total, terminal.Bytes)
	defer progress.Finish()
	var err error
	for i, d := range splits {
		if err = d.Fill(cmd.Context(), sets[i], func(n int64) {
			done += n
			progress.Set(done, total)
		}); err != nil {
			break
		}
	}
	o.Remote.Flush()
	store := o.Config.Store
	printf(cmd.OutOrStdout(), "%s: %d bytes needed, %d fetched\n", store.CacheDir, total, o.Remote.Store.Counts.Bytes.Load())
	if errors.Is(err, blocks.ErrFull) {
		return fmt.Errorf("%s is full: the splits need %d bytes, and store.cache_bytes is %d, which they share with other mounts; raise it",
			store.CacheDir, total, store.CacheBytes)
	}
	return err
}
