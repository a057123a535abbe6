package test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"batchfs/test/e2e"
)

// The Makefile names no test that does not exist, which go test would not notice. make fuzz runs
// every fuzz target, and make soak also the tests of other packages that do more in a soak. A
// target for some tests fails if they lack something, rather than skipping them.
func TestMakefile(t *testing.T) {
	t.Parallel()
	exists, targets := map[string]bool{}, 0
	for line := range strings.Lines(e2e.Run(t, "grep", "-rEoh", "--include=*_test.go", `^func (Test|Fuzz)\w+`, "..")) {
		name := strings.Fields(line)[1]
		exists[name] = true
		if strings.HasPrefix(name, "Fuzz") {
			targets++
		}
	}
	makefile := e2e.ReadPage(t, "Makefile")
	for _, name := range regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z]\w+`).FindAllString(makefile, -1) {
		if !exists[name] {
			t.Errorf("the Makefile runs %s, which does not exist", name)
		}
	}
	for _, line := range regexp.MustCompile(`.*BATCHFS_(?:LANGUAGES|RECIPES|SOAK)=1.*`).FindAllString(makefile, -1) {
		e2e.Contains(t, "a line of the Makefile", line, "BATCHFS_REQUIRE_FUSE=1")
	}
	fuzzed := regexp.MustCompile(`(?m)^\d+x \./\S+ -fuzz \^(Fuzz\w+)\$$`).FindAllString(e2e.Run(t, "make", "-s", "-C", "..", "fuzz", "FUZZ=echo"), -1)
	e2e.Equal(t, "number of targets of make fuzz", len(fuzzed), targets)
	e2e.Contains(t, "make soak", e2e.Run(t, "make", "-n", "-C", "..", "soak"), ".ci/depending soak $(go list ./... | grep -v /test/soak$)")
	soaked := e2e.Run(t, "sh", "-ec", "cd .. && .ci/depending soak ./test/tokenfiles ./test/commands")
	for _, name := range []string{
		"TestKilledAtEveryChange", // calls InSoak
		"TestInterruptedMount",    // calls a function of e2e that does
		"TestPythonPackage",       // calls one that is generic
		"TestDoctorOfMounts",      // calls one that calls another
	} {
		e2e.Contains(t, "list of tests that do more in a soak", soaked, name)
	}
}

// The workflows, which no test runs, run only targets and scripts that exist. The weekly one runs
// the targets that CONTRIBUTING.md says.
func TestWorkflows(t *testing.T) {
	t.Parallel()
	makefile := e2e.ReadPage(t, "Makefile")
	for _, file := range []string{".github/workflows/ci.yml", ".github/workflows/release.yml", ".github/workflows/weekly.yml", ".ci/run"} {
		text := regexp.MustCompile(`(?m)^ *#.*`).ReplaceAllString(e2e.ReadPage(t, file), "")
		targets := ""
		for _, m := range regexp.MustCompile(`\bmake ([a-z]+)|target: \[(.*)\]`).FindAllStringSubmatch(text, -1) {
			targets += m[1] + " " + strings.ReplaceAll(m[2], ",", "") + " "
		}
		for target := range strings.FieldsSeq(targets) {
			e2e.Contains(t, file+" runs make "+target+": the Makefile", makefile, "\n"+target+":")
			if strings.HasSuffix(file, "weekly.yml") {
				e2e.Contains(t, "CONTRIBUTING.md", e2e.ReadPage(t, "CONTRIBUTING.md"), target+"`")
			}
		}
		for _, script := range regexp.MustCompile(`(?:\.ci|deploy/release)/[a-z-]+`).FindAllString(text, -1) {
			e2e.ReadPage(t, script)
		}
	}
	setup := e2e.ReadPage(t, ".ci/setup")
	for _, m := range regexp.MustCompile(`\.ci/setup ([a-z]+)`).FindAllStringSubmatch(makefile+e2e.ReadPage(t, ".ci/run"), -1) {
		e2e.Contains(t, ".ci/setup", setup, "\n"+m[1]+") why=")
	}
}

// .ci/venv installs packages once, and again when other versions are named.
func TestEnvironments(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	// Python makes an environment whose pip prints its arguments.
	e2e.WriteScript(t, filepath.Join(dir, "python3"), `#!/bin/sh
[ "$*" = "-m venv --clear $4" ] || exit
mkdir -p "$4/bin"
printf '#!/bin/sh\necho "pip $*"\n' >"$4/bin/pip"
chmod +x "$4/bin/pip"
echo new`)
	for _, test := range []struct{ packages, did string }{
		{"a==1 b", "new\npip install -q a==1 b\n"},
		{"a==1 b", ""},
		{"a==2 b", "pip install -q a==2 b\n"},
	} {
		args := append([]string{"env", "PATH=" + dir + ":" + os.Getenv("PATH"), "XDG_CACHE_HOME=" + dir, "../.ci/venv", "name"}, strings.Fields(test.packages)...)
		stdout, stderr, err := e2e.Try(t, args...)
		e2e.NoError(t, err)
		e2e.Equal(t, "standard output", stdout, dir+"/batchfs/python-name/bin/python\n")
		_, did, _ := strings.Cut(stderr, "\n") // after "installing ..."
		e2e.Equal(t, "what .ci/venv did with "+test.packages, did, test.did)
	}
}
