package commands

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"batchfs/internal/process"
	"batchfs/test/e2e"
)

// A recipe is an example that trains with a framework.
type recipe struct {
	file       string
	runner     []string // arguments of Python before the file
	readsMount bool     // whether it takes a mounted split as its argument
	settings   []string // flags of that mount
	prompts    bool     // whether the tokens are prompts and completions
	check      string   // appended code that checks the results
	checkRow   string   // code that checks the row after 60 steps, and one of twice as many rows
}

var (
	torchrun = []string{"-m", "torch.distributed.run", "--nproc-per-node", "2"}
	packed   = []string{"--set", "batch.rows=packed", "--set", "batch.documents=true", "--set", "batch.mask_targets=true",
		"--set", "batch.order=shuffle", "--set", "batch.dtype=int32"}
	recipes = []recipe{
		{file: "train_torch.py"},
		{file: "train_torchrun.py", runner: torchrun, readsMount: true},
		{file: "train_transformers.py", readsMount: true, checkRow: progress + "== 60 * 2 * 4 + 2 * 8"},
		{file: "train_lightning.py", readsMount: true, checkRow: `assert trainer.datamodule.state_dict()["row"] == 60 * 12 + 24`},
		{file: "train_dcp.py", runner: torchrun, readsMount: true},
		{file: "train_jax.py"},
		{file: "finetune_transformers.py", prompts: true, check: checkDocuments},
		{file: "finetune_trl.py", prompts: true, check: checkTRL, checkRow: progress + "== 60 * 4 + 8"},
		{file: "nanogpt.py", runner: []string{"clients/nanogpt_train.py"}},
		{file: "torchtitan_batchfs.py", runner: slices.Concat(torchrun, []string{"clients/torchtitan_cpu.py"}), readsMount: true, settings: packed, prompts: true},
	}
)

const progress = `assert [c for c in trainer.callback_handler.callbacks if isinstance(c, Progress)][0].batches["row"] `

// checkDocuments checks that each document of the last batch has the same logits as it has alone,
// and that the loss covers only completions.
const checkDocuments = `
begins = (positions[0] == 0).nonzero().flatten().tolist() + [positions.numel()]
with torch.no_grad():
    together = model(input_ids=x, position_ids=positions.long()).logits[0]
    for begin, end in zip(begins, begins[1:]):
        torch.testing.assert_close(model(input_ids=x[:, begin:end]).logits[0], together[begin:end])
        document = bytes(x[0, begin:end].tolist())
        counted = (y[0, begin:end - 1] >= 0).nonzero().flatten() + 1
        assert bytes(x[0, begin + counted].tolist()) == document.partition(b">")[2], document
`

// checkTRL computes the loss of each document of a batch separately, with the masked targets of the
// mount. It checks that TRL's loss of the whole batch is their mean.
const checkTRL = `
batch = next(trainer.get_train_dataloader())
x, y, positions = (torch.tensor(train.read(60)[name].reshape(1, -1)) for name in ("x", "y", "positions"))
assert torch.equal(batch["input_ids"], x), "the batch after the run is another"
loss, total = trainer.compute_loss(model, batch), 0
begins = (positions[0] == 0).nonzero().flatten().tolist() + [positions.numel()]
with torch.no_grad():
    for begin, end in zip(begins, begins[1:]):
        logits = model(input_ids=x[:, begin:end], use_cache=False).logits[0]
        total += torch.nn.functional.cross_entropy(logits, y[0, begin:end], reduction="sum")
assert len(begins) > 9
torch.testing.assert_close(loss, total / (y >= 0).sum())
`

// A recipe that is killed and started again has the same losses as an uninterrupted one, to the
// last bit. `make recipes` tests all of them.
func TestRecipes(t *testing.T) {
	e2e.SkipIfShort(t)
	t.Parallel()
	e2e.NeedFUSE(t)
	e2e.NeedPython(t, "torch")
	for _, r := range recipes {
		t.Run(r.file, func(t *testing.T) {
			if r.file != "train_torch.py" && os.Getenv("BATCHFS_RECIPES") != "1" {
				t.Skip("for make recipes")
			}
			data := makeCorpus(t, r.prompts)
			var args []string
			if r.readsMount {
				args = []string{e2e.Mount(t, slices.Concat([]string{"--data", data}, r.settings)...).Path("train")}
			}
			uninterrupted, interrupted := r.copyTo(t, data), r.copyTo(t, data)
			want := r.train(t, uninterrupted, "", args...)
			// A recipe saves a checkpoint at step 20, perhaps in the background, and at step 40.
			killed := r.train(t, interrupted, "step 42:", args...)
			resumed := r.train(t, interrupted, "", args...)
			t.Logf("%d losses, %d before the kill, %d after it", len(want), len(killed), len(resumed))
			if len(killed) == len(want) || len(resumed) == 0 || len(resumed) == len(want) {
				t.Error("the run was not killed and resumed in the middle")
			}
			for step, loss := range want {
				for _, got := range []map[string]string{killed, resumed} {
					if earlier, ok := got[step]; ok && earlier != loss {
						t.Errorf("step %s: the loss is %s in the run that was killed, want %s", step, earlier, loss)
					}
				}
				if killed[step] == "" && resumed[step] == "" {
					t.Errorf("step %s is missing in the run that was killed", step)
				}
			}
			if r.checkRow != "" {
				text := strings.Replace(string(e2e.Content(t, "../examples/"+r.file)), "max_steps=60", "max_steps=61", 1)
				text = strings.NewReplacer("batch_size=4", "batch_size=8", "batch_size=12", "batch_size=24").Replace(text)
				r.train(t, e2e.Write(t, interrupted, text+r.checkRow), "", args...)
			}
		})
	}
}

func makeCorpus(t *testing.T, prompts bool) (dir string) {
	t.Helper()
	dir = t.TempDir()
	text, flags := "../docs/design.md", []string{"--by", "byte", "--out", dir}
	if prompts {
		var lines strings.Builder
		for i := range 2000 {
			fmt.Fprintf(&lines, `{"prompt": "%d>", "completion": "%d\n"}`+"\n", i*7919, i*7919*3)
		}
		text = e2e.Write(t, filepath.Join(t.TempDir(), "sums.jsonl"), lines.String())
		flags = append(flags, "--mask", "prompt:0,completion:1", "--format", "datatrove")
	}
	e2e.Run(t, append([]string{e2e.PlainBatchfs, "prepare", text}, flags...)...)
	return dir
}

// copyTo copies the recipe to a new directory, where it keeps its checkpoints.
func (r recipe) copyTo(t *testing.T, data string) (path string) {
	t.Helper()
	dir := t.TempDir()
	e2e.NoError(t, os.Symlink(data, filepath.Join(dir, "data")))
	return e2e.Write(t, filepath.Join(dir, r.file), string(e2e.Content(t, "../examples/"+r.file))+r.check)
}

var lossOfStep = regexp.MustCompile(`^step (\d+.*): loss ([0-9.]+)$`)

// train runs a copy of the recipe and returns the losses that it prints, by step. It kills the
// processes of the recipe when a line begins with until, unless that is empty.
func (r recipe) train(t *testing.T, path, until string, args ...string) (losses map[string]string) {
	t.Helper()
	here := e2e.Must(os.Getwd())(t)
	command := slices.Concat(r.runner, []string{path}, args)
	for i, arg := range r.runner {
		if strings.HasPrefix(arg, "clients/") {
			command[i] = filepath.Join(here, arg)
		}
	}
	cmd := e2e.Job(t, e2e.Python, command...)
	cmd.Dir = filepath.Dir(path)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(here, "../python"), "BATCHFS_PROGRAM="+e2e.PlainBatchfs, "TMPDIR="+cmd.Dir,
		"PYTHONDONTWRITEBYTECODE=1", "HF_HUB_OFFLINE=1", "JAX_PLATFORMS=cpu")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	// The socket buffers only a few lines, so the run cannot end before it is killed.
	ends := e2e.Must(syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0))(t)
	ours, theirs := os.NewFile(uintptr(ends[0]), "ours"), os.NewFile(uintptr(ends[1]), "theirs")
	defer ours.Close()
	e2e.NoError(t, syscall.SetsockoptInt(ends[1], syscall.SOL_SOCKET, syscall.SO_SNDBUF, 1))
	cmd.Stdout = theirs
	e2e.NoError(t, cmd.Start())
	theirs.Close()
	lines := bufio.NewScanner(ours)
	losses = map[string]string{}
	killed := false
	for lines.Scan() {
		if m := lossOfStep.FindStringSubmatch(lines.Text()); m != nil {
			losses[m[1]] = m[2]
		}
		if until != "" && strings.HasPrefix(lines.Text(), until) {
			killRunners(path)
			killed = true
		}
	}
	if err := cmd.Wait(); (until != "") != killed || killed == (err == nil) {
		t.Fatalf("%s ended with %v after %d steps, want an error exactly if it is killed\n%s", r.file, err, len(losses), &stderr)
	}
	e2e.Await(t, "the end of the mounts of the recipe", func() (any, bool) {
		left := e2e.MountsBelow(t, cmd.Dir)
		return left, len(left) == 0
	})
	return losses
}

// killRunners kills the processes of a recipe, but not the mount that one of them made.
func killRunners(path string) {
	for _, pid := range process.All() {
		if command, _ := os.ReadFile(process.Dir(pid) + "/cmdline"); strings.Contains(string(command), path) {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}
