// Package top shows the figures of mounts live, for batchfs top.
package top

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/signal"
	"syscall"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"

	"batchfs/cmd/batchfs/terminal"
	"batchfs/fs/figures"
	"batchfs/fs/mount"
)

// Command returns the command batchfs top.
func Command() *cobra.Command {
	return &cobra.Command{
		Use:   "top [MOUNTPOINT]",
		Short: "Watch mounts live, and see whether training waits for data",
		Long: `Show all batchfs mounts of this machine, or only the one at MOUNTPOINT, and update
the display every second. The first line says whether training waits for data, that
is, whether any process that reads ` + "`next`" + ` spends more than 5% of its time waiting. Top
cannot see how long readers of numbered files wait, because the kernel serves those
files from its page cache.

Two lines of bars show the last minute of each mount: batches per second, of which
the highest bar is the most in that minute, and the fraction of the time that a
reader of ` + "`next`" + ` waited, of which a full bar is all. If token files are in a store, two
more lines show what is fetched from it and how much of it the block cache has.

Scroll with the arrow keys, and quit with q. If the output is not a terminal, top
prints one JSON object per second.`,
		Example: `  batchfs top
  batchfs top /mnt/batches | head -n 3 | python3 -m json.tool --json-lines`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			poller := new(figures.Poller)
			defer poller.Close()
			const list = "to list the mounts of this machine, run batchfs list"
			mountpoint := ""
			if len(args) == 1 {
				m, err := mount.At(args[0])
				if err != nil {
					return fmt.Errorf("%w; %s", err, list)
				}
				mountpoint = m.Mountpoint
			}
			poll := func() (*figures.Frame, error) {
				mounts, err := poller.Poll(mountpoint)
				if err == nil && mountpoint != "" && len(mounts) == 0 {
					err = fmt.Errorf("%s: no batchfs is mounted there; %s", args[0], list)
				}
				return &figures.Frame{Time: time.Now(), Mounts: mounts}, err
			}
			first, err := poll()
			if err != nil {
				return err
			}
			if !terminal.Is(cmd.OutOrStdout()) {
				return printLines(cmd, first, poll)
			}
			m := &model{poll: poll, history: map[string][]interval{}, width: 80, height: 24}
			m.addFrame(first)
			_, err = tea.NewProgram(m, tea.WithContext(cmd.Context()), tea.WithFPS(5), tea.WithoutSignalHandler()).Run()
			if cmd.Context().Err() != nil { // stopped by a signal
				err = nil
			}
			if err == nil {
				err = m.err
			}
			return err
		},
	}
}

const pollInterval = time.Second

// printLines prints each frame as a line of JSON. It returns nil once nobody reads its output.
func printLines(cmd *cobra.Command, last *figures.Frame, poll func() (*figures.Frame, error)) error {
	signal.Ignore(syscall.SIGPIPE)
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		select {
		case <-cmd.Context().Done():
			return nil
		case <-tick.C:
		}
		f, err := poll()
		if err != nil {
			return err
		}
		f.ComputeRates(last)
		line := map[string]any{"time": f.Time.UTC().Format(time.RFC3339Nano), "mounts": f.Mounts}
		if err := json.NewEncoder(cmd.OutOrStdout()).Encode(line); errors.Is(err, syscall.EPIPE) {
			return nil
		} else if err != nil {
			return err
		}
		last = f
	}
}

// An interval is what the readers of a mount did between two polls.
type interval struct {
	batches float64 // per second
	// waited is the largest fraction of the time that a reader of next waited; nil without readers.
	waited *float64
}

func intervalOf(m *figures.Mount) (s interval) {
	for _, q := range m.Sequences {
		if q.Rates == nil {
			continue
		}
		s.batches += q.Rates.Batches
		if w := q.Rates.WaitedFraction; w != nil && (s.waited == nil || *w > *s.waited) {
			s.waited = w
		}
	}
	return s
}

// A model is the state of the terminal display, a [tea.Model].
type model struct {
	poll          func() (*figures.Frame, error)
	frames        []*figures.Frame      // oldest first, at most windowFrames
	history       map[string][]interval // the last minute by mountpoint, oldest first
	width, height int
	scroll        int // lines below the headline that are scrolled out
	err           error
}

const (
	windowFrames  = 10 // frames over which rates are averaged
	historyLength = int(time.Minute / pollInterval)
)

// addFrame appends a frame and computes its rates: over one interval for the history, and over the
// window for the figures.
func (m *model) addFrame(f *figures.Frame) {
	if n := len(m.frames); n > 0 {
		f.ComputeRates(m.frames[n-1])
		history := map[string][]interval{}
		for _, mount := range f.Mounts {
			intervals := append(m.history[mount.Mountpoint], intervalOf(mount))
			history[mount.Mountpoint] = intervals[max(0, len(intervals)-historyLength):]
		}
		m.history = history
		f.ComputeRates(m.frames[0])
	}
	m.frames = append(m.frames, f)
	m.frames = m.frames[max(0, len(m.frames)-windowFrames):]
}

type tick time.Time

func nextTick() tea.Cmd { return tea.Tick(pollInterval, func(t time.Time) tea.Msg { return tick(t) }) }

func (m *model) Init() tea.Cmd { return nextTick() }

func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tick:
		f, err := m.poll()
		if err != nil {
			m.err = err
			return m, tea.Quit
		}
		m.addFrame(f)
		return m, nextTick()
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		switch msg.String() {
		case "q", "ctrl+c", "esc":
			return m, tea.Quit
		case "down", "j":
			m.scroll = min(m.scroll+1, max(len(m.lines())-m.height, 0))
		case "up", "k":
			m.scroll = max(m.scroll-1, 0)
		}
	}
	return m, nil
}

func (m *model) lines() []line { return frameLines(m.frames[len(m.frames)-1], m.history, m.width) }

func (m *model) View() tea.View {
	v := tea.NewView(screen(m.lines(), m.scroll, m.width, m.height, "\x1b[31m", "\x1b[0m"))
	v.AltScreen = true
	return v
}
