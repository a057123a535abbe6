package fs

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// A limitedLog is a log for lines that readers can cause without limit. In each interval of
// limitInterval, it logs at most maxLines lines, each once. It is safe for concurrent use.
//
// Lock order: mu last.
type limitedLog struct {
	*slog.Logger
	mu      sync.Mutex
	logged  map[string]bool // lines logged in this interval; guarded by mu
	dropped int             // lines not logged in this interval; guarded by mu
}

const (
	limitInterval = 10 * time.Second
	maxLines      = 100
)

func newLimitedLog(log *slog.Logger) *limitedLog {
	return &limitedLog{Logger: log, logged: map[string]bool{}}
}

// tryLog logs a line or drops it. A later line says how many were dropped.
func (l *limitedLog) tryLog(level slog.Level, msg string, args ...any) {
	line := fmt.Sprint(msg, args)
	l.mu.Lock()
	if len(l.logged) == 0 {
		time.AfterFunc(limitInterval, l.reportDropped)
	}
	drop := l.logged[line] || len(l.logged) == maxLines
	if drop {
		l.dropped++
	} else {
		l.logged[line] = true
	}
	l.mu.Unlock()
	if !drop {
		l.Log(context.Background(), level, msg, args...) // without the lock: the log may be slow
	}
}

func (l *limitedLog) reportDropped() {
	l.mu.Lock()
	lines := l.dropped
	l.dropped = 0
	clear(l.logged)
	l.mu.Unlock()
	if lines > 0 {
		l.Warn("repeated lines, or too many, were left out; status.json counts all errors", "lines", lines)
	}
}
