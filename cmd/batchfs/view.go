package main

import (
	"fmt"
	"net"

	"github.com/spf13/cobra"

	"batchfs/cmd/batchfs/command"
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
		Short: "Show batches in a browser",
		Long: `Serve a web page that shows batches as a trainer gets them, and print its address.
The page shows the rows of a batch as text, token by token: which tokens are masked,
where documents end, and which file each token comes from. Step through batches with
the keyboard (? lists the keys), search for a text or a token position, and compare
two splits, or one split under two settings, side by side.

The page decodes tokens with the vocab.json of batchfs prepare next to the token
files, or with the tokenizer named by --by. Without either, it shows numbers. It
listens only on 127.0.0.1, and only at the printed address, which contains a secret
key. To open it from another machine, forward the port, for example with ssh -L.

SPLIT is a split of the configuration, such as train or train/rank=3,world=8, or its
path in a mount. Without SPLIT, the page shows all splits of the configuration.`,
		Example: `  batchfs view --data data
  batchfs view train train/order=shuffle --data data --port 8000
  batchfs view /mnt/batches/train /mnt/batches/train/rank=3,world=8
  batchfs view --data fineweb --by gpt2`,
		RunE: func(cmd *cobra.Command, args []string) error {
			err := command.Interruptible(func(cmd *cobra.Command, args []string) error { return serveView(cmd, &src, args, by, port) })(cmd, args)
			if cmd.Context().Err() != nil { // Ctrl-C is the normal way to end it
				return nil
			}
			return err
		},
	}
	src.Register(cmd)
	cmd.Flags().StringVar(&by, "by", "", byHelp)
	cmd.Flags().Uint16Var(&port, "port", 0, "serve on this `PORT` (default: any free port)")
	return cmd
}

const byHelp = "`TOKENIZER` of the tokens: gpt2, cl100k, o200k or the path of a tokenizer.json or tekken.json"

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
	named, err := view.NamedVocabulary(by, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	page := view.New(named)
	for _, path := range paths {
		d, _, err := openSplit(src, path)
		if err == nil {
			err = page.Add(path, d)
		}
		if err != nil {
			return err
		}
	}
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return fmt.Errorf("--port: %w; without --port, a free one is chosen", err)
	}
	if _, err := fmt.Fprintln(cmd.OutOrStdout(), page.Address(listener)); err != nil {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "open this address in a browser; stop with Ctrl-C\n"+
		"to open it from another machine, first forward the port there: ssh -N -L %[1]d:127.0.0.1:%[1]d HOST\n", listener.Addr().(*net.TCPAddr).Port)
	return web.Serve(listener, page, nil)
}
