package processes

import (
	"bytes"
	"cmp"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"batchfs/cmd/batchfs/command"
	"batchfs/cmd/batchfs/config"
	"batchfs/cmd/batchfs/dataset"
	"batchfs/cmd/batchfs/terminal"
	"batchfs/internal/failure"
)

// An openMessage goes from the open command to its parent. The last one has either a Failure or a
// Snapshot and a Description; the others report progress.
type openMessage struct {
	Files, Total int64 // files opened, and files to open
	Snapshot     *dataset.Snapshot
	Description  []string // lines for the user about the splits that are served
	Failure      *command.Report
}

const progressInterval = time.Second / 2

// openInChild reads the configuration and checks the token files in a child process, because a
// process that waits for a dead disk cannot be stopped. It passes on the flags of mount that were
// set. The kernel kills the child when this process ends.
func openInChild(cmd *cobra.Command, mountpoint []string) (*dataset.Snapshot, []string, error) {
	args := []string{"open"}
	cmd.LocalFlags().VisitAll(func(flag *pflag.Flag) {
		if !flag.Changed {
			return
		}
		values := []string{flag.Value.String()}
		if list, ok := flag.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		for _, value := range values {
			args = append(args, "--"+flag.Name+"="+value)
		}
	})
	child := exec.Command("/proc/self/exe", append(append(args, "--"), mountpoint...)...)
	child.Args[0] = os.Args[0]
	// The child writes to pipes. If it inherited the output of this process, whoever reads that
	// output would have to wait for the child to end.
	var stderr bytes.Buffer
	child.Stdin, child.Stderr = os.Stdin, &stderr
	out, err := child.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	// The child stays in this process group and ignores Ctrl-C. In a process group of its own, it
	// could not read a configuration from the terminal.
	child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := child.Start(); errors.Is(err, os.ErrNotExist) {
		return nil, nil, failure.NoFUSE.Wrap(fmt.Errorf("batchfs needs /proc: mount -t proc proc /proc (%w)", err))
	} else if err != nil {
		return nil, nil, err
	}
	o, err := lastMessage(out)
	err = cmp.Or(child.Wait(), err)
	os.Stderr.Write(stderr.Bytes()) // warnings, such as about a failing cache directory
	switch {
	case err != nil:
		return nil, nil, fmt.Errorf("the process that opens the token files died: %w", err)
	case o.Failure != nil:
		return nil, nil, o.Failure.Err()
	}
	return o.Snapshot, o.Description, nil
}

// lastMessage returns the open command's last message. Until then, it shows the progress on
// standard error.
func lastMessage(from io.Reader) (o openMessage, err error) {
	messages := gob.NewDecoder(from)
	var progress *terminal.Progress
	for {
		o = openMessage{}
		if err := messages.Decode(&o); err != nil || o.Snapshot != nil || o.Failure != nil {
			return o, err
		}
		if progress == nil {
			progress = terminal.NewProgress(os.Stderr, "", o.Total, terminal.Steps)
			defer progress.Finish()
		}
		progress.Describe(fmt.Sprintf("opened %d of %d files", o.Files, o.Total))
		progress.Set(o.Files, o.Total)
	}
}

// openCommand returns the hidden command that openInChild runs. It writes gob-encoded messages to
// standard output.
func openCommand() *cobra.Command {
	var f MountFlags
	cmd := &cobra.Command{
		Use:    "open [MOUNTPOINT]",
		Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			// The parent decides when to stop.
			signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
			messages, last := gob.NewEncoder(cmd.OutOrStdout()), make(chan *openMessage)
			var progress dataset.FileCounter
			go func() {
				o, err := f.open(args, &progress)
				if err != nil {
					o = &openMessage{Failure: command.NewReport(err)}
				}
				last <- o
			}()
			for {
				select {
				case o := <-last:
					return messages.Encode(o)
				case <-time.After(progressInterval):
					if total := progress.Total.Load(); total > 0 {
						messages.Encode(openMessage{Files: progress.Opened.Load(), Total: total})
					}
				}
			}
		},
	}
	f.Register(cmd)
	return cmd
}

// open reads the configuration, opens and checks all splits, and returns the last message.
func (f *MountFlags) open(args []string, counter *dataset.FileCounter) (*openMessage, error) {
	raw, c, err := f.readConfig(args)
	if err != nil {
		return nil, err
	}
	if c.Mountpoint == "" {
		return nil, failure.Mountpoint.Wrap(errors.New("no mountpoint: name a MOUNTPOINT, or set mountpoint in the configuration file"))
	}
	mountpoint, err := filepath.Abs(c.Mountpoint)
	if f.fd < 0 { // with --fd, no worker serves the mount yet, so a check would hang
		mountpoint, err = CheckMountpoint(c, f.logFile)
	}
	if err != nil {
		return nil, err
	}
	opener := dataset.NewOpener(c)
	opener.CheckWriters = true
	splits, err := openAndTryRead(opener, counter)
	if err != nil {
		return nil, failure.Data.Wrap(err)
	}
	snapshot, err := dataset.NewSnapshot(mountpoint, f.source, raw, splits)
	if err != nil {
		return nil, err
	}
	snapshot.NoResend = f.noResend
	snapshot.Log, err = f.logPath(mountpoint)
	return &openMessage{Snapshot: snapshot, Description: describe(mountpoint, splits)}, err
}

// readConfig reads the configuration. The mountpoint in args overrides that of the file.
func (f *MountFlags) readConfig(args []string) (raw config.RawConfig, c *config.Config, err error) {
	if raw, err = f.source.Read(); err != nil {
		return raw, nil, err
	}
	if c, err = raw.Decode(); err == nil && len(args) == 1 {
		c.Mountpoint = args[0]
	}
	return raw, c, err
}

// logPath returns the absolute path of the log, or an empty string for standard error. It creates
// the directory of the default log.
func (f *MountFlags) logPath(mountpoint string) (string, error) {
	switch {
	case f.logFile != "":
		return filepath.Abs(f.logFile)
	case f.background:
		path, err := DefaultLog(mountpoint)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(path), 0o700)
		}
		if err != nil {
			return "", fmt.Errorf("no directory for the log: %w; name a file with --log", err)
		}
		return path, nil
	}
	return "", nil
}

func openAndTryRead(o *dataset.Opener, counter *dataset.FileCounter) ([]*dataset.Dataset, error) {
	splits, err := o.Open(counter)
	if err != nil {
		return nil, err
	}
	for _, s := range splits {
		if err := s.TryRead(); err != nil {
			return nil, fmt.Errorf("splits.%s: cannot read a batch: %w", s.Split.Name, err)
		}
	}
	o.Remote.Flush() // so that the worker finds the blocks that were fetched here
	return splits, nil
}

func describe(mountpoint string, splits []*dataset.Dataset) []string {
	lines := []string{mountpoint + " serves"}
	for _, s := range splits {
		lines = append(lines, "  "+s.Summary())
	}
	next := filepath.Join(mountpoint, splits[0].Split.Name, "next")
	return append(lines, fmt.Sprintf("each open of %s takes the next batch; see %s/README", next, mountpoint))
}
