package soak

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"batchfs/test/e2e"
)

// Looking up settings without end costs no memory, and what is in use among them stays what it is.
func TestManySettings(t *testing.T) {
	const first, warm, most = 1000, 20_000, 8 << 10 // KiB, of which the garbage collector takes some more or less
	n := e2e.Soak(100_000)
	config, _ := e2e.Small(t, 1)
	m := e2e.MountProgram(t, exec.Command(e2e.PlainBatchfs), "-c", config)
	reader := exec.CommandContext(t.Context(), "sh", "-c", `exec 3<"$1"; head -c 100 <&3; echo open >&2; read line; cat <&3`,
		"sh", m.Path("train/seed=5/next"))
	in, err := reader.StdinPipe()
	e2e.NoError(t, err)
	opened, err := reader.StderrPipe()
	e2e.NoError(t, err)
	var held strings.Builder
	reader.Stdout = &held
	e2e.NoError(t, reader.Start())
	stop := e2e.AnswersSoon(t, reader)
	if _, err := opened.Read(make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	stop()
	for range 3 {
		e2e.Run(t, "cat", m.Path("train/seed=6/next"))
	}

	looks := func(first, n int) (aSecond int) {
		text := e2e.Read(t, "looks", m.Path("train"), fmt.Sprint(first), fmt.Sprint(first+n), "8")[0]
		aSecond, err := strconv.Atoi(text)
		e2e.NoError(t, err)
		return aSecond
	}
	looks(first, warm)
	for looked := warm; ; looked += n {
		before := e2e.Resident(m.Worker(t))
		aSecond := looks(first+looked, n)
		after := e2e.Resident(m.Worker(t))
		t.Logf("%d settings, %d a second: VmRSS %d KiB after %d, %d KiB after all", n, aSecond, before, looked, after)
		if after-before <= most {
			break
		}
		if looked >= warm+4*n { // a leak grows every time
			t.Fatalf("looking up %d settings made %d KiB resident, from %d", n, after, before)
		}
	}

	e2e.Equal(t, "the cursors are", m.Cursor(t, "train/seed=5")+" "+m.Cursor(t, "train/seed=6"), "1 3")
	fmt.Fprintln(in, "go on")
	defer e2e.AnswersSoon(t, reader)()
	if err := reader.Wait(); err != nil {
		t.Error(err)
	}
	for seed, next := range map[string]int{"5": 1, "6": 3} {
		want := e2e.Lines(t, "train", 0, next+1, "-c", config, "--set", "splits.train.seed="+seed)
		e2e.Equal(t, fmt.Sprintf("seed %s goes on with", seed), e2e.Take(t, m, "train/seed="+seed+"/next"), want[next])
		if got := e2e.Line([]byte(held.String())); seed == "5" && got != want[0] {
			t.Errorf("the reader that stayed got %s, want batch 0, %s", got, want[0])
		}
	}
}

// A mount is ready soon, however many or large its files.
func TestReady(t *testing.T) {
	const shards = 10_000
	dir := t.TempDir()
	for i := range shards {
		e2e.Tokens(t, filepath.Join(dir, "shards", fmt.Sprintf("%05d.bin", i)), 65, 2)
	}
	terabyte := filepath.Join(dir, "terabyte.bin")
	e2e.Write(t, terabyte, nil)
	if err := os.Truncate(terabyte, 1<<40); err != nil {
		e2e.Lack(t, "no file of a terabyte here: %v", err)
	}
	for _, test := range []struct {
		name, tokens string
		orders       []string
		within       time.Duration
	}{
		{"shards", filepath.Join(dir, "shards/*.bin"), []string{"random", "shuffle", "sequential"}, 2 * time.Second},
		{"terabyte", terabyte, []string{"random", "shuffle", "sequential", "torch", "torch-2.6"}, time.Second},
	} {
		for _, order := range test.orders {
			t.Run(test.name+" "+order, func(t *testing.T) {
				began := time.Now()
				m := e2e.MountProgram(t, exec.Command(e2e.PlainBatchfs), "-c", "/dev/null", "--set", "batch.block_size=64",
					"--set", "batch.order="+order, "--set", "splits.train.tokens="+test.tokens)
				e2e.InTime(t, "to get ready", time.Since(began), test.within)
				for _, file := range []string{"next", "batch/0", "batch/1099511627775"} {
					if got := e2e.Take(t, m, "train/"+file); !strings.HasPrefix(got, fmt.Sprint(2*12*64*2)+" ") {
						t.Errorf("%s is %s", file, got)
					}
				}
			})
		}
	}
}
