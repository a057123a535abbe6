package fs

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// A limitedLog is a log with lines that readers can cause as often as they like.
type limitedLog struct {
	*slog.Logger
	limiter *rate.Limiter
	leftOut atomic.Int64 // lines since the last that told how many
}

// A flood of errors begins with these lines, and then goes on as slowly as this.
const (
	logBurst     = 50
	logEvery     = time.Second
	leftOutEvery = 10 * time.Second
)

func newLimitedLog(log *slog.Logger) *limitedLog {
	return &limitedLog{Logger: log, limiter: rate.NewLimiter(rate.Every(logEvery), logBurst)}
}

// limited logs a line, or leaves it out, which a later line tells.
func (l *limitedLog) limited(level slog.Level, msg string, args ...any) {
	if l.limiter.Allow() {
		l.Log(context.Background(), level, msg, args...)
	} else if l.leftOut.Add(1) == 1 {
		time.AfterFunc(leftOutEvery, func() {
			l.Warn("lines were left out, because there were too many; status.json counts all errors", "lines", l.leftOut.Swap(0))
		})
	}
}
