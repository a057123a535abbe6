package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"os"
	"text/template"
	"time"

	"batchfs/fs"
	"batchfs/internal/jsontext"
	"batchfs/internal/process"
)

// A statusReport generates the contents of a mount's status.json.
type statusReport struct {
	log        string       // log file of the mount; empty for standard error
	budget     int64        // limit on the memory of the worker, in bytes
	tableBytes func() int64 // memory of window tables, in bytes
	blockBytes func() int64 // memory of cache blocks, in bytes; -1 if no split reads from a store
}

//go:embed status.tmpl
var statusText string

var statusTemplate = template.Must(template.New("status.json").Funcs(template.FuncMap{
	"quote": func(text string) string { return string(jsontext.Quote(text)) },
	"wide":  func(n any) string { return fmt.Sprintf("%20d", n) },
	"ms":    func(nanos int64) int64 { return nanos / 1e6 },
}).Parse(statusText))

func (r *statusReport) json(live fs.LiveStatus) []byte {
	mapped, busy := live.Shared.Maps.Mapped.Load(), live.Shared.Maps.Busy.Load()
	var b bytes.Buffer
	err := statusTemplate.Execute(&b, map[string]any{
		"Live":     live,
		"Version":  version(),
		"Log":      r.log,
		"PID":      os.Getpid(),
		"Uptime":   int64(time.Since(time.Unix(0, live.Shared.Began)).Seconds()),
		"Resident": process.Resident(os.Getpid()),
		"Budget":   r.budget,
		"Tables":   r.tableBytes(),
		"Blocks":   r.blockBytes(),
		"Mapped":   mapped,
		"Busy":     busy,
		"Advice":   remapAdvice(mapped, busy),
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
