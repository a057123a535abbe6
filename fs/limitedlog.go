package fs

import (
	"context"
	"log/slog"
	"maps"
	"regexp"
	"sync"
	"time"
)

// A limitedLog is a log with lines that readers can cause as often as they like. Its zero value needs a Logger.
//
// Lock order: mu last.
type limitedLog struct {
	*slog.Logger
	mu    sync.Mutex
	kinds map[string]*logged // guarded by mu
}

// logged is when a kind of line was last logged, and how often it came since.
type logged struct {
	at      time.Time
	repeats int
}

const (
	// A kind of line is logged so often at most.
	logEvery = 10 * time.Second
	// So many kinds are told apart within that time. All others are one.
	maxLogKinds = 100
	otherKinds  = ""
)

// limited logs a line unless one of its kind was logged a moment ago. Then it is counted, and the next one that is logged tells
// how many were not.
func (l *limitedLog) limited(level slog.Level, kind, msg string, args ...any) {
	repeats, ok := l.note(kind, time.Now())
	if !ok {
		return
	}
	if repeats > 0 {
		args = append(args, "repeats", repeats)
	}
	l.Log(context.Background(), level, msg, args...)
}

func (l *limitedLog) note(kind string, now time.Time) (repeats int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	recent := func(k *logged) bool { return now.Sub(k.at) < logEvery }
	if l.kinds == nil {
		l.kinds = map[string]*logged{}
	}
	if l.kinds[kind] == nil && len(l.kinds) >= maxLogKinds {
		repeats := 0
		maps.DeleteFunc(l.kinds, func(_ string, k *logged) bool {
			old := !recent(k)
			if old {
				repeats += k.repeats
			}
			return old
		})
		if repeats > 0 {
			others := l.kinds[otherKinds]
			if others == nil {
				others = &logged{}
				l.kinds[otherKinds] = others
			}
			others.repeats += repeats
		}
		if len(l.kinds) >= maxLogKinds {
			kind = otherKinds
		}
	}
	k := l.kinds[kind]
	if k == nil {
		k = &logged{}
		l.kinds[kind] = k
	}
	if recent(k) {
		k.repeats++
		return 0, false
	}
	repeats = k.repeats
	*k = logged{at: now}
	return repeats, true
}

// withoutDigits makes one kind of errors that differ in digits only, as those at several positions of a file do.
func withoutDigits(text string) string { return digits.ReplaceAllString(text, "") }

var digits = regexp.MustCompile(`\d+`)
