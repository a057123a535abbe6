package state

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"batchfs/internal/failure"
)

// These are handles in testdata/memory.txt. A kernel would still know them after an upgrade, so
// their numbers never change.
const (
	wholeHandle   = 0x10000
	partialHandle = 0x10001
	sharedHandle  = 0x10002
	scatterHandle = 0x10003
	emptyHandle   = 0x10004
	otherHandle   = 0x10005
)

// ask returns the batch of a READ of a handle that has 1000 bytes.
func ask(h *Handles, fh, id, thread uint64, from, to int64, change ...func(r *NextRead)) (batch uint64, err error) {
	r := NextRead{FH: fh, ID: id, Thread: thread, Version: 3, Batches: 1000, FileRange: FileRange{from, to - from, 1000}}
	for _, change := range change {
		change(&r)
	}
	return h.AssignBatch(r, nil)
}

func isCut(r *NextRead) { r.Cut = true }

// makeMemory returns memory in which as many fields as possible have a value other than zero. A
// worker that dies in the middle of an assignment writes half of them.
func makeMemory(t *testing.T) *Shared {
	h := newTestHandles(t) // of the sequence train, number 1
	s := h.shared
	s.Began = 1_800_000_000_000_000_000
	s.Closing.Store(1)
	s.Worker.Store(102)
	s.Supervisor.Store(101)
	s.Standby.Store(103)
	s.Workers.Store(2)
	s.Crashes.Store(1)
	s.Heartbeat.Store(1)
	s.Init.Set([]byte("INIT"))
	s.InitReply.Set([]byte("its reply"))
	s.HandedOver.Set([]byte("a record"))
	s.Restarts.Store(3)
	s.EndRestart(failure.Config.Wrap(errors.New("it failed")))
	s.RestartsBegun.Store(5)
	s.OOMScore.Store(-7)
	s.SetProgram("v1.2.3")
	s.Snapshot.Store(12345)
	s.Replies.Store(77)
	s.Blocks.Full.Store(8)
	s.ReplyBytes.Store(9)

	s.Add(s.NewNumber(), "train/seed=7", 100, 1000)
	s.Add(s.NewNumber(), "val", 0, 0)
	s.Add(s.NewNumber(), "val/seed=7", 0, 0)
	s.Describe(1, strings.Repeat("f0", 32), 250, []string{"web", "books"})
	s.SetPhase(1, 2, []float64{0.25, 0.75})
	s.RowsBySource[1][1].Rows.Store(31)
	s.SetFailing(3, true)
	s.SetLastError(3, "a token is too large")
	s.Sequences[3].WaitingSince.Store(1)
	s.SetScheduleGeneration(6)
	s.RecordFor("train", "block_size=8").Record(99, "train/block_size=8", 12)
	s.CountLookup(2, 1000)
	s.RecordDirectory(2, 0x208)
	s.Retire(4)
	s.RecordName(Name{Dir: 0x108, Name: "seed=7"})
	s.BeginAttempt(500 | Resent)
	s.CountOnce(600, func() {})
	s.Sequences[1].RecordBatch(9)
	s.Sequences[1].ReplyTimes.record(5000)

	read := func(fh, id, thread uint64, from, to int64, change ...func(r *NextRead)) {
		t.Helper()
		_, err := ask(h, fh, id, thread, from, to, change...)
		noError(t, err)
		h.Commit(id)
	}
	for i := range uint32(5) {
		h.Open(1, i, false, uint64(2+2*i))
	}
	h.Open(3, 5, true, 12)
	s.BeginRead(1, wholeHandle, 0, 20, 0).End()
	read(wholeHandle, 20, 0, 0, 1000)
	s.BeginRead(1, partialHandle, 1, 22, 0)
	read(partialHandle, 22, 1, 0, 400)
	read(sharedHandle, 24, 2, 0, 500, isCut)
	read(sharedHandle, 26, 12, 0, 200)
	for i := range int64(5) {
		read(scatterHandle, uint64(30+2*i), 3, 200*i, 200*i+100)
	}
	read(otherHandle, 40, 5, 0, 300)
	s.Sequences[3].Seek(41)
	// Another machine may have booted later.
	s.readers[0].signedSince.Store(1)
	s.readers[1].signedSince.Store(-1)
	s.RecordFor("train", "block_size=8").readAt.Store(1)
	s.lookups.directories[4].retiredAt.Store(1)
	killAt("cursor-moved", 1, func() { ask(h, emptyHandle, 50, 4, 0, 1000) })
	return s
}

// Memory of earlier versions is read with the same meaning. testdata/memory.txt lists the words
// that are not 0 in such memory: the number of the section, the offset, and the word. If this test
// fails, mend the code instead of the file. When makeMemory sets a new field, write the file again
// with -update.
func TestMemoryOfAnEarlierVersion(t *testing.T) {
	const name = "testdata/memory.txt"
	if *update {
		var words strings.Builder
		for i, known := range makeMemory(t).sections() {
			for offset := uint64(0); offset+8 <= known.bytes; offset += 8 {
				if word := *(*uint64)(unsafe.Add(*known.pointer, offset)); word != 0 {
					fmt.Fprintf(&words, "%d %d %#x\n", i, offset, word)
				}
			}
		}
		noError(t, os.WriteFile(name, []byte(words.String()), 0o644))
	}
	text, err := os.ReadFile(name)
	noError(t, err)
	file, s, err := New()
	noError(t, err)
	defer file.Close()
	t.Cleanup(s.Close)
	begins := make([]byte, 16)
	if _, err := file.ReadAt(begins, 0); err != nil || string(begins) != "batchfs\x00\x01\x00\x00\x00\x00\x00\x00\x00" {
		t.Errorf("the memory begins with %q (%v)", begins, err)
	}
	for line := range strings.Lines(string(text)) {
		var section int
		var offset, word uint64
		_, err := fmt.Sscanf(line, "%d %d %v\n", &section, &offset, &word)
		noError(t, err)
		*(*uint64)(unsafe.Add(*s.sections()[section].pointer, offset)) = word
	}
	check := func(what string, got, want any) {
		t.Helper()
		if got, want := fmt.Sprint(got), fmt.Sprint(want); got != want {
			t.Errorf("%s is %s, and was %s in the earlier version", what, got, want)
		}
	}
	checkMount(s, check)
	checkSequences(s, check)
	checkHandles(s, check)
}

func checkMount(s *Shared, check func(what string, got, want any)) {
	check("the time of mounting", s.Began, int64(1_800_000_000_000_000_000))
	check("whether the mount ends", s.Closing.Load() != 0, true)
	check("the processes", []int64{s.Supervisor.Load(), s.Worker.Load(), s.Standby.Load()}, "[101 102 103]")
	check("the number of workers and crashes", []uint64{s.Workers.Load(), s.Crashes.Load()}, "[2 1]")
	check("the last pong", s.SinceHeartbeat() > 0, true)
	check("INIT and its reply", []string{string(s.Init.Get()), string(s.InitReply.Get())}, "[INIT its reply]")
	check("the record of a mount that was handed over", s.HandedOver.String(), "a record")
	check("the last restart", s.LastRestart.String(), "it failed")
	check("the kind of its error", failure.KindOf(s.RestartError(4)).Name, "config")
	check("the number of restarts", []uint64{s.Restarts.Load(), s.RestartsBegun.Load()}, "[4 5]")
	check("oom_score_adj", s.OOMScore.Load(), -7)
	check("the program", s.Program(), "v1.2.3")
	check("the snapshot", s.Snapshot.Load(), 12345)
	check("the counters", []uint64{s.Replies.Load(), uint64(s.Blocks.Full.Load()), uint64(s.ReplyBytes.Load())}, "[77 8 9]")
	s.Crashes.Store(6)
	check("whether five workers have crashed since a request was first resent", s.BeginAttempt(500|Resent), true)
	s.CountOnce(600, func() { check("a counted request", "counted again", "not") })
	_, looked := s.NameFrom(0)
	check("the name that was looked up", looked, Name{Dir: 0x108, Name: "seed=7"})
}

func checkSequences(s *Shared, check func(what string, got, want any)) {
	var names []string
	for n := 1; n <= s.SequencesUsed(); n++ {
		if q := &s.Sequences[n]; q.Used() {
			names = append(names, fmt.Sprintf("%s of user %d, moved: %v", q.Name(), q.User(), q.CursorMoved()))
		}
	}
	check("the list of sequences", names, "[train of user 0, moved: true train/seed=7 of user 1000, moved: false val of user 0, moved: true]")
	check("the next number of val, after a seek", s.Sequences[3].Next(), 41)
	check("the next number of train/seed=7", s.Sequences[2].Next(), 100)
	check("the fingerprint", s.Fingerprint(1), strings.Repeat("f0", 32))
	check("the length of an epoch", s.EpochBatches(1), 250)
	check("the phase", s.Phase(1), 2)
	check("the sources", []string{s.SourceName(1, 0), s.SourceName(1, 1)}, "[web books]")
	check("their weights", []float64{s.RowsBySource[1][0].Weight(), s.RowsBySource[1][1].Weight()}, "[0.25 0.75]")
	check("their rows", s.RowsBySource[1][1].Rows.Load(), 31)
	_, lastError := s.TextsOf(3)
	check("the last error of val", lastError, "a token is too large")
	check("whether splits fail", []bool{s.Failing(1), s.Failing(3)}, "[false true]")
	check("the splits that do not respond", slices.Collect(maps.Keys(s.Unresponsive())), "[val]")
	check("the number of batches", s.Sequences[1].Batches.Load(), 10)
	s.Sequences[1].RecordBatch(10)
	check("the number of batches after another one", s.Sequences[1].Batches.Load(), 11)
	check("the number of replies within 4 to 8 microseconds", fmt.Sprint(s.Sequences[1].ReplyTimes.Buckets[2].Load(), WaitBounds[2]), "1 8µs")
	check("the schedule", s.ScheduleGeneration(), 6)
	furthest, all := s.RowsRecords("train")
	check("the number of records of read rows", fmt.Sprint(len(furthest), all), "1 true")
	path, batch, ago := furthest[0].Batch()
	check("the furthest row", fmt.Sprintf("%s %d %s %d %v", furthest[0].Settings(), furthest[0].Rows(), path, batch, ago > 0), "block_size=8 99 train/block_size=8 12 true")
	check("whether the record is found", s.RecordFor("train", "block_size=8") == furthest[0], true)
	s.CountLookup(2, 1000|Resent)
	check("the lookups", s.Sequences[2].Lookups.Load(), 1)
	directories, complete := s.Directories(2)
	check("the directories", fmt.Sprint(directories, complete), "[520] true")
	free, retired := s.FreeNumbers()
	check("the free numbers", fmt.Sprint(free, retired), "[] [4]")
}

func checkHandles(s *Shared, check func(what string, got, want any)) {
	readers := s.Readers()
	check("the number of handles", len(readers), 6)
	waits, _ := readers[1].Since()
	check("a reader in a READ", fmt.Sprint(readers[1].HasRead(), waits, readers[1].Thread.Load()), "true true 1")
	waits, ago := readers[0].Since()
	check("a reader after a READ", fmt.Sprint(waits, ago > 0), "false true")
	check("a reader before a READ", readers[4].HasRead(), false)

	h := NewHandles(s)
	read := func(want string, fh, id, thread uint64, from, to int64, change ...func(r *NextRead)) {
		got, err := ask(h, fh, id, thread, from, to, change...)
		check(fmt.Sprintf("the batch of request %d of handle %#x", id&^Resent, fh), fmt.Sprint(got, err != nil), want+" false")
		h.Commit(id)
	}
	read("5", emptyHandle, 50|Resent, 4, 0, 1000)
	read("1", partialHandle, 22|Resent, 1, 0, 400)
	read("1", partialHandle, 60, 1, 400, 1000)
	read("6", wholeHandle, 62, 0, 0, 1000)
	read("2", sharedHandle, 64, 2, 500, 1000)
	read("3", sharedHandle, 66, 12, 200, 1000)
	for i := range int64(5) {
		read("4", scatterHandle, uint64(70+2*i), 3, 200*i+100, 200*i+200)
	}
	read("7", partialHandle, 80, 1, 0, 1000)
	read("0", otherHandle, 82, 5, 300, 1000)
	read("41", otherHandle, 84, 5, 0, 300)
	h.Release(otherHandle) // it was opened by a program that looks at every file
	check("the next number of val", s.Sequences[3].Next(), 41)
}
