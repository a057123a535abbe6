package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"batchfs/cache"
	"batchfs/cache/blocks"
	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/dataset"
	"batchfs/cmd/batchfs/terminal"
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
		cacheDirCommand("status", "Show what the block cache has of which object", func(cmd *cobra.Command, c *config.Config) error {
			kept, err := blocks.Usage(c.Remote().Blocks)
			if err != nil {
				return err
			}
			total := int64(0)
			for _, o := range kept {
				mounted := ""
				if o.Mounted {
					mounted = ", mounted"
				}
				printf(cmd.OutOrStdout(), "%s: %d blocks, %d bytes of %d%s\n", o.Name, o.Blocks, o.Bytes, o.Size, mounted)
				total += o.Bytes
			}
			printf(cmd.OutOrStdout(), "%s: %d bytes of %d\n", c.Store.CacheDir, total, c.Store.CacheBytes)
			return nil
		}),
		cacheDirCommand("prune", "Remove from the block cache what nobody has mounted", func(cmd *cobra.Command, c *config.Config) error {
			removed, err := blocks.Prune(c.Remote().Blocks)
			if err != nil {
				return err
			}
			printf(cmd.OutOrStdout(), "%s: %d bytes removed\n", c.Store.CacheDir, removed)
			return nil
		}),
		cacheDirCommand("fill", "Fetch all objects of the configuration into the block cache, or as much as it has room for", fillCache),
	)
	return cmd
}

// cacheDirCommand is a command of the block cache that a configuration names.
func cacheDirCommand(name, short string, run func(*cobra.Command, *config.Config) error) *cobra.Command {
	var flags config.Flags
	cmd := &cobra.Command{
		Use:     name,
		Short:   short,
		Example: fmt.Sprintf("  batchfs cache %s -c config.toml", name),
		Args:    cobra.NoArgs,
		RunE: atOnce(func(cmd *cobra.Command, _ []string) error {
			c, err := flags.Load()
			if err != nil {
				return err
			}
			if c.Store.CacheDir == "" {
				return errors.New("the configuration has no block cache: set store.cache_dir")
			}
			return run(cmd, c)
		}),
	}
	flags.Register(cmd)
	return cmd
}

func fillCache(cmd *cobra.Command, c *config.Config) error {
	splits, err := dataset.Open(c)
	if err != nil {
		return err
	}
	var of, done int64
	for _, s := range splits {
		of += s.RemoteBytes()
	}
	if of == 0 {
		return errors.New("the configuration names no objects of a store: there is nothing to fetch")
	}
	progress := terminal.NewProgress(cmd.ErrOrStderr(), "fetching", of, terminal.Bytes)
	defer progress.Finish()
	for _, s := range splits {
		if err := s.Fetch(cmd.Context(), func(n int64) {
			done += n
			progress.Set(done, of)
		}); err != nil {
			return err
		}
	}
	cache.Flush()
	use, _ := cache.RemoteUseNow()
	printf(cmd.OutOrStdout(), "%s: %d bytes of objects, %d fetched\n", c.Store.CacheDir, of, use.Bytes)
	if use.Unkept > 0 {
		return fmt.Errorf("%d blocks are not in %s: it is full, or fails; store.cache_bytes is %d", use.Unkept, c.Store.CacheDir, c.Store.CacheBytes)
	}
	return context.Cause(cmd.Context())
}
