package fs

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// A limitedLog keeps readers from flooding the log. In each limitInterval, it logs at most maxLines
// lines, each once. It is safe for concurrent use. No lock is taken while mu is held.
type limitedLog struct {
	*slog.Logger

	mu      sync.Mutex // guards the fields below, which cover the current interval
	logged  map[string]bool
	dropped int
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
		l.Log(context.Background(), level, msg, args...) // without mu, because the log may be slow
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
