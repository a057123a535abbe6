package commands

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"batchfs/test/e2e"
)

// The programs of docs/prepare.md run 16 tasks with each engine on 4 workers, although one is
// killed while it does a task: the engine repeats it, or, with datatrove, another run of the
// program does. Only `make engines` runs this.
func TestEngines(t *testing.T) {
	python := os.Getenv("PYTHON_ENGINES")
	if python == "" {
		t.Skip("for make engines")
	}
	dir := t.TempDir()
	input := filepath.Join(dir, "web.jsonl")
	var lines strings.Builder
	for i := range 40_000 {
		fmt.Fprintf(&lines, "{\"text\": \"page %d has the number %x\"}\n", i, i*i*i)
	}
	e2e.Write(t, input, lines.String())
	plan := filepath.Join(dir, "plan.json")
	e2e.Run(t, e2e.PlainBatchfs, "prepare", "--plan", plan, input, "--by", "gpt2", "--val", "0.1", "--unit-bytes", "200000")
	finished := func(out string) map[string]string {
		e2e.Run(t, e2e.PlainBatchfs, "prepare", "--finish", "--verify", "--plan", plan, "--out", out)
		files := map[string]string{}
		for _, path := range e2e.Must(filepath.Glob(filepath.Join(out, "[^.]*")))(t) {
			files[filepath.Base(path)] = string(e2e.Content(t, path))
		}
		return files
	}
	want := filepath.Join(dir, "want")
	e2e.Run(t, e2e.PlainBatchfs, "prepare", "--task", "0/1", "--plan", plan, "--out", want)
	wanted := finished(want)

	page := e2e.ReadPage(t, "docs/prepare.md")
	for engine, test := range map[string]struct {
		prelude string // makes the engine use four workers
		victim  string // the process that is killed: the worker, or only the task
		again   bool   // whether the program must run again
	}{
		"Ray":       {"import ray; ray.init(num_cpus=8, include_dashboard=False)\n", "$PPID", false},
		"Spark":     {"from pyspark.sql import SparkSession; SparkSession.builder.master('local[4,4]').config('spark.ui.enabled', 'false').getOrCreate()\n", "$PPID", false},
		"datatrove": {"", "$$", true},
	} {
		t.Run(engine, func(t *testing.T) {
			dir := t.TempDir()
			e2e.NoError(t, os.Mkdir(filepath.Join(dir, "bin"), 0o755))
			e2e.NoError(t, os.Symlink(plan, filepath.Join(dir, "plan.json")))
			// The first process of task 5 is killed in the middle of a unit.
			e2e.WriteScript(t, filepath.Join(dir, "bin/batchfs"), `#!/bin/bash
case "$*" in
*" 5/16 "*)
	if mkdir `+dir+`/killed 2>/dev/null; then
		`+e2e.PlainBatchfs+` "$@" &
		until ls `+dir+`/tokens/.units/tmp-000005-* >/dev/null 2>&1 || ! kill -0 $! 2>/dev/null; do :; done
		kill -9 $! `+test.victim+`
	fi ;;
esac
exec `+e2e.PlainBatchfs+` "$@"
`)
			code := regexp.MustCompile("(?s)### " + engine + "\n.*?```python\n(.*?)```").FindStringSubmatch(page)[1]
			run := func() error {
				cmd := e2e.Job(t, python, e2e.Write(t, filepath.Join(dir, "program.py"), test.prelude+code))
				cmd.Dir = dir
				cmd.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"), "PYTHONDONTWRITEBYTECODE=1", "RAY_USAGE_STATS_ENABLED=0")
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Logf("%s: %v\n%s", engine, err, e2e.LastLines(string(out), 20))
				}
				return err
			}
			err := run()
			if _, notKilled := os.Stat(filepath.Join(dir, "killed")); notKilled != nil {
				t.Error("no worker was killed")
			}
			if test.again {
				if err == nil {
					t.Error("the program does not notice that a task was killed")
				}
				err = run()
			}
			e2e.NoError(t, err)
			if !maps.Equal(finished(filepath.Join(dir, "tokens")), wanted) {
				t.Error("the files differ from those of one task")
			}
		})
	}
}
