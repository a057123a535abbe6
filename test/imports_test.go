// Package test checks the repository as a whole: imports, the commands in README.md and docs, and
// releases. The packages below it mount the built program and read the mounts as users do.
package test

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"batchfs/test/e2e"
)

func TestMain(m *testing.M) { e2e.Main(m) }

// Imports point one way, and each third-party module is imported in one place.
func TestImports(t *testing.T) {
	allowed := map[string][]string{ // what each package may import from this module
		"internal/clock":      nil,
		"internal/failpoint":  nil,
		"internal/failure":    nil,
		"internal/fdpass":     nil,
		"internal/jsonbytes":  nil,
		"internal/minheap":    nil,
		"internal/privatedir": nil,
		"internal/printable":  nil,
		"internal/process":    {"internal/printable"},
		"internal/require":    nil,
		"internal/testwait":   nil,

		"cache/array":     nil,
		"cache/counts":    nil,
		"cache/store":     {"cache/counts"},
		"cache/localfile": {"cache/counts", "internal/clock", "internal/printable", "internal/process"},
		"cache/blocks":    {"cache/counts", "cache/localfile", "cache/store", "internal/clock", "internal/privatedir"},
		"cache/format":    {"cache/array", "internal/printable"},
		"cache/blob":      {"cache/blocks", "cache/localfile", "cache/store", "internal/clock"},
		"cache":           {"cache/array", "cache/blob", "cache/blocks", "cache/format", "cache/localfile", "internal/printable"},
		"sampler":         {"cache/array", "internal/minheap"},

		"fs/header":    {"cache/array", "cache/format"},
		"fs/state":     {"cache/array", "cache/counts", "internal/clock", "internal/failpoint", "internal/failure"},
		"fs/mount":     {"fs/state", "internal/failure", "internal/fdpass", "internal/printable", "internal/process"},
		"fs/figures":   {"cache/counts", "fs/mount", "fs/state", "internal/process"},
		"fs/supervise": {"fs/mount", "fs/state", "internal/clock", "internal/failure", "internal/fdpass", "internal/process"},
		"fs/guard":     {"fs/mount", "fs/state", "internal/clock"},
		"fs": {"cache/array", "fs/guard", "fs/header", "fs/mount", "fs/state", "fs/supervise", "internal/failpoint",
			"internal/process"},

		"cmd/batchfs/internal/testfiles": {"internal/require"},
		"cmd/batchfs/chart":              nil,
		"cmd/batchfs/terminal":           nil,
		"cmd/batchfs/metrics":            {"fs/figures", "fs/state"},
		"cmd/batchfs/vocabulary":         {"cache/blob"},
		"cmd/batchfs/web":                nil,
		"cmd/batchfs/config":             {"cache/array", "cache/blob", "cache/format", "cache/localfile", "cache/store", "cmd/batchfs/vocabulary", "fs/state", "internal/failure", "internal/printable", "sampler"},
		"cmd/batchfs/dataset": {"cache", "cache/array", "cache/blob", "cache/blocks", "cache/counts", "cache/localfile", "cmd/batchfs/command", "cmd/batchfs/config",
			"cmd/batchfs/terminal", "cmd/batchfs/vocabulary", "fs", "fs/mount", "fs/state", "internal/clock", "internal/failure", "internal/jsonbytes", "internal/printable", "sampler"},
		"cmd/batchfs/prepare/bpe":   {"internal/minheap"},
		"cmd/batchfs/prepare/units": {"cache/store", "cmd/batchfs/vocabulary"},
		"cmd/batchfs/prepare/field": nil,
		"cmd/batchfs/prepare/input": {"cache/blob", "cache/format", "cache/store", "cmd/batchfs/config", "cmd/batchfs/prepare/units"},
		"cmd/batchfs/prepare/rows":  {"cache/format", "cmd/batchfs/prepare/field", "cmd/batchfs/prepare/input"},
		"cmd/batchfs/prepare": {"cache/blob", "cache/format", "cmd/batchfs/command", "cmd/batchfs/config", "cmd/batchfs/prepare/bpe", "cmd/batchfs/prepare/field", "cmd/batchfs/prepare/input", "cmd/batchfs/prepare/rows",
			"cmd/batchfs/prepare/units", "cmd/batchfs/terminal", "cmd/batchfs/vocabulary", "internal/privatedir", "internal/printable"},
		"cmd/batchfs/plan": {"cache", "cache/array", "cache/blob", "cache/blocks", "cache/format", "cache/localfile", "cmd/batchfs/chart", "cmd/batchfs/command", "cmd/batchfs/config",
			"cmd/batchfs/dataset", "cmd/batchfs/terminal", "internal/printable", "sampler"},
		"cmd/batchfs/top":   {"cmd/batchfs/terminal", "fs/figures", "fs/mount", "fs/state", "internal/printable"},
		"cmd/batchfs/bench": {"cache/blob", "cmd/batchfs/chart", "cmd/batchfs/command", "cmd/batchfs/terminal", "internal/jsonbytes"},
		"cmd/batchfs/scan": {"cache", "cache/array", "cache/blob", "cache/format", "cache/localfile", "cmd/batchfs/command", "cmd/batchfs/config", "cmd/batchfs/dataset",
			"cmd/batchfs/terminal", "cmd/batchfs/vocabulary", "internal/jsonbytes", "internal/printable"},
		"cmd/batchfs/view": {"cache", "cache/array", "cmd/batchfs/dataset", "cmd/batchfs/prepare/bpe", "cmd/batchfs/vocabulary", "internal/jsonbytes",
			"sampler"},
		"cmd/batchfs/command": {"internal/failure", "internal/printable"},
		"cmd/batchfs/processes": {"cache/blocks", "cache/localfile", "cmd/batchfs/command", "cmd/batchfs/config", "cmd/batchfs/dataset", "cmd/batchfs/metrics",
			"cmd/batchfs/terminal", "cmd/batchfs/web", "fs", "fs/figures", "fs/mount", "fs/state", "fs/supervise", "internal/failure", "internal/jsonbytes",
			"internal/printable", "internal/process"},
		"cmd/batchfs/doctor": {"cache/blocks", "cmd/batchfs/command", "cmd/batchfs/config", "cmd/batchfs/dataset", "cmd/batchfs/processes", "fs/mount",
			"fs/state", "internal/failure", "internal/printable"},
		"cmd/batchfs": {"cache", "cache/array", "cache/blob", "cache/blocks", "cache/format", "cache/localfile", "cmd/batchfs/bench", "cmd/batchfs/command",
			"cmd/batchfs/config", "cmd/batchfs/dataset", "cmd/batchfs/doctor", "cmd/batchfs/plan", "cmd/batchfs/prepare", "cmd/batchfs/processes",
			"cmd/batchfs/scan", "cmd/batchfs/terminal", "cmd/batchfs/top", "cmd/batchfs/view", "cmd/batchfs/vocabulary", "cmd/batchfs/web", "fs", "fs/figures", "fs/header",
			"fs/mount", "internal/failure", "internal/printable", "sampler"},
	}
	checkTable(t, allowed)
	home := map[string][]string{ // packages that import a third-party module
		"github.com/hanwen/go-fuse":      {"fs", "fs/guard"},
		"github.com/moby/sys/mountinfo":  {"fs/mount"},
		"github.com/BurntSushi/toml":     {"cmd/batchfs/config"},
		"golang.org/x/text":              {"cmd/batchfs/prepare/bpe"},
		"golang.org/x/crypto":            {"cmd/batchfs/prepare"},
		"github.com/schollz/progressbar": {"cmd/batchfs/terminal"},
		"github.com/prometheus":          {"cmd/batchfs/metrics"},
		"charm.land/bubbletea":           {"cmd/batchfs/top"},
		"golang.org/x/term":              {"cmd/batchfs/terminal"},
		"github.com/coreos/go-systemd":   {"cmd/batchfs/processes"},
		"gonum.org/v1/plot":              {"cmd/batchfs/chart"},
		"github.com/minio/minio-go":      {"cache/store"},
		"github.com/klauspost/compress":  {"cmd/batchfs/prepare/input", "cmd/batchfs/prepare/rows"},
		"github.com/go-json-experiment":  {"cmd/batchfs/prepare/field", "cmd/batchfs/prepare/input"},
		"github.com/bmatcuk/doublestar":  {"cmd/batchfs/prepare/input"},
		"github.com/parquet-go":          {"cmd/batchfs/prepare/rows"},
		"github.com/apache/arrow-go":     {"cmd/batchfs/prepare/rows"},
		"github.com/google/flatbuffers":  {"cmd/batchfs/prepare/rows"},
		"github.com/andybalholm/brotli":  {"cmd/batchfs/prepare/rows"},
		"github.com/pierrec/lz4":         {"cmd/batchfs/prepare/rows"},
		"github.com/spf13": {"cmd/batchfs", "cmd/batchfs/bench", "cmd/batchfs/command", "cmd/batchfs/config", "cmd/batchfs/doctor", "cmd/batchfs/plan", "cmd/batchfs/prepare",
			"cmd/batchfs/processes", "cmd/batchfs/top"},
	}
	for line := range strings.Lines(e2e.RunJob(t, "go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "batchfs/...")) {
		fields := strings.Fields(line)
		pkg := strings.TrimPrefix(fields[0], "batchfs/")
		imports, known := allowed[pkg]
		if !known && pkg != "test" && !strings.HasPrefix(pkg, "test/") {
			t.Errorf("the table of this test lacks %s", pkg)
		}
		if !known {
			continue
		}
		for _, imported := range fields[1:] {
			if ours, ok := strings.CutPrefix(imported, "batchfs/"); ok {
				if !slices.Contains(imports, ours) {
					t.Errorf("%s imports %s, want only %q", pkg, ours, imports)
				}
				continue
			}
			if !strings.Contains(imported, ".") || strings.HasPrefix(imported, "golang.org/x/sys/") {
				continue
			}
			var importers []string
			for module, packages := range home {
				if strings.HasPrefix(imported+"/", module+"/") {
					importers = packages
				}
			}
			if !slices.Contains(importers, pkg) {
				t.Errorf("%s imports %s, want that only in %q", pkg, imported, importers)
			}
		}
	}
}

// checkTable checks that the table of packages in docs/design.md has all of them, and that each one
// imports only packages further down.
func checkTable(t *testing.T, imports map[string][]string) {
	_, table, _ := strings.Cut(e2e.ReadPage(t, "docs/design.md"), "| package | what it does |\n|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	var packages []string
	for row := range strings.Lines(table) {
		dir := "" // the directory of the first name, to which the others are relative
		for name := range strings.SplitSeq(strings.Split(row, "|")[1], ",") {
			name = strings.Trim(name, " `")
			if dir == "" {
				dir = path.Dir(name)
			} else {
				name = path.Join(dir, name)
			}
			packages = append(packages, name)
		}
	}
	for pkg, imported := range imports {
		if strings.Contains(pkg, "internal/") {
			continue
		}
		at := slices.Index(packages, pkg)
		if at < 0 {
			t.Errorf("the table in docs/design.md lacks %s", pkg)
		}
		for _, other := range imported {
			if !strings.HasPrefix(other, "internal/") && slices.Index(packages, other) < at {
				t.Errorf("%s imports %s, which is not further down in the table in docs/design.md", pkg, other)
			}
		}
	}
}

// Files in the tables of docs/design.md, and in sentences such as "`name` (file.go)", have what is
// named beside them.
func TestFilesOnPages(t *testing.T) {
	code, isFile := regexp.MustCompile("`([\\w/.]+)`"), regexp.MustCompile(`\w\.(go|py)$`)
	nameInFile := regexp.MustCompile("`(\\w+)`\\s\\((\\w+\\.go)\\)")
	// Names without a directory are relative to dir: the first one in the row or paragraph or, if
	// there is none, before it.
	dir, inTable, checked := "", false, 0
	check := func(files []string, names ...string) {
		var text strings.Builder
		for _, file := range files {
			if !strings.Contains(file, "/") {
				file = path.Join(dir, file)
			}
			text.WriteString(e2e.ReadPage(t, file))
		}
		for _, name := range names {
			checked++
			for word := range strings.SplitSeq(name, ".") {
				if !regexp.MustCompile(`\b` + word + `\b`).MatchString(text.String()) {
					t.Errorf("%s is not in %q of %s", name, files, dir)
				}
			}
		}
	}
	pages := e2e.ReadPage(t, "docs/design.md") + "\n\n" + e2e.ReadPage(t, "CONTRIBUTING.md")
	for passage := range strings.SplitSeq(strings.ReplaceAll(pages, "|\n", "|\n\n"), "\n\n") {
		var files, names []string
		hasPath := false
		for _, match := range code.FindAllStringSubmatch(passage, -1) {
			name := match[1]
			if isFile.MatchString(name) {
				files = append(files, name)
			} else {
				names = append(names, name)
			}
			if strings.Contains(name, "/") && !hasPath {
				hasPath, dir = true, name
				if path.Ext(name) != "" {
					dir = path.Dir(name)
				}
			}
		}
		for _, match := range nameInFile.FindAllStringSubmatch(passage, -1) {
			check(match[2:], match[1])
		}
		if inTable = strings.HasPrefix(passage, "|") && (inTable || strings.Contains(passage, "| file |")); inTable {
			check(files, names...)
		}
	}
	if checked < 50 {
		t.Errorf("%d names were checked, want those of four tables", checked)
	}
}

// Each row of the tables of tests in docs/design.md names tests, which exist.
func TestTestsOnPages(t *testing.T) {
	existing := strings.Fields(e2e.Run(t, "grep", "-rohE", `(func |def )[Tt]est\w+`, "..", "--include=*_test.go", "--include=test_*.py"))
	rows := 0
	for passage := range strings.SplitSeq(e2e.ReadPage(t, "docs/design.md"), "\n\n") {
		table := strings.Split(strings.TrimSpace(passage), "\n")
		if !strings.HasSuffix(table[0], "| tests |") {
			continue
		}
		for _, row := range table[2:] {
			rows++
			cells := strings.Split(row, "|")
			named := regexp.MustCompile("`([Tt]est\\w+)`").FindAllStringSubmatch(cells[len(cells)-2], -1)
			if len(named) == 0 {
				t.Errorf("no test is named in the row %s", row)
			}
			for _, test := range named {
				if !slices.Contains(existing, test[1]) {
					t.Errorf("docs/design.md names %s, which no file defines", test[1])
				}
			}
		}
	}
	if rows < 15 {
		t.Errorf("%d rows were checked, want those of two tables", rows)
	}
}

// Package fs uses only two types of the guard around it, and does not call it.
func TestFilesDoNotCallTheirGuard(t *testing.T) {
	out := e2e.Run(t, "grep", "-roE", `\bguard\.\w+`, "../fs", "--include=*.go", "--exclude=*_test.go", "--exclude-dir=guard", "--exclude=serve.go")
	for line := range strings.Lines(out) {
		if _, used, _ := strings.Cut(strings.TrimSpace(line), ":"); used != "guard.Cost" && used != "guard.Pages" {
			t.Errorf("%s: want only guard.Cost and guard.Pages", strings.TrimSpace(line))
		}
	}
}

// Only package main ends the process.
func TestOneExit(t *testing.T) {
	out, _, _ := e2e.Try(t, "grep", "-rnE", `os\.Exit|log\.Fatal|syscall\.Exit|unix\.Exit`, "--include=*.go", "--exclude=*_test.go", "..")
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, "../cmd/batchfs/main.go:") && !strings.HasPrefix(line, "../test/") {
			t.Errorf("%s: want an exit only in cmd/batchfs/main.go", strings.TrimSpace(line))
		}
	}
}
