package fs

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

func TestReadersCannotFloodTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const reads = 3000
		var log bytes.Buffer
		s := countingBatches("train", 1000)
		s.read = func([]byte, uint64, int64) error { return errors.New("broken") }
		tr := newTestTree(t, s)
		logger := slog.New(slog.NewTextHandler(&log, nil))
		tr.log, tr.sequences.log = newLimitedLog(logger), newLimitedLog(logger)
		for n := range reads {
			if _, status := tr.openFile(t, "train/batch/1", 0).read(0, 100); status != fuse.EIO {
				t.Fatal(status)
			}
			tr.Lookup(nil, &fuse.InHeader{NodeId: uint64(tr.find("train"))}, fmt.Sprint("colour=", n), &fuse.EntryOut{})
		}
		time.Sleep(limitInterval)
		synctest.Wait()
		lines := log.String()
		for line, want := range map[string]int{"a request failed": 1, "no such settings": maxLines, fmt.Sprint("lines=", reads-1): 1, fmt.Sprint("lines=", reads-maxLines): 1} {
			if n := strings.Count(lines, line); n != want {
				t.Errorf("%d lines say %q, want %d:\n%s", n, line, want, lines)
			}
		}
		if _, status := tr.openFile(t, "train/batch/1", 0).read(0, 100); status != fuse.EIO || strings.Count(log.String(), "a request failed") != 2 {
			t.Errorf("the error is not logged again in the next interval:\n%s", log.String())
		}
		if got := tr.shared.Sequences[1].Errors.Load(); got != reads+1 {
			t.Errorf("%d errors are counted, want %d", got, reads+1)
		}
	})
}
