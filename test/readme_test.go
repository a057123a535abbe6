package test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"batchfs/test/e2e"
)

// A block is code that runs. A page may show what it prints.
var block = regexp.MustCompile("(?ms)^```(sh|python|c)\n(.*?)^```$(?:\n\n[^`]*\\bprints\\b[^`]*:\n\n```text\n(.*?)^```$)?")

// pages returns README.md and the pages of docs, in the order in which README.md links to them.
func pages(t *testing.T) (paths []string) {
	t.Helper()
	paths = []string{"README.md"}
	for _, link := range link.FindAllStringSubmatch(e2e.ReadPage(t, "README.md"), -1) {
		if strings.HasPrefix(link[1], "docs/") && strings.HasSuffix(link[1], ".md") && !slices.Contains(paths, link[1]) {
			paths = append(paths, link[1])
		}
	}
	return paths
}

var link = regexp.MustCompile(`\]\(([a-zA-Z0-9./_-]*)(#[a-z0-9-]+)?\)`)

var library = regexp.MustCompile(`(?m)^(?:import|from) (torch|safetensors|transformers|ray|pyspark|datatrove)`)

// lacksLibrary reports whether code of a page imports a library that is not installed here.
func lacksLibrary(t *testing.T, code string) bool {
	m := library.FindStringSubmatch(code)
	return m != nil && !e2e.HasModule(t, m[1])
}

// All commands on the pages work, in their order, but for those with torchrun. CI runs the make
// commands of README.md. This takes more than five seconds, because there are about 100 blocks, and
// each may use what earlier ones made.
func TestREADME(t *testing.T) {
	t.Parallel()
	runPages(t, pages(t), false)
}

// All commands on the pages that train with torchrun work.
func TestTrainingOnPages(t *testing.T) {
	e2e.SkipIfShort(t)
	t.Parallel()
	e2e.NeedPython(t, "torch")
	runPages(t, slices.DeleteFunc(pages(t), func(page string) bool {
		return !slices.ContainsFunc(block.FindAllStringSubmatch(e2e.ReadPage(t, page), -1), func(b []string) bool { return trainsOnCPU.MatchString(b[2]) })
	}), true)
}

// runPages runs the blocks of pages; those that train need PyTorch.
func runPages(t *testing.T, pages []string, train bool) {
	t.Helper()
	e2e.NeedFUSE(t)
	dir := t.TempDir()
	mountpoint := filepath.Join(dir, "mnt")
	for _, d := range []string{"mnt", "bin"} {
		e2e.NoError(t, os.Mkdir(filepath.Join(dir, d), 0o755))
	}
	t.Cleanup(func() { syscall.Unmount(mountpoint, syscall.MNT_DETACH) })
	config := e2e.Content(t, "../config.toml")
	e2e.Write(t, filepath.Join(dir, "config.toml"), config)
	e2e.Write(t, filepath.Join(dir, "book.txt"), []byte(strings.Repeat("It was the best of times, it was the worst of times.\n", 3000)))
	e2e.NoError(t, os.Symlink(e2e.Batchfs, filepath.Join(dir, "bin/batchfs")))
	replacePrograms(t, dir)
	env := append(os.Environ(), "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"), "XDG_STATE_HOME="+dir,
		"PYTHONPATH="+e2e.Must(filepath.Abs("../python"))(t), "PYTHONDONTWRITEBYTECODE=1")
	hasTorch := e2e.HasModule(t, "torch")
	var torch *e2e.Client // runs the blocks that import PyTorch
	if hasTorch {
		cmd := exec.Command(e2e.Python, e2e.Must(filepath.Abs("clients/blocks.py"))(t))
		cmd.Dir, cmd.Env = dir, env
		torch = e2e.StartClient(t, cmd)
	}

	for _, page := range pages {
		// A subtest has five minutes of its own.
		ok := t.Run(page, func(t *testing.T) {
			for _, b := range block.FindAllStringSubmatch(e2e.ReadPage(t, page), -1) {
				language, code := b[1], strings.ReplaceAll(b[2], "/mnt/batches", mountpoint)
				// Fewer processes, on processors instead of GPUs.
				code = manyProcesses.ReplaceAllString(code, "--nproc-per-node 2 examples/")
				var cmd *exec.Cmd
				switch {
				case strings.HasPrefix(code, "make "):
					continue
				case trainsOnCPU.MatchString(code) && !train:
					continue
				case language == "sh":
					cmd = e2e.Job(t, "bash", "-euo", "pipefail", "-c", code)
				case language == "python":
					if lacksLibrary(t, code) {
						code = "compile(r'''" + code + "''', 'page', 'exec')"
					} else if strings.Contains(code, "import torch") {
						checkShown(t, b[3], runBlock(t, torch, code))
						continue
					}
					cmd = e2e.Job(t, e2e.Python, "-c", code)
				case language == "c":
					e2e.Write(t, filepath.Join(dir, "reader.c"), []byte(code))
					cmd = e2e.Job(t, "sh", "-c", "cc -Wall -Wextra -Werror -o reader reader.c && ./reader")
				}
				cmd.Dir, cmd.Env = dir, env
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("%v in the block\n%s\nwhich prints\n%s", err, code, out)
				}
				checkShown(t, b[3], string(out))
			}
			e2e.NotMounted(t, mountpoint)
		})
		if !ok {
			break
		}
	}
}

// runBlock runs code in a running clients/blocks.py and returns what it prints.
func runBlock(t *testing.T, client *e2e.Client, code string) string {
	t.Helper()
	var ended struct {
		Status int
		Output string
	}
	e2e.NoError(t, json.NewEncoder(client.In).Encode(code))
	e2e.NoError(t, json.Unmarshal([]byte(client.ReadLine(t)), &ended))
	if ended.Status != 0 {
		t.Fatalf("wait status %d of the block\n%s\nwhich prints\n%s", ended.Status, code, ended.Output)
	}
	return ended.Output
}

// manyProcesses matches how many processes train together.
var manyProcesses = regexp.MustCompile(`--nproc-per-node [48] examples/`)

// trainsOnCPU matches blocks that train, and those that read what such blocks wrote.
var trainsOnCPU = regexp.MustCompile(`torchrun |torch\.load\("checkpoint`)

// replacePrograms makes what the pages run in a clone. A stand-in for a download from the Hub makes
// files in the same layout. clients/torchrun.py stands in for torchrun, and trains a smaller model.
func replacePrograms(t *testing.T, dir string) {
	t.Helper()
	script := func(name, commands string) {
		e2e.WriteScript(t, filepath.Join(dir, "bin", name), "#!/bin/sh\nset -eu\n"+commands)
	}
	download := e2e.Must(filepath.Abs("testdata/fineweb-edu.parquet"))(t)
	script("hf", `[ "$*" = "download HuggingFaceFW/fineweb-edu --repo-type dataset --include sample/10BT/000_* --local-dir fineweb-edu" ]
mkdir -p fineweb-edu/sample/10BT fineweb-edu/.cache/huggingface/download/sample/10BT
cp `+download+` fineweb-edu/sample/10BT/000_00000.parquet
echo 1 >fineweb-edu/.cache/huggingface/download/sample/10BT/000_00000.parquet.metadata
echo '*' >fineweb-edu/.cache/huggingface/.gitignore
`)
	script("torchrun", "exec "+e2e.Python+" "+e2e.Must(filepath.Abs("clients/torchrun.py"))(t)+` "$@"`+"\n")
	e2e.NoError(t, os.Mkdir(filepath.Join(dir, "examples"), 0o755))
	recipe := strings.NewReplacer("24 // world", "4 // world", "block_size=64", "block_size=8", "V, 64", "V, 16", "64, V", "16, V").Replace(e2e.ReadPage(t, "examples/train_torchrun.py"))
	e2e.Write(t, filepath.Join(dir, "examples/train_torchrun.py"), recipe)
	e2e.NoError(t, os.Symlink(e2e.Must(filepath.Abs("../docs"))(t), filepath.Join(dir, "docs")))
}

// checkShown checks that a block printed the lines that its page shows, except for figures.
func checkShown(t *testing.T, shown, printed string) {
	t.Helper()
	for line := range strings.Lines(shown) {
		if !strings.Contains(stable(printed), stable(line)) {
			t.Errorf("the page shows the line %q, which its block does not print:\n%s", line, printed)
		}
	}
}

// stable returns the text without figures and bars.
func stable(text string) string {
	return regexp.MustCompile(`[0-9.]+|[ ▁▂▃▄▅▆▇█·]+`).ReplaceAllString(text, "")
}

// The demo prints the lines that README shows, except for figures and the curve. It trains for at
// least 600 steps.
func TestDemo(t *testing.T) {
	t.Parallel()
	e2e.NeedFUSE(t)
	dir := t.TempDir()
	for _, file := range []string{"examples/demo", "examples/prepare", "examples/train_numpy.py", ".ci/python"} {
		e2e.WriteScript(t, filepath.Join(dir, file), e2e.Content(t, "../"+file))
	}
	e2e.NoError(t, os.Symlink(e2e.Batchfs, filepath.Join(dir, "batchfs")))
	t.Cleanup(func() { syscall.Unmount(filepath.Join(dir, "demo/mnt"), syscall.MNT_DETACH) })
	out := e2e.RunJob(t, filepath.Join(dir, "examples/demo"), "--seconds", "1")
	out = strings.ReplaceAll(out, e2e.Python, "python3")

	example := regexp.MustCompile("(?s)`make demo` prints:\n\n```text\n(.*?)```").FindStringSubmatch(e2e.ReadPage(t, "README.md"))[1]
	checkShown(t, example, out)
}

// If Go is missing or too old, the message names the version that is needed and the one that is
// installed.
func TestGoVersion(t *testing.T) {
	bin := t.TempDir()
	for _, tool := range []string{"dirname", "sed", "sort", "id"} {
		e2e.NoError(t, os.Symlink(e2e.Must(exec.LookPath(tool))(t), filepath.Join(bin, tool)))
	}
	for said, want := range map[string]string{
		"": "no Go is installed", "go version go1.19.8 linux/amd64": bin + "/go is Go 1.19.8", "go version go1.26 linux/arm64": "", "go version go1.100.1 linux/arm64": "",
	} {
		if said != "" {
			e2e.WriteScript(t, filepath.Join(bin, "go"), "#!/bin/sh\necho "+said)
		}
		out, stderr, err := e2e.Try(t, "env", "PATH="+bin, "../.ci/go")
		if (err == nil) != (want == "") || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != min(len(want), 1) || out != "" {
			t.Errorf("%s: %v %s%s, want %q", said, err, out, stderr, want)
		}
		os.Remove(filepath.Join(bin, "go"))
	}
}

// README.md links to every page of docs, and every link on a page leads to an existing file and
// heading.
func TestPages(t *testing.T) {
	paths := e2e.Must(filepath.Glob("../docs/*.md"))(t)
	if listed := pages(t); len(listed) != len(paths)+1 {
		t.Errorf("README links %s, want all of %s", listed, paths)
	}
	headings := regexp.MustCompile("(?m)^#+ (.*)$")
	anchor := regexp.MustCompile("[^a-z0-9 -]")
	for _, page := range pages(t) {
		for _, link := range link.FindAllStringSubmatch(e2e.ReadPage(t, page), -1) {
			path := page
			if link[1] != "" {
				path = filepath.Join(filepath.Dir(page), link[1])
			}
			if _, err := os.Stat(filepath.Join("..", path)); err != nil {
				t.Errorf("broken link on page %s: %v", page, err)
				continue
			}
			exists := link[2] == ""
			if !exists {
				for _, h := range headings.FindAllStringSubmatch(e2e.ReadPage(t, path), -1) {
					exists = exists || "#"+strings.ReplaceAll(anchor.ReplaceAllString(strings.ToLower(h[1]), ""), " ", "-") == link[2]
				}
			}
			if !exists {
				t.Errorf("broken link on page %s: %s has no heading %s", page, path, link[2])
			}
		}
	}
}
