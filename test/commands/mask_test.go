package commands

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"batchfs/test/e2e"
)

// checkMask is Python that checks that all files of a split have the same mask. For each split, it
// prints "upper" if the mask is 1 exactly for targets that are upper-case letters, or "lower" for
// lower-case ones.
const checkMask = `
import json, struct, sys
import numpy as np
for split in sys.argv[1:]:
    y, mask = np.load(f"{split}/batches.npy")[:, 1], np.load(f"{split}/batches.mask.npy")
    for k in range(0, len(mask), 7):
        assert (np.load(f"{split}/batch/{k}.mask.npy") == mask[k]).all()
        raw = open(f"{split}/batch/{k}.safetensors", "rb").read()
        n, = struct.unpack("<Q", raw[:8])
        a = json.loads(raw[8:8 + n])["mask"]
        assert a["dtype"] == "U8" and raw[8 + n:][slice(*a["data_offsets"])] == mask[k].tobytes()
    for case, is_case in ("upper", (y >= 65) & (y <= 90)), ("lower", (y >= 97) & (y <= 122)):
        if (mask == is_case).all():
            print(case)
`

// The mount command that prepare prints serves the mask, also from later workers, and follows a
// mask that is prepared later. x and y are the same as without the mask.
func TestPreparedMask(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var lines strings.Builder
	for i := range 400 {
		fmt.Fprintf(&lines, "{\"prompt\": %q, \"completion\": %q}\n", strings.Repeat("what", i%7+1), strings.Repeat("THIS", i%5+1))
	}
	e2e.Write(t, filepath.Join(dir, "sft.jsonl"), []byte(lines.String()))
	prepare := func(args ...string) (mount string) {
		t.Helper()
		output := e2e.Run(t, append([]string{"env", "-C", dir, e2e.Batchfs, "prepare", "sft.jsonl", "--by", "byte", "--out", "it's sft"}, args...)...)
		_, command, _ := strings.Cut(output, "next: batchfs mount ")
		return command
	}
	command := prepare("--mask", "prompt:0,completion:1")
	mountpoint := t.TempDir()
	// MountAt adds the first argument.
	command = "exec " + e2e.Batchfs + ` mount "$1" ` + strings.Replace(command, "MOUNTPOINT", "--set splits.train.on_change=follow "+mountpoint, 1)
	program := exec.Command("sh", "-c", command)
	program.Dir = dir
	m := e2e.MountAt(t, mountpoint, program)
	checkLetters := func(want string) {
		t.Helper()
		got := e2e.Run(t, e2e.Python, "-c", checkMask, m.Path("train"), m.Path("train/seed=7,order=shuffle,rank=1,world=2"))
		e2e.Equal(t, "the letters in y where the mask is 1", got, want+"\n"+want+"\n")
	}
	checkLetters("upper")
	want := e2e.Digest(e2e.Cat(t, "train", "--data", filepath.Join(dir, "it's sft"), "--set", "splits.train.arrays=[]"))
	e2e.Equal(t, "next of a split with a mask", e2e.FileDigest(t, m, "train/next"), want)
	first := m.Info(t, "train").Fingerprint
	e2e.Kill(t, m, m.AwaitWorker(t))
	checkLetters("upper")
	e2e.Run(t, e2e.Batchfs, "restart", m.Dir)
	checkLetters("upper")
	prepare("--mask", "prompt:1,completion:0", "--force")
	e2e.Await(t, "the new mask", func() (any, bool) {
		info := m.Info(t, "train")
		return fmt.Sprintf("%+v", info), info.Changes == 1
	})
	checkLetters("lower")
	e2e.Kill(t, m, m.AwaitWorker(t))
	checkLetters("lower")
	e2e.Equal(t, "the fingerprint is the same with another mask", m.Info(t, "train").Fingerprint == first, false)
	prepare("--field", "prompt", "--force")
	if _, stderr, err := e2e.Try(t, "cat", m.Path("train/next")); err == nil {
		t.Error("a batch is read although its mask is gone, want an error")
	} else if !strings.Contains(m.Out.String(), "mask uint8") {
		t.Errorf("cat: %s; the log does not say that the mask is gone", stderr)
	}
}

// The mount command that prepare prints works for files of every format, however short, and check
// finds no problem in them.
func TestPreparePrintsACommand(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var lines strings.Builder
	for i := range 60 {
		fmt.Fprintf(&lines, "{\"text\": \"%d words and others\"}\n", i)
	}
	e2e.Write(t, filepath.Join(dir, "a.jsonl"), []byte(lines.String()))
	for _, format := range []string{"headerless", "llm.c", "megatron", "datatrove", "npy"} {
		for _, shard := range []string{"0", "300"} {
			output := e2e.Run(t, "env", "-C", dir, e2e.PlainBatchfs, "prepare", "a.jsonl", "--by", "byte", "--val", "0.3", "--format", format,
				"--shard-tokens", shard, "--mask", "text:1", "--force", "--out", format+shard)
			_, command, _ := strings.Cut(output, "next: batchfs mount ")
			e2e.Run(t, "env", "-C", dir, "sh", "-c", e2e.PlainBatchfs+" check train val "+strings.Replace(command, "MOUNTPOINT", "--overlap 2000", 1))
			for _, split := range []string{"train", "val"} {
				out := e2e.Run(t, "env", "-C", dir, "sh", "-c", e2e.PlainBatchfs+" inspect "+split+" 0 "+strings.Replace(command, "MOUNTPOINT", "--json", 1))
				var origin struct{ Rows []any }
				if err := json.Unmarshal([]byte(out), &origin); err != nil || len(origin.Rows) != 12 {
					t.Errorf("inspect with the arguments %q: error %v, %s\nwant 12 rows", command, err, out)
				}
			}
		}
	}
}
