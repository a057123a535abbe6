package fs

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// A limitedLog is a log for lines that readers can cause without limit.
//
// Lock order: mu last.
type limitedLog struct {
	*slog.Logger
	mu      sync.Mutex
	limiter *rate.Limiter   // guarded by mu, as all below
	logged  map[string]bool // lines of the last leftOutEvery
	leftOut int             // lines that were not logged since
}

// A flood of errors begins with up to logBurst lines, and continues with one every logEvery.
const (
	logBurst     = 100
	logEvery     = time.Second
	leftOutEvery = 10 * time.Second
)

func newLimitedLog(log *slog.Logger) *limitedLog {
	return &limitedLog{Logger: log, limiter: rate.NewLimiter(rate.Every(logEvery), logBurst), logged: map[string]bool{}}
}

// limited logs a line, unless the same one was logged a moment ago, or too many others. A later line tells how many were left out.
func (l *limitedLog) limited(level slog.Level, msg string, args ...any) {
	line := fmt.Sprint(msg, args)
	l.mu.Lock()
	leaveOut := l.logged[line] || !l.limiter.Allow()
	if leaveOut {
		l.leftOut++
	}
	if len(l.logged) == 0 {
		time.AfterFunc(leftOutEvery, l.tellLeftOut)
	}
	l.logged[line] = true
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
