package fs

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// A limitedLog is a log for lines that readers can cause without limit.
//
// Lock order: mu last.
type limitedLog struct {
	*slog.Logger
	mu      sync.Mutex
	logged  map[string]bool // lines of the last limitEvery; guarded by mu
	leftOut int             // lines that were not logged since; guarded by mu
}

// In each limitEvery, maxLines lines are logged at most, each once.
const (
	limitEvery = 10 * time.Second
	maxLines   = 100
)

func newLimitedLog(log *slog.Logger) *limitedLog {
	return &limitedLog{Logger: log, logged: map[string]bool{}}
}

// limited logs a line, or leaves it out. A later line tells how many were left out.
func (l *limitedLog) limited(level slog.Level, msg string, args ...any) {
	line := fmt.Sprint(msg, args)
	l.mu.Lock()
	if len(l.logged) == 0 {
		time.AfterFunc(limitEvery, l.tellLeftOut)
	}
	leaveOut := l.logged[line] || len(l.logged) == maxLines
	if leaveOut {
		l.leftOut++
	} else {
		l.logged[line] = true
	}
	l.mu.Unlock()
	if !leaveOut {
		l.Log(context.Background(), level, msg, args...) // without the lock: the log may be slow
	}
}

func (l *limitedLog) tellLeftOut() {
	l.mu.Lock()
	lines := l.leftOut
	l.leftOut = 0
	clear(l.logged)
	l.mu.Unlock()
	if lines > 0 {
		l.Warn("repeated or too many lines were left out; status.json counts all errors", "lines", lines)
	}
}
