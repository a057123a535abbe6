package processes

import (
	"bytes"
	_ "embed"
	"fmt"
	"os"
	"text/template"

	"batchfs/fs"
	"batchfs/fs/figures"
	"batchfs/fs/state"
	"batchfs/internal/jsonbytes"
	"batchfs/internal/process"
)

// A statusReport generates the contents of a mount's status.json.
type statusReport struct {
	shared     *state.Shared
	log        string       // log file of the mount; empty for standard error
	budget     int64        // limit on the memory of the worker, in bytes
	tableBytes func() int64 // memory of window tables, in bytes
	blockBytes func() int64 // memory of cache blocks, in bytes; -1 if no split reads from a store
}

//go:embed status.tmpl
var statusText string

var statusTemplate = template.Must(template.New("status.json").Funcs(template.FuncMap{
	"quote": func(text string) string { return string(jsonbytes.Quote(text)) },
	"wide":  func(n any) string { return fmt.Sprintf("%20d", n) },
	"whole": func(n float64) int64 { return int64(n) },
	"ms":    func(seconds float64) int64 { return int64(1e3 * seconds) },
}).Parse(statusText))

func (r *statusReport) json(live fs.LiveStatus) []byte {
	mount := figures.Of(r.shared)
	var used []*figures.Sequence
	for s := range figures.Sequences(r.shared) {
		if s.Settings == "" || s.CursorMoved || s.Reads+s.Errors > 0 {
			used = append(used, s)
		}
	}
	var b bytes.Buffer
	err := statusTemplate.Execute(&b, map[string]any{
		"Mount":     mount,
		"Sequences": used,
		"Idle":      figures.IdleSettings(r.shared),
		"Live":      live,
		"Log":       r.log,
		"PID":       os.Getpid(),
		"Resident":  process.Resident(os.Getpid()),
		"Budget":    r.budget,
		"Tables":    r.tableBytes(),
		"Blocks":    r.blockBytes(),
		"Advice":    remapAdvice(mount.Mapped, mount.Busy),
	})
	if err != nil {
		panic(err) // the template and the data do not match
	}
	return b.Bytes()
}

// remapAdvice returns a faster setting if more than a tenth of the reads fell back to pread because
// another read had the file mapped, or else an empty string.
func remapAdvice(mapped, busy int64) string {
	if busy > mapped/9 {
		return `memory.access = "pread"`
	}
	return ""
}
