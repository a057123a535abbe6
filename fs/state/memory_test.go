package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unsafe"
)

// mapSections creates and maps a file with this build's sections, resized by change, and the
// sections in more.
func mapSections(t *testing.T, change func(i int, bytes uint64) uint64, more ...section) (*os.File, *Shared) {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "shared"))
	noError(t, err)
	t.Cleanup(func() { file.Close() })
	sections := new(Shared).sections()
	for i := range sections {
		sections[i].bytes = change(i, sections[i].bytes)
	}
	s, err := create(file, append(sections, more...))
	noError(t, err)
	t.Cleanup(s.Close)
	return file, s
}

func mapAgain(t *testing.T, file *os.File) *Shared {
	t.Helper()
	s, err := Map(file)
	noError(t, err)
	t.Cleanup(s.Close)
	return s
}

// checkShared writes to s, and checks that other sees the values.
func checkShared(t *testing.T, s, other *Shared) {
	t.Helper()
	s.Worker.Store(77)
	s.Replies.Add(5)
	s.Add(s.NewNumber(), "train", 3, 0)
	s.Sequences[1].RecordBatch(9)
	if other.Worker.Load() != 77 || other.Replies.Load() != 5 || other.Sequences[1].Name() != "train" || other.Sequences[1].Batches.Load() != 10 {
		t.Errorf("another process sees worker %d, %d replies, sequence %q, and %d batches", other.Worker.Load(), other.Replies.Load(),
			other.Sequences[1].Name(), other.Sequences[1].Batches.Load())
	}
}

// A file of a later build can be used, and its additions stay unchanged.
func TestLongerSections(t *testing.T) {
	file, s := mapSections(t, func(_ int, bytes uint64) uint64 { return bytes + 10_000 }, section{bytes: 5000})
	h, err := readHeader(file)
	noError(t, err)
	last := len(s.sections())
	marks := []int64{int64(h.Sections[last].Offset)}
	for i, known := range s.sections() {
		marks = append(marks, int64(h.Sections[i].Offset+known.bytes))
	}
	for _, off := range marks {
		if _, err := file.WriteAt([]byte("later"), off); err != nil {
			t.Fatal(err)
		}
	}
	checkShared(t, s, mapAgain(t, file))
	for _, off := range marks {
		text := make([]byte, 5)
		if _, err := file.ReadAt(text, off); err != nil || string(text) != "later" {
			t.Errorf("offset %d has %q (%v)", off, text, err)
		}
	}
}

// Whatever the file of an earlier build lacks reads as zero. Only this process sees what it writes
// there.
func TestShorterSections(t *testing.T) {
	size := uint64(unsafe.Sizeof(SequenceState{}))
	// The keys are the numbers of Counters, Sequences and names.
	short := map[int]uint64{1: 8, 2: 2 * size, 7: 0}
	file, s := mapSections(t, func(i int, bytes uint64) uint64 {
		if n, ok := short[i]; ok {
			return n
		}
		return bytes
	})
	other := mapAgain(t, file)
	checkShared(t, s, other)
	if s.NamesRecorded() != 0 || s.Sequences[MaxSequences-1].Used() {
		t.Errorf("%d names, and the last sequence is used: %v", s.NamesRecorded(), s.Sequences[MaxSequences-1].Used())
	}
	s.RecordName(Name{1, "seed=1"})
	s.Add(MaxSequences-1, "last", 0, 0)
	if s.NamesRecorded() != 1 || s.Sequences[MaxSequences-1].Name() != "last" {
		t.Error("written values were lost")
	}
	if other.NamesRecorded() != 0 || other.Sequences[MaxSequences-1].Used() {
		t.Error("another process sees what the file has no room for")
	}
}

func TestForgedHeader(t *testing.T) {
	for name, test := range map[string]struct {
		forge  func(h *header)
		layout bool // whether the error is errLayout
	}{
		"another magic":   {func(h *header) { *h = header{Magic: [8]byte{10}} }, true},
		"a later version": {func(h *header) { h.Version++ }, true},
		"beyond the end":  {func(h *header) { h.Sections[len(new(Shared).sections())-1].Bytes += 1 << 30 }, false},
		"without end":     {func(h *header) { h.Sections[2].Bytes = 1<<64 - 1 }, false},
		"in no page":      {func(h *header) { h.Sections[2].Offset++ }, false},
		"far away":        {func(h *header) { h.Sections[20].Offset = 1 << 63 }, false},
	} {
		t.Run(name, func(t *testing.T) {
			file, _ := mapSections(t, func(_ int, bytes uint64) uint64 { return bytes })
			h, err := readHeader(file)
			noError(t, err)
			test.forge(&h)
			var text bytes.Buffer
			binary.Write(&text, binary.NativeEndian, h)
			if _, err := file.WriteAt(text.Bytes(), 0); err != nil {
				t.Fatal(err)
			}
			if s, err := Map(file); err == nil || errors.Is(err, errLayout) != test.layout {
				t.Errorf("%v (mapped: %v)", err, s != nil)
			}
		})
	}
	empty, err := os.Create(filepath.Join(t.TempDir(), "empty"))
	noError(t, err)
	defer empty.Close()
	if _, err := Map(empty); !errors.Is(err, errLayout) {
		t.Error(err)
	}
}

var update = flag.Bool("update", false, "write testdata/layout.txt")

// The layout of the shared memory stays the same, because processes of other versions map it too.
// New fields may only take the place of unused words, or be added at the end of a section that is
// no array, or as new sections.
func TestLayout(t *testing.T) {
	s := new(Shared)
	fields := map[*unsafe.Pointer]reflect.StructField{}
	for i := range reflect.TypeFor[Shared]().NumField() {
		address := reflect.ValueOf(s).Elem().Field(i).Addr().UnsafePointer()
		fields[(*unsafe.Pointer)(address)] = reflect.TypeFor[Shared]().Field(i)
	}
	var layout strings.Builder
	for i, known := range s.sections() {
		describeLayout(&layout, fmt.Sprintf("%d %s", i, fields[known.pointer].Name), fields[known.pointer].Type.Elem(), 0)
	}
	const file = "testdata/layout.txt"
	if *update {
		noError(t, os.WriteFile(file, []byte(layout.String()), 0o644))
	}
	want, err := os.ReadFile(file)
	noError(t, err)
	if layout.String() != string(want) {
		t.Errorf("the layout differs from %s. If fields were only added, run the test with -update. It is now\n%s", file, &layout)
	}
}

// describeLayout writes the offset and size of each number, and of each list of numbers, in a type.
func describeLayout(out *strings.Builder, name string, typ reflect.Type, offset uintptr) {
	isNumber := func(t reflect.Type) bool {
		return t.PkgPath() == "sync/atomic" || t.Kind() != reflect.Struct && t.Kind() != reflect.Array
	}
	switch {
	case isNumber(typ), typ.Kind() == reflect.Array && isNumber(typ.Elem()):
		fmt.Fprintf(out, "%s: %d bytes at %d\n", name, typ.Size(), offset)
	case typ.Kind() == reflect.Array:
		describeLayout(out, fmt.Sprintf("%s[%d of %d bytes]", name, typ.Len(), typ.Elem().Size()), typ.Elem(), offset)
	default:
		for i := range typ.NumField() {
			f := typ.Field(i)
			describeLayout(out, name+"."+f.Name, f.Type, offset+f.Offset)
		}
	}
}

// A mount whose first worker does not serve yet is not stuck.
func TestHeartbeatBegins(t *testing.T) {
	file, shared, err := New()
	noError(t, err)
	defer file.Close()
	defer shared.Close()
	if silent := shared.SinceHeartbeat(); silent > StuckAfter {
		t.Errorf("silent for %v", silent)
	}
}
