package top

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"

	"batchfs/cmd/batchfs/terminal"
)

// Command is batchfs top.
func Command() *cobra.Command {
	return &cobra.Command{
		Use:   "top [MOUNTPOINT]",
		Short: "Watch what mounts serve, and whether training waits for data",
		Long: `Show every batchfs of this machine, or the one at MOUNTPOINT, once a second. The first line says whether a process that reads next
waits for it more than 5% of its time. What readers of numbered files wait is not visible: the kernel's page cache answers them.

Keys: up and down scroll, q ends. Where the output is no terminal, each line is a JSON object of a second.`,
		Example: `  batchfs top
  batchfs top /mnt/batches | head -n 3 | python3 -m json.tool --json-lines`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			w := new(watcher)
			defer w.close()
			mountpoint := ""
			if len(args) == 1 {
				if mountpoint, err = filepath.Abs(args[0]); err != nil {
					return err
				}
			}
			look := func() (*frame, error) {
				mounts, err := w.poll(mountpoint)
				if err == nil && mountpoint != "" && len(mounts) == 0 {
					err = fmt.Errorf("%s: no batchfs is mounted there; batchfs list names the mounts of this machine", args[0])
				}
				return &frame{time.Now(), mounts}, err
			}
			first, err := look()
			if err != nil {
				return err
			}
			if !terminal.Is(cmd.OutOrStdout()) {
				return printLines(cmd, first, look)
			}
			m := &model{poll: look, history: map[string][]float64{}, width: 80, height: 24}
			m.add(first)
			_, err = tea.NewProgram(m, tea.WithContext(cmd.Context()), tea.WithFPS(5), tea.WithoutSignalHandler()).Run()
			if cmd.Context().Err() != nil { // a signal
				err = nil
			}
			if err == nil {
				err = m.err
			}
			return err
		},
	}
}

// every is how often mounts are looked at.
const every = time.Second

// printLines ends without an error when its output is read no more.
func printLines(cmd *cobra.Command, then *frame, look func() (*frame, error)) error {
	signal.Ignore(syscall.SIGPIPE)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-cmd.Context().Done():
			return nil
		case <-tick.C:
		}
		now, err := look()
		if err != nil {
			return err
		}
		now.rate(then)
		if err := printJSON(cmd.OutOrStdout(), now); errors.Is(err, syscall.EPIPE) {
			return nil
		} else if err != nil {
			return err
		}
		then = now
	}
}

func printJSON(out io.Writer, f *frame) error {
	return json.NewEncoder(out).Encode(map[string]any{"time": f.at.UTC().Format(time.RFC3339Nano), "mounts": f.mounts})
}

// A model is what the terminal shows.
type model struct {
	poll          func() (*frame, error)
	frames        []*frame             // of the last seconds, the earliest first
	history       map[string][]float64 // batches a second of the last minute
	width, height int
	from          int // the first line that is shown
	err           error
}

const (
	inWindow  = 10 // frames over which rates are taken
	inHistory = 60
)

// add shows a frame.
func (m *model) add(f *frame) {
	if n := len(m.frames); n > 0 {
		f.rate(m.frames[n-1])
		history := map[string][]float64{}
		for _, mount := range f.mounts {
			for _, s := range mount.Sequences {
				if key := mount.Mountpoint + "\x00" + s.Name; s.Rates != nil {
					now := append(m.history[key], s.Rates.Batches)
					history[key] = now[max(0, len(now)-inHistory):]
				}
			}
		}
		m.history = history
		f.rate(m.frames[0])
	}
	m.frames = append(m.frames, f)
	m.frames = m.frames[max(0, len(m.frames)-inWindow):]
}

type tick time.Time

func next() tea.Cmd { return tea.Tick(every, func(t time.Time) tea.Msg { return tick(t) }) }

func (m *model) Init() tea.Cmd { return next() }

func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tick:
		f, err := m.poll()
		if err != nil {
			m.err = err
			return m, tea.Quit
		}
		m.add(f)
		return m, next()
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		switch msg.String() {
		case "q", "ctrl+c", "esc":
			return m, tea.Quit
		case "down", "j":
			m.from = min(m.from+1, max(len(m.lines())-m.height, 0))
		case "up", "k":
			m.from = max(m.from-1, 0)
		}
	}
	return m, nil
}

func (m *model) lines() []line { return m.frames[len(m.frames)-1].lines(m.history, m.width) }

func (m *model) View() tea.View {
	v := tea.NewView(screen(m.lines(), m.from, m.width, m.height, "\x1b[31m", "\x1b[0m"))
	v.AltScreen = true
	return v
}
