package fs

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// Errors that alternate are logged once each, and later once more, with how many came between.
func TestLimitedLog(t *testing.T) {
	var l limitedLog
	now := time.Unix(1e9, 0)
	for range 1000 {
		for _, kind := range []string{"a", "b"} {
			l.note(kind, now)
		}
	}
	now = now.Add(logEvery)
	for _, kind := range []string{"a", "b"} {
		if repeats, ok := l.note(kind, now); !ok || repeats != 999 {
			t.Errorf("%s: logged %v, with %d repeats, want 999", kind, ok, repeats)
		}
		if _, ok := l.note(kind, now); ok {
			t.Errorf("%s is logged twice", kind)
		}
	}
}

// However many kinds there are, few lines are logged and few kinds are kept, and new ones are told apart again later.
func TestLimitedLogOfManyKinds(t *testing.T) {
	var l limitedLog
	for round := range 3 {
		now := time.Unix(1e9, 0).Add(time.Duration(round) * logEvery)
		lines := 0
		for n := range 100 * maxLogKinds {
			if _, ok := l.note(fmt.Sprint(round, " ", n), now); ok {
				lines++
			}
		}
		if lines < maxLogKinds || lines > maxLogKinds+1 || len(l.kinds) > maxLogKinds+1 {
			t.Errorf("round %d: %d lines, %d kinds", round, lines, len(l.kinds))
		}
	}
}

// Readers of two broken splits, of broken files of one split, and of bad settings, get few lines into the log.
func TestReadersCannotFloodTheLog(t *testing.T) {
	var log bytes.Buffer
	a, b := counting("a", 1000), counting("b", 1000)
	n := 0
	a.Read = func([]byte, uint64, int64) error {
		n++
		return fmt.Errorf("/data/%c.bin: token %d is broken", 'a'+n%3, n)
	}
	b.Read = func([]byte, uint64, int64) error { return errors.New("broken") }
	tr := plantLogging(t, slog.New(slog.NewTextHandler(&log, nil)), a, b)
	for n := range 3000 {
		for _, path := range []string{"a/batch/1", "b/batch/1"} {
			if _, status := tr.reader(t, path, 0).read(0, 100); status != fuse.EIO {
				t.Fatal(status)
			}
		}
		name := fmt.Sprintf("%s=%d", strings.Repeat("x", 1+n%2), n)
		tr.Lookup(nil, &fuse.InHeader{NodeId: uint64(tr.find("a"))}, name, &fuse.EntryOut{})
	}
	if lines := strings.Count(log.String(), "a request failed"); lines != 3+1 {
		t.Errorf("%d lines, want 4:\n%s", lines, log.String())
	}
	if lines := strings.Count(log.String(), "no such settings"); lines != maxLogKinds+1 {
		t.Errorf("%d lines of bad settings, want %d", lines, maxLogKinds+1)
	}
	if got := tr.shared.Sequences[1].Errors.Load() + tr.shared.Sequences[2].Errors.Load(); got != 6000 {
		t.Errorf("%d errors are counted, want 6000", got)
	}
}
