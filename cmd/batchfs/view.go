package main

import (
	"fmt"
	"net"

	"github.com/spf13/cobra"

	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/view"
	"batchfs/cmd/batchfs/web"
)

func viewCommand() *cobra.Command {
	var src config.Flags
	var by string
	var port uint16
	cmd := &cobra.Command{
		Use:   "view [SPLIT]...",
		Short: "Show batches in a browser, as a trainer gets them",
		Long: `View serves a page for a browser and prints its address. The page shows batch K with its rows as text, token by token: what is
not trained on, where documents end, and where each token is from. Keys step through the batches; ? lists the keys. A text or a position
leads to the batches that hold it, as inspect --find does. Two splits, or one under two settings, stand side by side.

The text is that of a vocab.json of batchfs prepare beside the token files, or of the tokenizer that --by names; without one the page shows
numbers. Only 127.0.0.1 is served, and only who knows the address. A browser on another machine needs a port that is forwarded, as by ssh -L.

SPLIT is one of the configuration, with settings or without, or the path of one in a mount; without any, all splits are shown.`,
		Example: `  batchfs view --data data
  batchfs view train train/order=shuffle --data data --port 8000
  batchfs view /mnt/batches/train /mnt/batches/train/rank=3,world=8
  batchfs view --data fineweb --by gpt2`,
		RunE: func(cmd *cobra.Command, args []string) error {
			err := interruptible(func(cmd *cobra.Command, args []string) error { return serveView(cmd, &src, args, by, port) })(cmd, args)
			if cmd.Context().Err() != nil { // Ctrl-C is how it ends
				return nil
			}
			return err
		},
	}
	src.Register(cmd)
	cmd.Flags().StringVar(&by, "by", "", "the `TOKENIZER` that made the tokens: gpt2, cl100k, o200k or the path of a tokenizer.json")
	cmd.Flags().Uint16Var(&port, "port", 0, "serve on this port (default: one that is free)")
	return cmd
}

func serveView(cmd *cobra.Command, src *config.Flags, paths []string, by string, port uint16) error {
	if len(paths) == 0 {
		c, err := src.Load()
		if err != nil {
			return err
		}
		for _, s := range c.Splits {
			paths = append(paths, s.Name)
		}
	}
	page, err := view.New(by)
	if err != nil {
		return err
	}
	for _, path := range paths {
		d, err := openSplit(src, path)
		if err == nil {
			err = page.Add(path, d)
		}
		if err != nil {
			return err
		}
	}
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return fmt.Errorf("--port: %w; without --port, one that is free is taken", err)
	}
	if _, err := fmt.Fprintln(cmd.OutOrStdout(), page.Address(listener)); err != nil {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "open this address in a browser; Ctrl-C ends the page\n"+
		"from another machine, forward the port there first: ssh -N -L %[1]d:127.0.0.1:%[1]d HOST\n", listener.Addr().(*net.TCPAddr).Port)
	return web.Serve(listener, page, nil)
}
