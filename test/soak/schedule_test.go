package soak

import (
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"batchfs/internal/testwait"
	"batchfs/test/e2e"
)

// A stage begins at a global row and draws from each source in proportion to its weight.
type stage struct {
	row     int
	weights [3]int
}

// Restarts append stages to a schedule while eight ranks read and workers are killed. Each stage is
// applied or refused, no read fails, and the rows follow the schedule with the applied stages.
func TestScheduleChanges(t *testing.T) {
	t.Parallel()
	const ranks, batchSize, blockSize, epoch = 8, 4, 16, 5000 // epoch: rows of each source
	dir := t.TempDir()
	for c, name := range []string{"a", "b", "c"} {
		tokens := e2e.StormTokens(c)[:4*(epoch*blockSize+1)]
		e2e.Write(t, filepath.Join(dir, name+".bin"), tokens)
	}
	config := filepath.Join(dir, "config.toml")
	write := func(stages []stage) {
		text := fmt.Sprintf("[batch]\nbatch_size = %d\nblock_size = %d\ntoken_dtype = \"uint32\"\norder = \"sequential\"\n", batchSize, blockSize)
		for _, name := range []string{"a", "b", "c"} {
			text += fmt.Sprintf("[[splits.train.sources]]\nname = %q\ntokens = \"%[1]s.bin\"\n", name)
		}
		for i, s := range stages {
			text += fmt.Sprintf("[[splits.train.stages]]\nweights = {a = %d, b = %d, c = %d}\n", s.weights[0], s.weights[1], s.weights[2])
			if i > 0 {
				text += fmt.Sprintf("from_row = %d\n", s.row)
			}
		}
		e2e.Write(t, config, text)
	}
	stages := []stage{{0, [3]int{7, 3, 0}}}
	write(stages)
	m := e2e.MountProgram(t, exec.Command(e2e.PlainBatchfs), "-c", config)
	m.AwaitStandby(t)
	var readers []*e2e.Client
	outputs := make([]chan []string, ranks)
	for rank := range ranks {
		c := e2e.StartClient(t, exec.Command(e2e.Python, "clients/schedule.py", m.Path(fmt.Sprintf("train/rank=%d,world=%d", rank, ranks)), fmt.Sprint(batchSize)))
		c.AwaitReady(t)
		readers, outputs[rank] = append(readers, c), make(chan []string, 1)
		go func() { // otherwise, the reader's pipe would fill up and block it
			var lines []string
			for line, err := c.Out.ReadString('\n'); err == nil; line, err = c.Out.ReadString('\n') {
				lines = append(lines, line)
			}
			outputs[rank] <- lines
		}()
	}

	refused, pace := 0, 50 // refused stages, and steps that the readers take during a restart
	for applied := 0; applied < e2e.NormalOrSoak(4, 50); {
		// By the end of the restart, the readers may have passed the row at which the stage begins.
		began := m.NextNumber(t, "train/rank=0,world=8")
		s := stage{batchSize*ranks*(began+rand.IntN(2*pace+20)) + rand.IntN(50), [3]int{rand.IntN(4), rand.IntN(4), 1 + rand.IntN(4)}}
		s.row = max(s.row, stages[len(stages)-1].row+1)
		write(append(stages, s))
		for {
			if rand.IntN(2) == 0 {
				worker := m.AwaitWorker(t)
				defer time.AfterFunc(time.Duration(rand.Int64N(int64(150*time.Millisecond))), func() { e2e.Kill(t, m, worker) }).Stop()
			}
			_, why, err := e2e.Try(t, e2e.PlainBatchfs, "restart", m.Dir)
			if err == nil {
				stages = append(stages, s)
				applied++
				break
			}
			if strings.Contains(why, "the new schedule changes row") {
				refused++
				break
			}
			t.Log(why) // the worker was killed during the restart
		}
		pace = m.NextNumber(t, "train/rank=0,world=8") - began
	}

	var batches [ranks][]string
	steps := 1 << 30
	for rank, c := range readers {
		path := fmt.Sprintf("train/rank=%d,world=%d", rank, ranks)
		last := stages[1].row/(batchSize*ranks) + 1 // with rows of stage 0
		e2e.Await(t, fmt.Sprintf("a batch after %d in %s", last, path), func() (any, bool) {
			next := m.NextNumber(t, path)
			return next, next > last
		})
		c.In.Close()
		batches[rank] = testwait.For(t, fmt.Sprintf("the end of rank %d", rank), outputs[rank])
		testwait.End(t, fmt.Sprintf("the end of rank %d", rank), func() {
			if err := c.Cmd.Wait(); err != nil {
				t.Errorf("rank %d: %v", rank, err)
			}
		})
		steps = min(steps, len(batches[rank]))
	}
	t.Logf("%d stages were applied and %d refused, %d of them by a worker about to serve; %d other workers failed; %d steps", len(stages), refused,
		strings.Count(m.Out.String(), `why="splits`), strings.Count(m.Out.String(), `why="killed`), steps)
	var drawn, inStage [3]int
	row, current := 0, 0
	for k := range steps {
		for rank := range ranks {
			for _, field := range strings.Fields(batches[rank][k]) {
				if current+1 < len(stages) && row == stages[current+1].row {
					current++
					inStage = [3]int{}
				}
				var token int
				fmt.Sscan(field, &token)
				source := token >> 24
				if want := source<<24 + drawn[source]%epoch*blockSize; token != want {
					t.Fatalf("row %d, in batch %d of rank %d, is %#x, want %#x, the next one of its source", row, k, rank, token, want)
				}
				drawn[source]++
				inStage[source]++
				row++
				n, weights := row-stages[current].row, stages[current].weights
				sum := weights[0] + weights[1] + weights[2]
				// Each source has n*weight/sum of the rows, give or take one.
				for c, weight := range weights {
					if d := inStage[c]*sum - n*weight; d < -sum || d > sum {
						t.Fatalf("row %d: %d of the first %d rows of stage %d are from source %d, want %d/%d of them", row-1, inStage[c], n, current, c, weight, sum)
					}
				}
			}
		}
	}
	if current == 0 {
		t.Error("the readers reached only the first stage")
	}
}
